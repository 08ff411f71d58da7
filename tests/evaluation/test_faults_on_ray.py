"""An evaluation against a pool whose engine, worker and head are killed in the middle: the same scores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.evaluation.conftest import expected_accuracy, lm_eval_config
from tests.serving.conftest import ray_driver  # noqa: F401  a fixture
from tests.serving.pools import actor_pid, events, tiny_config, worker_of
from tests.support.waiting import until
from tradewind.evaluation.results import read_record
from tradewind.evaluation.run import evaluate
from tradewind.serving.pool import find_pools, stop_pool

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("ray_driver", "importable")]


def test_killed_parts_of_pool_change_nothing(export: Path, tmp_path: Path) -> None:
    """Two evaluations share the pool, which both need while its parts are killed."""
    log = tmp_path / "engines.jsonl"
    serving = tiny_config(log, "--delay", "0.3", model="model_path", served_name="tiny", replicas=2)
    outputs = [tmp_path / "one", tmp_path / "two"]
    with ThreadPoolExecutor() as threads:
        running = [
            threads.submit(evaluate, lm_eval_config("http://unused", export, output, serving=serving))
            for output in outputs
        ]
        try:
            _kill(log, lambda: events(log, "answered")[-1]["pid"])
            _kill(log, lambda: worker_of(events(log, "answered")[-1]["pid"]))
            _kill(log, lambda: actor_pid(find_pools()[0].name))
            pools = [pool.name for pool in find_pools()]
            results = [each.result() for each in running]
        finally:
            for pool in find_pools():
                stop_pool(pool.name)
    assert len(pools) == 1
    assert results[0] == results[1]
    assert results[0]["scores"]["colors_0shot"] == {"acc": expected_accuracy(export)}
    for output in outputs:
        record = read_record(str(output))
        assert (record.requests, record.cached) == (66, 0)
        assert record.serving.engine == "command"


def _kill(log: Path, process: Callable[[], int]) -> None:
    """Send SIGKILL once the evaluations have got on."""
    before = len(events(log, "answered"))
    until(lambda: len(events(log, "answered")) >= before + 8, "further answers")
    os.kill(process(), signal.SIGKILL)
