"""Pools on a Ray with slices: frozen processes, drained nodes, more and fewer engines, and ends without any user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.runtime.pods.cluster import drain, driver_on
from tests.serving.pools import (
    actor_pid,
    answers_of,
    complete,
    complete_all,
    events,
    ready_engines,
    some_prompts,
    tiny_config,
    worker_of,
)
from tests.serving.tiny_engine import answer_text
from tests.support.waiting import until
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice
from tradewind.runtime.pods.nodes import live_nodes
from tradewind.serving.config import PoolLimits
from tradewind.serving.pool import PoolError, ServedPool, ensure_pool, find_pools, stop_pool
from tradewind.steps import TpuSlice

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]
LIMITS = PoolLimits(frozen_s=3.0, silent_s=5.0, queue_s=1.0, spare_s=5.0)
DRIVER = """
import sys, time
import ray
address, config = sys.argv[1:]
ray.init(address=address, _node_ip_address=address.partition(":")[0], log_to_driver=False)
from tradewind.runtime.pods.nodes import live_nodes
from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import ensure_pool
pool = ensure_pool(ServingConfig.from_json(config))
pool.wait_ready()
print(pool.address, pool.token, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    slices = (LocalSlice("a", "v4-8"), LocalSlice("b", "v4-8"))
    ray = LocalRay(LocalStack(tmp_path_factory.mktemp("ray")), token="", num_cpus=4, slices=slices)
    ray.start()
    try:
        with driver_on(ray):
            yield ray
    finally:
        ray.stop()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


@pytest.fixture(autouse=True)
def without_pools(cluster: LocalRay) -> Iterator[None]:
    yield
    for pool in find_pools():
        stop_pool(pool.name)


def in_flight(log: Path, count: int) -> list[int]:
    """Wait for this many requests in the engines; return the engine of each."""
    until(lambda: len(events(log, "begun")) == count, f"{count} requests in flight")
    return [each["pid"] for each in events(log, "begun")]


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_frozen_process_loses_no_request_and_ends(cluster: LocalRay, log: Path, victim: str) -> None:
    pool = ensure_pool(tiny_config(log, "--delay", "2", replicas=2, max_concurrent=8), limits=LIMITS)
    ready_engines(pool, 2)
    prompts = some_prompts()
    answers = complete_all(pool, prompts)
    engine = in_flight(log, 16)[0]
    frozen = psutil.Process(engine if victim == "engine" else worker_of(engine))
    frozen.suspend()
    assert answers() == answers_of(prompts)
    ready_engines(pool, 2)
    until(lambda: not (psutil.pid_exists(frozen.pid) and frozen.is_running()), "the end of the frozen process")
    until(lambda: not psutil.pid_exists(engine), "the end of its engine")


def test_drained_slice_is_replaced_before_it_goes(cluster: LocalRay, log: Path) -> None:
    pool = ensure_pool(tiny_config(log, "--delay", "3", resources=TpuSlice("v4-8")), limits=LIMITS)
    [engine] = ready_engines(pool, 1).engines
    node = next(node for node in live_nodes() if node.ip == engine.node)
    prompts = some_prompts(4)
    answers = complete_all(pool, prompts)
    in_flight(log, 4)
    drain(cluster, node.id, 60)
    assert answers() == answers_of(prompts)
    until(lambda: ready_engines(pool, 1).engines[0].node != engine.node, "an engine on the other slice")
    assert (pool.status().resent, pool.status().engine_losses) == (0, 0)
    assert Counter(each["prompt"] for each in events(log, "begun")) == dict.fromkeys(prompts, 1)
    drained = str(node.slice_name)  # a test that follows needs both
    cluster.kill_slice(drained)
    cluster.start_slice(LocalSlice(drained, "v4-8"))


def test_pool_grows_with_queue_and_shrinks_again(cluster: LocalRay, log: Path) -> None:
    pool = ensure_pool(tiny_config(log, "--delay", "1", max_replicas=3, max_concurrent=2), limits=LIMITS)
    ready_engines(pool, 1)
    prompts = some_prompts(40)
    answers = complete_all(pool, prompts)
    assert ready_engines(pool, 3).queued >= 0
    assert answers() == answers_of(prompts)
    ready_engines(pool, 1)
    assert Counter(each["prompt"] for each in events(log, "begun")) == dict.fromkeys(prompts, 1)
    assert pool.status().engine_losses == 0


def test_engine_that_waits_for_a_node_is_given_up(cluster: LocalRay, log: Path) -> None:
    resources = TpuSlice("v4-8")
    pool = ensure_pool(
        tiny_config(log, "--delay", "1", resources=resources, replicas=2, max_replicas=3, max_concurrent=2),
        limits=LIMITS,
    )
    ready_engines(pool, 2)
    answers = complete_all(pool, some_prompts(40))
    until(lambda: len(pool.status().engines) == 3, "an engine that waits")
    answers()
    until(lambda: len(pool.status().engines) == 2, "its end")


@pytest.mark.parametrize("options", [{"timeout_s": 25.0}, {"idle_timeout_s": 8.0}])
def test_pool_without_its_driver_ends_at_timeout(cluster: LocalRay, log: Path, options: dict[str, float]) -> None:
    config = tiny_config(log, **options)
    command = [sys.executable, "-c", DRIVER, cluster.gcs_address, config.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "RAY_AUTH_MODE": "disabled"}) as driver:
        assert driver.stdout is not None
        address, token = next(line for line in driver.stdout if line.startswith(b"http")).decode().split()
        os.kill(driver.pid, signal.SIGKILL)
    pool = ServedPool(address, token)
    assert complete(pool, "a") == answer_text("a", 8)
    [engine] = {each["pid"] for each in events(log, "begun")}
    until(lambda: not find_pools() and not psutil.pid_exists(engine), "the end of the pool")


@pytest.mark.parametrize("act", ["rejoin", "stop"])
def test_frozen_head_is_replaced_for_its_user(cluster: LocalRay, log: Path, act: str) -> None:
    pool = ensure_pool(tiny_config(log), limits=LIMITS)
    ready_engines(pool, 1)
    assert complete(pool, "a") == answer_text("a", 8)
    [engine] = {each["pid"] for each in events(log, "begun")}
    psutil.Process(actor_pid(pool.name)).suspend()
    assert [each.state for each in find_pools()] == ["unresponsive"]
    if act == "rejoin":
        assert complete(pool.rejoin(), "b", retries=True) == answer_text("b", 8)
        assert {each["pid"] for each in events(log, "begun")} == {engine}
        return
    assert stop_pool(pool.name)
    until(lambda: not psutil.pid_exists(engine), "the end of the engine")
    with pytest.raises(PoolError, match="has ended"):
        pool.status()


def test_lost_node_loses_no_request(cluster: LocalRay, log: Path) -> None:
    pool = ensure_pool(tiny_config(log, "--delay", "2", resources=TpuSlice("v4-8"), replicas=2), limits=LIMITS)
    ready_engines(pool, 2)
    prompts = some_prompts(8)
    answers = complete_all(pool, prompts)
    in_flight(log, 8)
    cluster.kill_slice("b")
    assert answers() == answers_of(prompts)
    assert pool.status().resent == 4


def test_request_that_kills_engines_ends_with_error(cluster: LocalRay, log: Path) -> None:
    pool = ensure_pool(tiny_config(log, replicas=2), limits=LIMITS)
    ready_engines(pool, 2)
    with pytest.raises(AssertionError, match="5 engines were lost while they worked on this request"):
        complete(pool, "!exit")
    assert len(events(log, "begun")) == 5
    until(lambda: pool.status().engine_losses == 5, "five lost engines")
    ready_engines(pool, 2)
