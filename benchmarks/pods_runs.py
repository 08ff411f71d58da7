"""A cluster with two slices, a driver on it, and the SIGKILL of the slice that trains; and steps without any fault."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.pods_marks import Recovery, read_marks, recovery_of, step_seconds
from tradewind.rehearsal.local_ray import LocalRay, LocalSlice
from tradewind.rehearsal.processes import LocalStack
from tradewind.runtime.pods.timeline import TIMELINE_FILE

ROOT: Final = Path(__file__).parents[1]
OURS, PEER = "ours", "JaxTrainer"
SLICE_TYPE, TOPOLOGY, ACCELERATOR = "v4-16", "2x2x2", "TPU-V4"
WARM_SECONDS: Final = 15.0
"""How long a pod trains before its slice is killed, so that what can be made ready is."""
WAIT_SECONDS: Final = 300.0
SKIPPED_STEPS: Final = 20
"""The first ones of a process, while caches fill."""


@dataclass(frozen=True)
class Size:
    """How often a slice is killed under each runner, how often steps are timed, and for how long each time."""

    kills: int
    pairs: int
    seconds: float


FULL = Size(3, 5, 40.0)
QUICK = Size(1, 1, 10.0)


@dataclass(frozen=True)
class Pair:
    """The median step time of two processes side by side: under our runner, and started by hand."""

    under_runner: float
    bare: float


def measure_recoveries(size: Size) -> list[Recovery]:
    """Kill the slice that trains, as often as ``size`` says, under either runner in turn."""
    with _cluster() as cluster:
        return [cluster.recovery(runner) for _ in range(size.kills) for runner in (OURS, PEER)]


def measure_overhead(size: Size) -> list[Pair]:
    """Time steps under our runner and without it, in turn."""
    with _cluster() as cluster:
        return [Pair(cluster.under_runner(size.seconds), bare_steps(size.seconds)) for _ in range(size.pairs)]


def bare_steps(seconds: float) -> float:
    """The median step of two processes that nobody looks after."""
    with tempfile.TemporaryDirectory(prefix="pods-bare-") as folder:
        command = [sys.executable, "-m", "benchmarks.pods_function", folder, str(seconds)]
        hosts = [subprocess.Popen(command, cwd=ROOT, env=_host_env(rank)) for rank in range(2)]
        for host in hosts:
            host.wait()
        return statistics.median(step_seconds(read_marks(Path(folder)), SKIPPED_STEPS))


@contextmanager
def _cluster() -> Iterator[_Cluster]:
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        stack = LocalStack(Path(folder))
        ray = LocalRay(stack, num_cpus=4, slices=[LocalSlice("slice-0", SLICE_TYPE), LocalSlice("slice-1", SLICE_TYPE)])
        try:
            ray.start()
            yield _Cluster(ray, Path(folder))
        finally:
            stack.stop()


class _Cluster:
    """Two slices, of which one is always spare."""

    def __init__(self, ray: LocalRay, folder: Path) -> None:
        from ray.job_submission import JobSubmissionClient

        self._ray = ray
        self._folder = folder
        self._client = JobSubmissionClient(ray.address)
        self._slices = 2
        self._runs = 0

    def recovery(self, runner: str) -> Recovery:
        folder, job = self._begin(runner, 3600.0)
        try:
            self._until(lambda: _begun(folder), job)
            time.sleep(WARM_SECONDS)
            victim = self._slice_at_work(folder)
            killed = time.time()
            self._ray.kill_slice(victim)
            self._until(lambda: self._recovery(runner, folder, killed), job)
            recovery = self._recovery(runner, folder, killed)
            assert recovery is not None
            return recovery
        finally:
            self._end(job)
            self._replace_lost()

    def under_runner(self, seconds: float) -> float:
        folder, job = self._begin(OURS, seconds)
        self._until(lambda: self._client.get_job_status(job).is_terminal(), job)
        return statistics.median(step_seconds(read_marks(folder), SKIPPED_STEPS))

    def _begin(self, runner: str, seconds: float) -> tuple[Path, str]:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        module, *more = {
            OURS: ("benchmarks.pods_ours", SLICE_TYPE),
            PEER: ("benchmarks.pods_jaxtrainer", TOPOLOGY, ACCELERATOR),
        }[runner]
        command = [sys.executable, "-m", module, str(folder), str(seconds), *more]
        entrypoint = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}"
        return folder, self._client.submit_job(entrypoint=entrypoint)

    def _end(self, job: str) -> None:
        self._client.stop_job(job)
        self._until(lambda: self._client.get_job_status(job).is_terminal(), job)

    def _slice_at_work(self, folder: Path) -> str:
        pids = {mark["pid"] for mark in read_marks(folder)}
        for name in self._ray.status().slices:
            hosts = [self._ray.host_stack(name, worker) for worker in range(2)]
            if any(process.pid in pids for host in hosts for process in host.processes()):
                return name
        raise RuntimeError("no slice trains")

    def _replace_lost(self) -> None:
        while len(self._ray.status().slices) < 2:
            self._ray.start_slice(LocalSlice(f"slice-{self._slices}", SLICE_TYPE))
            self._slices += 1

    def _recovery(self, runner: str, folder: Path, killed: float) -> Recovery | None:
        return recovery_of(runner, killed, read_marks(folder), _events(folder) if runner == OURS else ())

    def _until(self, condition: Callable[[], object], job: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {WAIT_SECONDS:g} s in vain; {self._client.get_job_logs(job)[-3000:]}")
            time.sleep(0.2)


def _begun(folder: Path) -> bool:
    """Whether both hosts train and have saved a checkpoint."""
    return len(list(folder.glob("checkpoint-*.npz"))) == 2


def _events(folder: Path) -> Sequence[Mapping[str, Any]]:
    try:
        return list(json.loads((folder / TIMELINE_FILE).read_text()))
    except (FileNotFoundError, ValueError):
        return []


def _host_env(rank: int) -> dict[str, str]:
    """What the pod runner gives a host without TPUs, as far as it matters here."""
    from tradewind.runtime.pods.environment import ON_CPU

    given = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**kept, **ON_CPU, **given, "TRADEWIND_PROCESS_ID": str(rank)}
