"""Resolving steps: what one step costs in small and in large experiments, beside writing and hashing the same texts."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Iterator

from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.harness import median
from benchmarks.report import Table, ratio, seconds
from tradewind.steps import ResolvedExperiment, resolve

PREFIX = "/bench"


def bench_resolve(quick: bool) -> Iterator[Table]:
    """Resolve a small and a ten times larger experiment of each shape."""
    small, large, repeats = (100, 1_000, 1) if quick else (1_000, 10_000, 3)
    table = Table(
        f"resolve: {small:,} and {large:,} steps (median of {repeats})",
        ("steps", "time", "µs/step", f"÷ at {small:,}", "hashed B/step", "bound", "÷ bound"),
        notes=(
            f"CPU time. ÷ at {small:,}: cost of one step relative to the small experiment; 1 means linear.",
            "bound: json.dumps and md5 of the same texts, once each.",
        ),
    )
    for shape in SHAPES:
        of_small = None
        for count in (small, large):
            took, bound, hashed_bytes = measure_resolve(shape, count, repeats)
            per_step = took / count
            of_small = of_small or per_step
            table.add(
                f"{shape} {count:,}",
                seconds(took),
                f"{per_step * 1e6:.0f}",
                ratio(per_step, of_small),
                f"{hashed_bytes / count:.0f}",
                seconds(bound),
                ratio(took, bound),
            )
    yield table


def measure_resolve(shape: str, count: int, repeats: int) -> tuple[float, float, int]:
    """CPU seconds of resolving ``count`` steps, and of dumping and hashing their texts once; the bytes of those."""
    graph = SHAPES[shape](count)
    steps = last_steps(graph, steps_of(graph))
    times = []
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        experiment = resolve(steps, PREFIX)
        times.append(time.process_time() - started)
        assert len(experiment.steps) == count
    hashed_bytes = sum(len(step.version_json.encode()) for step in experiment.steps)
    return median(times) or 0.0, _bound(experiment), hashed_bytes


def _bound(experiment: ResolvedExperiment) -> float:
    """The time of making each text from its data, and of hashing it."""
    total = 0.0
    for step in experiment.steps:
        version = step.version
        started = time.process_time()
        text = json.dumps(version, sort_keys=True)
        digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        total += time.process_time() - started
        assert digest.startswith(step.hash), "the bound must hash the very text that resolve hashes"
    return total
