"""``tradewind serve``: what it refuses before it connects, and what it asks of a cluster."""

from __future__ import annotations

import argparse
import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.operators.loopback_head import CallingHead
from tradewind.cli.interrupts import Interrupts
from tradewind.cli.main import parser
from tradewind.cli.output import UsageError
from tradewind.cli.serve import pool_table, serving_config, start
from tradewind.cli.serve_options import with_command
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.steps.resources import Cpu, Gpu, TpuSlice

COMMAND = ("serve",)
POOL: dict[str, Any] = {
    "name": "pool-0123456789ab",
    "address": "http://10.0.0.2:8001/v1",
    "model": "small",
    "state": "ready",
    "engines": [{"state": "ready"}, {"state": "starting"}],
    "queued": 3,
    "served": 12,
    "ends_at": 3600.0,
    "path": "gs://b/small/hf",
}


def parsed(*words: str) -> argparse.Namespace:
    return parser().parse_args(with_command(["serve", *words]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trained"], "'trained' is relative"),
        (["lsit"], "'lsit' is relative"),
        (["ftp://a/b"], "is not of a store"),
        (["gs://a::/b"], "chain file systems"),
        (["hub:org/name"], "hub:org/name"),
        (["/a", "--timeout", "2"], "'2' is not a time like 90s, 30m, 2h or 1d"),
        (["/a", "--timeout", "-1h"], "expected one argument"),
        (["/a", "--idle-timeout", "0m"], "'0m' is not a time"),
        (["/a", "--timeout", "infh"], "'infh' is not a time"),
        (["/a", "--replicas", "0"], "replicas=0: give a whole number of at least 1"),
        (["/a", "--replicas", "3", "--max-replicas", "2"], "max_replicas=2: give a number from replicas=3"),
        (["/a", "--engine", "command"], "invalid choice: 'command'"),
        (["/a", "--engine-command", "python serve.py"], "{port} where it takes its port"),
        (["/a", "--engine-command", "python 'serve.py"], "--engine-command: No closing quotation"),
        (["/a", "--engine-option", "4096"], "write NAME=VALUE"),
        (["/a", "--engine-option", "max_seq=4096"], "max_seq"),
        (["/a", "--engine-option", "max_seq_len=long"], "engine_options['max_seq_len']='long': give a whole number"),
        (["/a", "--tpu", "v4-16"], "this type has several hosts"),
        (["/a", "--tpu", "v4-9"], "There is no TPU slice type 'v4-9'"),
        (["/a", "--tpu", "v4-8", "--num-cpus", "2"], "--tpu means the whole host"),
        (["/a", "--num-gpus", "1.5"], "Ray gives only whole GPUs"),
        (["/a", "--secret", "HF_TOKEN=hf_x"], "the value of 'HF_TOKEN' in secrets is no reference"),
        (["/a", "--cluster", "a", "--address", "http://b:1"], "both name a cluster"),
        (["stop", "small"], "'small' is no pool's name"),
        (["stop"], "NAME"),
        ([], "COMMAND"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_usage_is_refused_by_name(words: list[str], message: str, run: Run) -> None:
    done = run(*words)
    assert done.code == 2
    assert message in done.err
    assert "hf_x" not in done.err


@pytest.mark.parametrize(
    ("words", "resources"),
    [
        ([], Cpu()),
        (["--num-cpus", "4", "--memory", "1024"], Cpu(4, 1024)),
        (["--num-gpus", "1", "--num-cpus", "8"], Gpu(1, num_cpus=8)),
        (["--tpu", "v4-8"], TpuSlice("v4-8")),
    ],
)
def test_options_become_a_config(words: list[str], resources: object) -> None:
    given = ["gs://a/b", "--timeout", "30m", "--engine", "vllm"]
    given += ["--engine-option", "max_model_len=2048", "--engine-option", "dtype=float32"]
    config = serving_config(parsed(*given, "--secret", "HF_TOKEN=env:HF_TOKEN", *words))
    assert (config.model, config.timeout_s, config.idle_timeout_s) == ("gs://a/b", 1800, 600)
    assert config.engine_options == {"max_model_len": 2048, "dtype": "float32"}
    assert config.resources == resources
    own = serving_config(parsed("/a", "--engine-command", "python 'my serve.py' {model} {port}", *words))
    assert (own.engine, own.command) == ("command", ("python", "my serve.py", "{model}", "{port}"))


@pytest.mark.parametrize("words", [["list"], ["stop", "a"], ["start", "/a"], ["--help"], []])
def test_own_words_of_serve_are_no_model(words: list[str]) -> None:
    assert with_command(["serve", *words]) == ["serve", *words]
    assert with_command(["serve", "--keep", "/a"]) == ["serve", "start", "--keep", "/a"]
    assert with_command(["jobs", "list"]) == ["jobs", "list"]


def test_cluster_of_another_user_serves_nothing() -> None:
    arguments = parsed("/a")
    arguments.named = SimpleNamespace(of_fleet=SimpleNamespace(owner="hero", not_for=lambda user: "It is hero's."))
    with pytest.raises(UsageError, match="It is hero's. Name another cluster with --cluster."):
        start(arguments, RayCluster("hero", "http://127.0.0.1:1"), Interrupts())


def test_list_shows_pools_with_what_they_do() -> None:
    [_, row] = pool_table([POOL], now=0.0)
    shown = "pool-0123456789ab small ready 1 of 2 3 12 60 min http://10.0.0.2:8001/v1 gs://b/small/hf"
    assert " ".join(row.split()) == shown
    assert " 0 s " in pool_table([POOL], now=7200.0)[1]


def test_model_below_no_allowed_root_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", "gs://ours")
    done = run("gs://theirs/small", "--address", "http://127.0.0.1:1")
    assert done.code == 2
    assert "'gs://theirs/small' is below no allowed root (gs://ours)" in done.err


@pytest.mark.parametrize("was_there", [False, True])
def test_pool_out_of_reach_is_told_and_ended_unless_of_others(was_there: bool, run: Run) -> None:
    head = CallingHead()
    head.result = POOL | {"address": "http://127.0.0.1:1/v1", "started": not was_there}
    head.start()
    try:
        done = run("/a", "--address", head.url)
    finally:
        head.stop()
    assert done.code == 1 and not done.out
    assert "serves at http://127.0.0.1:1/v1, which this machine does not reach" in done.err
    functions = [call["function"]["reference"].partition(":")[2] for call in head.calls]
    assert functions == (["start"] if was_there else ["start", "stop"])
    assert re.fullmatch(r"[0-9a-f]{64}", head.calls[0]["args"][1]), "the digest of the token"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--address", "http://127.0.0.1:1"], "does not answer"), (["--cluster", "nowhere"], "no connection 'nowhere'")],
)
def test_cluster_that_is_not_there_leaves_nothing_to_end(words: list[str], message: str, run: Run) -> None:
    done = run("/a", *words)
    assert done.code == 1
    assert message in done.err and "Ending" not in done.err
