"""A cluster with two slices, a driver on it, and the SIGKILL of the slice that trains; and steps without any fault."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.pods_marks import Recovery, median_step, read_marks, recovery_of
from tradewind.rehearsal.local_ray import LocalRay, LocalSlice
from tradewind.rehearsal.processes import LocalStack
from tradewind.runtime.pods.timeline import TIMELINE_FILE

ROOT: Final = Path(__file__).parents[1]
OURS, PEER = "ours", "JaxTrainer"
SLICE_TYPE, TOPOLOGY, ACCELERATOR = "v4-16", "2x2x2", "TPU-V4"
WARM_SECONDS: Final = 15.0
"""How long a pod trains before its slice is killed, so that what can be made ready is."""
START_SECONDS: Final = 300.0
RECOVERY_SECONDS: Final = 120.0
"""After which a runner that has made no step counts as one that does not recover."""
RAY_NICENESS: Final = 15
"""Of what runs in Ray's workers: without it bare processes would take turns from Ray's own, and the others not."""
SETTLE_SECONDS: Final = 0.5
"""After a turn has begun, before its steps count."""


@dataclass(frozen=True)
class Size:
    """How often a slice is killed under each runner, how often steps are timed, and for how long each time."""

    kills: int
    pairs: int
    seconds: float


FULL = Size(3, 40, 3.0)
QUICK = Size(1, 4, 2.0)


@dataclass(frozen=True)
class Pair:
    """The median step time of two processes side by side: under our runner, and started by hand."""

    under_runner: float
    bare: float


@dataclass(frozen=True)
class Kill:
    """One slice that was killed under a runner."""

    runner: str
    recovery: Recovery | None
    """None if it made no step in ``RECOVERY_SECONDS``."""


def measure_recoveries(size: Size) -> list[Kill]:
    """Kill the slice that trains, as often as ``size`` says, under either runner in turn.

    Each time in a cluster of its own: the peer may wait for ever in one that remembers dead slices.
    """
    return [_killed(runner) for _ in range(size.kills) for runner in (OURS, PEER)]


def _killed(runner: str) -> Kill:
    with _cluster() as cluster:
        return Kill(runner, cluster.recovery(runner))


def measure_overhead(size: Size) -> list[Pair]:
    """Time steps under our runner and without it, in turn for some seconds each, on the same two cores.

    Whoever has not its turn is stopped with all that belongs to it, our driver and host actors included; so both meet
    the same machine, and the ratio of a pair tells what the runner costs.
    """
    with _cluster() as cluster, tempfile.TemporaryDirectory(prefix="pods-bare-") as bare, cluster.training() as folder:
        with _bare_hosts(bare) as hosts:
            _until(lambda: _begun(Path(bare)), lambda: "the bare hosts do not train")
            turns = {folder: cluster.processes_of_runner(folder), Path(bare): hosts}
            time.sleep(WARM_SECONDS)
            windows = [_windows(turns, size.seconds, swapped=number % 2 == 1) for number in range(size.pairs)]
        marks = {one: read_marks(one) for one in turns}
        return [Pair(*(median_step(marks[one], *pair[one]) for one in turns)) for pair in windows]


Window = tuple[float, float]


def _windows(turns: Mapping[Path, Sequence[psutil.Process]], seconds: float, *, swapped: bool) -> Mapping[Path, Window]:
    """Let each have the machine for itself for so long; when that was, in seconds since the epoch."""
    found = {}
    for one in reversed(list(turns)) if swapped else turns:
        for folder, processes in turns.items():
            for process in processes:
                process.resume() if folder == one else process.suspend()
        since = time.time() + SETTLE_SECONDS
        time.sleep(SETTLE_SECONDS + seconds)
        found[one] = (since, time.time())
    for process in chain(*turns.values()):
        process.resume()
    return found


@contextmanager
def _bare_hosts(folder: str) -> Iterator[Sequence[psutil.Process]]:
    """Two processes that train and that nobody looks after."""
    command = [sys.executable, "-m", "benchmarks.pods_function", folder, "3600"]
    hosts = [psutil.Popen(command, cwd=ROOT, env=_host_env(rank)) for rank in range(2)]
    try:
        for host in hosts:
            host.nice(RAY_NICENESS)
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            host.wait()


@contextmanager
def _cluster() -> Iterator[_Cluster]:
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        stack = LocalStack(Path(folder))
        ray = LocalRay(
            stack, token="", num_cpus=4, slices=[LocalSlice("slice-0", SLICE_TYPE), LocalSlice("slice-1", SLICE_TYPE)]
        )
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
        self._runs = 0

    def recovery(self, runner: str) -> Recovery | None:
        folder, job = self._begin(runner, 3600.0)
        try:
            self._until(lambda: _begun(folder), job)
            time.sleep(WARM_SECONDS)
            victim = self._slice_at_work(folder)
            killed = time.time()
            self._ray.kill_slice(victim)
            return self._recovery(runner, folder, killed)
        finally:
            self._end(job)

    @contextmanager
    def training(self) -> Iterator[Path]:
        """A pod under our runner, which has begun to train; its folder."""
        folder, job = self._begin(OURS, 3600.0)
        try:
            self._until(lambda: _begun(folder), job)
            yield folder
        finally:
            self._end(job)

    def processes_of_runner(self, folder: Path) -> list[psutil.Process]:
        """The driver, the actors on the hosts, and the processes that train."""
        training = {mark["pid"] for mark in read_marks(folder)}
        names = ("benchmarks.pods_ours", "ray::PodHost")
        return [
            process
            for process in self._ray.stack.processes()
            if process.pid in training or any(name in word for word in process.cmdline() for name in names)
        ]

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

    def _recovery(self, runner: str, folder: Path, killed: float) -> Recovery | None:
        while time.time() < killed + RECOVERY_SECONDS:
            found = recovery_of(runner, killed, read_marks(folder), _events(folder) if runner == OURS else ())
            if found is not None:
                return found
            time.sleep(0.2)
        return None

    def _until(self, condition: Callable[[], object], job: str) -> None:
        _until(condition, lambda: self._client.get_job_logs(job)[-3000:])


def _until(condition: Callable[[], object], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {START_SECONDS:g} s in vain; {why()}")
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
