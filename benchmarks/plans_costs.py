"""One plan in which every step is finished: what it takes, beside the least that must be read for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.plans_store import BUCKET_PREFIX, cloud_of, experiment_of, write_finished
from benchmarks.report import Table, ratio, seconds

SHAPE = "lattice"
LATENCY_S = 0.02
LOCAL, CLOUD = "local", "gs://"


@dataclass(frozen=True)
class Planned:
    """One plan in a process of its own.

    Attributes:
        resolve: Seconds of computing the versions.
        decide: Seconds of reading the records and deciding; the store's client is loaded in it, too.
        tell: Seconds of writing the table and the XComs.
        cpu: Seconds of processor time of all three.
        bound: Seconds of reading the same leases, and of looking for the same witnesses, without anything else.
        peak_mb: The most memory that the process held.
        before_mb: The most before it began, with Airflow loaded.
        requests: How many there were, by kind; empty for a folder.
    """

    store: str
    steps: int
    resolve: float
    decide: float
    tell: float
    cpu: float
    bound: float
    peak_mb: float
    before_mb: float
    xcom_mb: float
    requests: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return self.resolve + self.decide + self.tell

    @property
    def listings(self) -> int:
        return self.requests.get("list", 0)


def measure_plans(counts: Sequence[int], repeats: int) -> Iterator[Planned]:
    """The plans of each size on each store; of several, the one with the median time."""
    for store, stored in ((LOCAL, _folder_of), (CLOUD, _bucket_of)):
        for count in counts:
            with stored(count) as run:
                found = sorted((_measure(store, count, run) for _ in range(repeats)), key=lambda one: one.seconds)
            yield found[len(found) // 2]


def plans_table(found: Sequence[Planned]) -> Table:
    """A row for each size and store."""
    table = Table(
        f"plans: all steps finished ({SHAPE}; gs:// on loopback answers after {LATENCY_S * 1000:.0f} ms)",
        ("plan", "time", "resolve", "decide", "tell", "CPU", "bound", "÷ bound", "peak", "before", "XCom", "requests"),
        notes=(
            "In a fresh process with Airflow loaded. decide: reads all records, with the store's client loaded first.",
            "tell: table and XComs. CPU: of the plan alone, the store is another process.",
            "bound: each lease read and each witness looked for by a bare client in a process of its own.",
            "peak and before: the process's memory at the end, and when it began to plan.",
        ),
    )
    for one in found:
        table.add(
            f"{one.store} {one.steps:,}",
            *map(seconds, (one.seconds, one.resolve, one.decide, one.tell, one.cpu, one.bound)),
            ratio(one.seconds, one.bound),
            *(f"{size:.0f} MB" for size in (one.peak_mb, one.before_mb)),
            f"{one.xcom_mb:.1f} MB",
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(one.requests.items())) or "-",
        )
    return table


@dataclass(frozen=True)
class _Store:
    """Where the outputs are, what the environment must say for that, and how to count requests."""

    prefix: str
    environment: Mapping[str, str]
    requests: Callable[[], Mapping[str, int]]


@contextmanager
def _folder_of(count: int) -> Iterator[_Store]:
    with tempfile.TemporaryDirectory(prefix="tradewind-bench-") as folder:
        write_finished(experiment_of(SHAPE, count, folder))
        yield _Store(folder, {}, dict)


@contextmanager
def _bucket_of(count: int) -> Iterator[_Store]:
    with cloud_of(SHAPE, count, LATENCY_S) as cloud:
        yield _Store(BUCKET_PREFIX, {"STORAGE_EMULATOR_HOST": cloud.url}, cloud.requests)


def _measure(store: str, count: int, where: _Store) -> Planned:
    bound = _once("bound", count, where)["read"]
    where.requests()
    return Planned(store, count, bound=bound, **_once("plan", count, where), requests=where.requests())


def _once(way: str, count: int, where: _Store) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.plans_once", way, where.prefix, SHAPE, str(count)]
    environment = {**os.environ, **where.environment}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
