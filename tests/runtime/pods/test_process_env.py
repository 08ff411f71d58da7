"""Ranks, environment variables, messages and output lines of pods, computed without Ray."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.runtime.pods.process_env import (
    Accelerator,
    LineSplitter,
    ProcessRank,
    format_exit,
    process_env,
    rank_env,
    waiting_text,
)

RANK = ProcessRank(rank=3, num_processes=4, coordinator="10.0.0.1:4000", slice_id=1, num_slices=2)


def test_megascale_variables_are_set_only_for_several_slices():
    plain = {
        "TRADEWIND_PROCESS_ID": "3",
        "TRADEWIND_NUM_PROCESSES": "4",
        "TRADEWIND_COORDINATOR": "10.0.0.1:4000",
        "TRADEWIND_SLICE_ID": "1",
        "TRADEWIND_NUM_SLICES": "2",
    }
    assert rank_env(RANK, is_tpu=False) == plain
    assert rank_env(RANK, is_tpu=True) == plain | {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1:8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_SLICE_ID": "1",
    }
    alone = rank_env(ProcessRank(rank=0, num_processes=2, coordinator="10.0.0.1:4000"), is_tpu=True)
    assert not [key for key in alone if key.startswith("MEGASCALE")]


def test_stale_multislice_variables_are_cleared_and_refused():
    inherited = {"MEGASCALE_SLICE_ID": "3", "MEGASCALE_X": "1", "PATH": "/bin"}
    given = {"MEGASCALE_PORT": "2", "MEGASCALE_GRPC_FLAG": "kept"}
    env = process_env(inherited, given, Accelerator.TPU)
    assert env == {"PATH": "/bin", "PYTHONUNBUFFERED": "1", "MEGASCALE_GRPC_FLAG": "kept"}


def test_process_of_whole_host_uses_all_chips_and_threads():
    narrowed = {"OMP_NUM_THREADS": "1", "TPU_VISIBLE_CHIPS": "0"}
    assert process_env(narrowed, {}, Accelerator.TPU) == {"PYTHONUNBUFFERED": "1"}
    assert process_env(narrowed, {}, Accelerator.GPU, keep_threads=True)["OMP_NUM_THREADS"] == "1"


STALE = {"TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1", "TPU_HOST_BOUNDS": "1,1,1"}


@pytest.mark.parametrize(
    ("bounds", "chips", "kept"),
    [
        (STALE, 4, False),
        (STALE, 0, False),
        (STALE, 2, True),
        ({"TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"}, 1, True),
        ({"TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_HOST_BOUNDS": "1,1,2"}, 4, True),
        ({"TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_HOST_BOUNDS": "1,1,2"}, 0, True),
        ({"TPU_HOST_BOUNDS": "1,1,2"}, 4, True),
    ],
)
def test_ray_narrowed_bounds_are_cleared_and_machine_bounds_stay(bounds, chips, kept):
    env = process_env({**bounds, "TPU_VISIBLE_CHIPS": "0,1"}, {}, Accelerator.TPU, chips=chips)
    assert env == {"PYTHONUNBUFFERED": "1"} | (bounds if kept else {})


def test_jax_defaults_to_cpu_without_accelerator():
    assert process_env({}, {}, Accelerator.NONE)["JAX_PLATFORMS"] == "cpu"
    assert process_env({"CUDA_VISIBLE_DEVICES": "0"}, {}, Accelerator.NONE)["CUDA_VISIBLE_DEVICES"] == ""
    assert process_env({"CUDA_VISIBLE_DEVICES": "0"}, {}, Accelerator.SIMULATED)["CUDA_VISIBLE_DEVICES"] == "0"
    env = process_env({}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, Accelerator.NONE)
    assert env["XLA_FLAGS"].endswith("=4")
    env = process_env({"XLA_FLAGS": "--of=the-machine"}, {}, Accelerator.SIMULATED)
    assert env["XLA_FLAGS"] == "--of=the-machine --xla_force_host_platform_device_count=1"
    assert env["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] == "gloo"
    assert "JAX_PLATFORMS" not in process_env({}, {}, Accelerator.GPU)


def test_exit_code_is_described_in_words():
    assert [format_exit(code) for code in (3, -9, -99)] == [
        "exited with code 3",
        "was killed by SIGKILL",
        "was killed by signal 99",
    ]


def test_waiting_text_names_group_time_and_known_hosts():
    assert waiting_text("v4-16 slice", 0, {}) == "waiting for a free v4-16 slice; the cluster has no TPU hosts"
    assert (
        waiting_text("v4-16 slice", 61.3, {"v4-8": 1, "v4-16": 2})
        == "waiting for a free v4-16 slice since 61 s; the cluster has 2 hosts of v4-16, 1 host of v4-8"
    )
    assert waiting_text("1-host A100 group", 0, {}, "GPU").endswith("; the cluster has no GPU hosts")


def test_progress_bars_and_invalid_utf8_become_lines():
    splitter = LineSplitter()
    assert splitter.feed(b"10%\r20%\rdone\r\nnext") == ["10%", "20%", "done"]
    assert splitter.feed(b"\xff\n") == ["next\ufffd"]
    assert splitter.end() == []


@given(st.lists(st.sampled_from(["a", "bc", "", "ü"])), st.lists(st.integers(1, 5)))
def test_lines_do_not_depend_on_chunks(lines, cuts):
    data = "\r\n".join([*lines, "end"]).encode()
    splitter, got = LineSplitter(), []
    for cut in cuts:
        got += splitter.feed(data[:cut])
        data = data[cut:]
    assert got + splitter.feed(data) + splitter.end() == [*lines, "end"]


def test_endless_line_is_split():
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (3 * LineSplitter.max_bytes + 1))
    assert [len(line) for line in lines] == [LineSplitter.max_bytes] * 3
    assert splitter.end() == ["x"]
