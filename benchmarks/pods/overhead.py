"""What a step takes under our runner, beside the same step in processes that nobody looks after."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import psutil

from benchmarks.harness import ROOT, Goal, at_most, median, until
from benchmarks.pods.cluster import WARM_SECONDS, cluster, has_begun
from benchmarks.pods.driver import LONGEST_S, OURS
from benchmarks.pods.measurements import median_step, read_marks
from benchmarks.report import Table, seconds

RAY_NICENESS: Final = 15
"""Of what runs in Ray's workers: without it bare processes would take turns from Ray's own, and the others not."""
SETTLE_SECONDS: Final = 0.5
"""After a turn has begun, before its steps count."""
MOST_OVERHEAD = 0.01

Window = tuple[float, float]


@dataclass(frozen=True)
class Pair:
    """The median step time of two processes side by side: under our runner, and started by hand."""

    under_runner: float
    bare: float

    @property
    def quotient(self) -> float:
        return self.under_runner / self.bare


def bench_overhead(quick: bool) -> Iterator[Table | Goal]:
    """Time steps under our runner and without it, in turn for some seconds each, on the same two cores.

    Whoever has not its turn is stopped with all that belongs to it, our driver and host actors included; so both meet
    the same machine, and the ratio of a pair tells what the runner costs.
    """
    count, turn_s = (4, 2.0) if quick else (40, 3.0)
    with cluster() as ray, ray.training(OURS) as pod, _bare_hosts() as (bare, hosts):
        turns = {pod.folder: pod.processes_of_runner(), bare: hosts}
        time.sleep(WARM_SECONDS)
        windows = [_windows(turns, turn_s, swapped=number % 2 == 1) for number in range(count)]
        marks = {one: read_marks(one) for one in turns}
    pairs = [Pair(*(median_step(marks[one], *pair[one]) for one in turns)) for pair in windows]
    yield overhead_table(pairs)
    yield overhead_goal(pairs)


def overhead_table(pairs: Sequence[Pair]) -> Table:
    """Each pair, and the ratio."""
    table = Table(
        "pods: a step without faults",
        ("pair", "under our runner", "bare", "÷ bare"),
        notes=(
            "Two processes side by side, each with a copy of the model; the median step of both.",
            "The bare ones are as nice as Ray's workers are.",
        ),
    )
    for number, pair in enumerate(pairs, 1):
        table.add(str(number), seconds(pair.under_runner), seconds(pair.bare), f"{pair.quotient:.4f}")
    return table


def overhead_goal(pairs: Sequence[Pair]) -> Goal:
    """What our runner may add to a step."""
    overhead = (median(pair.quotient for pair in pairs) or 0.0) - 1
    return at_most("overhead of the runner", overhead, MOST_OVERHEAD, "{:+.2%}".format)


def _windows(turns: Mapping[Path, Sequence[psutil.Process]], turn_s: float, *, swapped: bool) -> Mapping[Path, Window]:
    """Let each have the machine for itself for so long; when that was, in seconds since the epoch."""
    found = {}
    for one in reversed(list(turns)) if swapped else turns:
        for folder, processes in turns.items():
            for process in processes:
                process.resume() if folder == one else process.suspend()
        since = time.time() + SETTLE_SECONDS
        time.sleep(SETTLE_SECONDS + turn_s)
        found[one] = (since, time.time())
    for process in chain(*turns.values()):
        process.resume()
    return found


@contextmanager
def _bare_hosts() -> Iterator[tuple[Path, Sequence[psutil.Process]]]:
    """Two processes that have begun to train and that nobody looks after; their folder."""
    with tempfile.TemporaryDirectory(prefix="pods-bare-") as folder:
        command = [sys.executable, "-m", "benchmarks.pods.function", folder, str(LONGEST_S)]
        hosts = [psutil.Popen(command, cwd=ROOT, env=_host_env(rank)) for rank in range(2)]
        try:
            for host in hosts:
                host.nice(RAY_NICENESS)
            until(lambda: has_begun(Path(folder)), lambda: "the bare hosts do not train")
            yield Path(folder), hosts
        finally:
            for host in hosts:
                host.kill()
                host.wait()


def _host_env(rank: int) -> dict[str, str]:
    """What the pod runner gives a host without TPUs, as far as it matters here."""
    from tradewind.runtime.pods.process_env import ON_CPU

    given = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**kept, **ON_CPU, **given, "TRADEWIND_PROCESS_ID": str(rank)}
