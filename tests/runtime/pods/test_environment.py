"""The pure part of pods: ranks, environments, sentences, lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.runtime.pod_env import (
    HostFacts,
    LineSplitter,
    failure_text,
    how_it_ended,
    process_env,
    rank_order,
    waiting_text,
)


def _host(worker_id: str | None) -> HostFacts:
    return HostFacts("node", "10.0.0.1", {} if worker_id is None else {"ray.io/tpu-worker-id": worker_id}, has_tpu=True)


def test_ranks_follow_the_tpu_worker_ids_as_numbers():
    ids = ["10", "2", "0", "1", "3", "4", "5", "6", "7", "8", "9"]
    order = rank_order([_host(one) for one in ids])
    assert [ids[index] for index in order] == [str(rank) for rank in range(11)]


def test_a_single_host_needs_no_worker_id():
    assert rank_order([_host(None)]) == [0]


@pytest.mark.parametrize("ids", [["0", "0"], ["1", "2"], ["0", None], ["0", "x"]])
def test_hosts_that_cannot_form_a_slice_are_refused(ids):
    with pytest.raises(ValueError, match=r"worker ids are .*, not 0 to 1"):
        rank_order([_host(one) for one in ids])


def _env(inherited=None, given=None, has_tpu=False):
    return process_env(
        inherited or {}, given or {}, rank=1, num_processes=2, coordinator="10.0.0.1:4000", has_tpu=has_tpu
    )


def test_a_process_learns_its_rank_and_coordinator():
    env = _env({"PATH": "/bin"}, has_tpu=True)
    assert env == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "TRADEWIND_PROCESS_ID": "1",
        "TRADEWIND_NUM_PROCESSES": "2",
        "TRADEWIND_COORDINATOR": "10.0.0.1:4000",
    }


def test_stale_multislice_variables_are_cleared_but_given_ones_kept():
    env = _env({"MEGASCALE_SLICE_ID": "3", "MEGASCALE_PORT": "1"}, {"MEGASCALE_PORT": "2"})
    assert {key: value for key, value in env.items() if key.startswith("MEGASCALE")} == {"MEGASCALE_PORT": "2"}


def test_without_a_tpu_jax_runs_on_the_cpu_unless_told_otherwise():
    assert _env()["JAX_PLATFORMS"] == "cpu"
    env = _env(given={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
    assert env["XLA_FLAGS"].endswith("=4")
    assert env["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] == "gloo"
    assert "JAX_PLATFORMS" not in _env(has_tpu=True)


def test_nobody_can_give_a_process_another_rank():
    assert _env(given={"TRADEWIND_PROCESS_ID": "7"})["TRADEWIND_PROCESS_ID"] == "1"


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exited with code 3"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99")]
)
def test_an_exit_code_is_told_in_words(code, text):
    assert how_it_ended(code) == text


@pytest.mark.parametrize(
    ("hosts", "tail"), [(1, "."), (2, "; the other host was ended."), (8, "; the other 7 hosts were ended.")]
)
def test_a_failure_is_one_sentence(hosts, tail):
    assert (
        failure_text(0, "v4-16", "exited with code 3", hosts) == f"Host 0 of the v4-16 slice exited with code 3{tail}"
    )


def test_waiting_says_for_what_since_when_and_what_there_is():
    assert waiting_text("v4-16", 0, {}) == "waiting for a free v4-16 slice; the cluster has no TPU hosts"
    assert (
        waiting_text("v4-16", 61.3, {"v4-8": 1, "v4-16": 2})
        == "waiting for a free v4-16 slice since 61 s; the cluster has 2 hosts of v4-16, 1 host of v4-8"
    )


def test_progress_bars_and_broken_characters_become_lines():
    splitter = LineSplitter()
    assert splitter.feed(b"10%\r20%\rdone\r\nnext") == ["10%", "20%", "done"]
    assert splitter.feed(b"\xff\n") == ["next\ufffd"]
    assert splitter.end() == []


@given(st.lists(st.sampled_from(["a", "bc", "", "ü"])), st.lists(st.integers(1, 5)))
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines, cuts):
    data = "\r\n".join([*lines, "end"]).encode()
    splitter, got = LineSplitter(), []
    for cut in cuts:
        got += splitter.feed(data[:cut])
        data = data[cut:]
    assert got + splitter.feed(data) + splitter.end() == [*lines, "end"]


def test_a_line_without_end_does_not_fill_the_memory():
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (3 * LineSplitter.longest + 1))
    assert [len(line) for line in lines] == [LineSplitter.longest] * 3
    assert splitter.end() == ["x"]
