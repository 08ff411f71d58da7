"""Duration of a step under Tradewind's runner, compared with the same step in unsupervised processes."""

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
"""Niceness of processes in Ray's workers: bare processes without it would get more CPU time."""
SETTLE_SECONDS: Final = 0.5
"""From the start of a window until its steps count."""
MOST_OVERHEAD = 0.01

Window = tuple[float, float]
Sides = Mapping[Path, Sequence[psutil.Process]]
"""Folder of each side -> its processes."""


@dataclass(frozen=True)
class Pair:
    """Median step times of two processes: under Tradewind's runner, and started directly."""

    under_runner: float
    bare: float

    @property
    def quotient(self) -> float:
        return self.under_runner / self.bare


def bench_overhead(quick: bool) -> Iterator[Table | Goal]:
    """Time steps under Tradewind's runner and without it, alternately for some seconds, on the same two cores.

    All processes of the other side are stopped meanwhile, driver and host actors included. So both sides have the same
    machine, and the quotient of a pair is the cost of the runner.
    """
    count, window_s = (4, 2.0) if quick else (40, 3.0)
    with cluster() as ray, ray.training(OURS) as pod, _bare_hosts() as (bare, hosts):
        sides = {pod.folder: pod.processes_of_runner(), bare: hosts}
        time.sleep(WARM_SECONDS)
        windows = [_windows(sides, window_s, swapped=number % 2 == 1) for number in range(count)]
        marks = {side: read_marks(side) for side in sides}
    pairs = [Pair(*(median_step(marks[side], *pair[side]) for side in sides)) for pair in windows]
    yield overhead_table(pairs)
    yield overhead_goal(pairs)


def overhead_table(pairs: Sequence[Pair]) -> Table:
    """Return a row for each pair, with the quotient."""
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
    """Return the limit of the runner's addition to a step."""
    overhead = (median(pair.quotient for pair in pairs) or 0.0) - 1
    return at_most("overhead of the runner", overhead, MOST_OVERHEAD, "{:+.2%}".format)


def _windows(sides: Sides, window_s: float, *, swapped: bool) -> Mapping[Path, Window]:
    """Let each side run alone for ``window_s``; return its window in seconds since the epoch."""
    windows = {}
    for side in reversed(list(sides)) if swapped else sides:
        for folder, processes in sides.items():
            for process in processes:
                process.resume() if folder == side else process.suspend()
        since = time.time() + SETTLE_SECONDS
        time.sleep(SETTLE_SECONDS + window_s)
        windows[side] = (since, time.time())
    for process in chain(*sides.values()):
        process.resume()
    return windows


@contextmanager
def _bare_hosts() -> Iterator[tuple[Path, Sequence[psutil.Process]]]:
    """Run two unsupervised processes that train; yield their folder and the processes."""
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
    """Return the variables that the pod runner sets on a host without TPUs."""
    from tradewind.runtime.pods.process_env import ON_CPU

    cpu = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**inherited, **ON_CPU, **cpu, "TRADEWIND_PROCESS_ID": str(rank)}
