"""Generations on a real Ray: the same set although an engine and a shard's worker are killed in the middle."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow import parquet

from tests.serving.pools import actor_pid, events, tiny_config
from tests.serving.tiny_engine import answer_text
from tests.support.waiting import until
from tradewind.datasets import create_backend, set_flow_backend
from tradewind.recipes.data import normalize
from tradewind.serving.generate import generate
from tradewind.serving.pool import find_pools, stop_pool
from tradewind.steps.resolution import resolve

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_driver")]
COUNT = 48


def shard_workers() -> list[int]:
    """Return the processes of Ray that generate now."""
    processes = {each.pid: each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])}
    return [pid for pid, words in processes.items() if " ".join(words).startswith("ray::stage 1")]


def rows_of(folder: str) -> list[dict[str, Any]]:
    return [row for file in sorted(Path(folder).glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


def test_killed_engine_and_killed_worker_change_nothing(tmp_path: Path) -> None:
    log, model = tmp_path / "requests.jsonl", tmp_path / "model"
    model.mkdir()
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "prompt {number}"}}\n' for number in range(COUNT)))
    prompts = normalize("prompts", tmp_path / "in.jsonl", shards=3)
    serving = tiny_config(log, "--delay", "0.5", max_concurrent=4)
    step = generate("made", prompts, model, serving=serving, max_tokens=4, max_concurrent=2)
    first, second = resolve([step], str(tmp_path / "outputs")).steps
    try:
        set_flow_backend(create_backend("sync"))
        first.step.fn(first.config)
        set_flow_backend(create_backend("ray"))
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(copy_context().run, second.step.fn, second.config)
            until(lambda: len(events(log, "answered")) >= 6 or running.done(), "some answers")
            [pool] = find_pools()
            os.kill(actor_pid(pool.engines[0].name), signal.SIGKILL)
            os.kill(shard_workers()[0], signal.SIGKILL)
            result = running.result()
    finally:
        set_flow_backend(None)
        for pool in find_pools():
            stop_pool(pool.name)
    made, given = rows_of(second.output_path), rows_of(first.output_path)
    assert [(row["id"], row["prompt"]) for row in made] == [(row["id"], row["text"]) for row in given]
    assert [row["text"] for row in made] == [answer_text(row["prompt"], 4) for row in made]
    assert result["counters"]["documents"] == COUNT and result["rejected"] == 0
