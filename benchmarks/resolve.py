"""Resolving steps: what one step costs in small and in large experiments, beside writing and hashing the same texts."""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import time
from dataclasses import dataclass

from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.report import Table, ratio, seconds
from tradewind.steps import ResolvedExperiment, resolve

PREFIX = "/bench"


@dataclass(frozen=True)
class Resolved:
    """What resolving one experiment took, and what dumping and hashing its texts once takes."""

    count: int
    seconds: float
    bound_seconds: float
    hashed_bytes: int

    @property
    def per_step(self) -> float:
        return self.seconds / self.count


def bench_resolve(quick: bool = False) -> list[Table]:
    """Resolve a small and a ten times larger experiment of each shape."""
    small, large = (100, 1_000) if quick else (1_000, 10_000)
    repeats = 1 if quick else 3
    table = Table(
        f"resolve: {small:,} and {large:,} steps (median of {repeats})",
        ("steps", "time", "µs/step", f"÷ at {small:,}", "hashed B/step", "bound", "÷ bound"),
        notes=(
            f"CPU time. ÷ at {small:,}: cost of one step relative to the small experiment; 1 means linear.",
            "bound: json.dumps and md5 of the same texts, once each.",
        ),
    )
    for shape in SHAPES:
        first = measure_resolve(shape, small, repeats)
        for found in (first, measure_resolve(shape, large, repeats)):
            table.add(
                f"{shape} {found.count:,}",
                seconds(found.seconds),
                f"{found.per_step * 1e6:.0f}",
                ratio(found.per_step, first.per_step),
                f"{found.hashed_bytes / found.count:.0f}",
                seconds(found.bound_seconds),
                ratio(found.seconds, found.bound_seconds),
            )
    return [table]


def measure_resolve(shape: str, count: int, repeats: int) -> Resolved:
    """Resolve ``count`` steps in this shape."""
    graph = SHAPES[shape](count)
    steps = last_steps(graph, steps_of(graph))
    times = []
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        experiment = resolve(steps, PREFIX)
        times.append(time.process_time() - started)
        assert len(experiment.steps) == count
    hashed = sum(len(step.version_json.encode()) for step in experiment.steps)
    return Resolved(count, statistics.median(times), _bound(experiment), hashed)


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
