"""A cluster with two slices, of which one is always spare, and a pod that trains on the other."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.harness import ROOT, until
from benchmarks.pods.driver import SLICE_TYPE
from benchmarks.pods.measurements import read_marks
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice
from tradewind.runtime.pods.timeline import TIMELINE_FILE, BadTimelineError, TimelineEvent, read_timeline

WARM_SECONDS: Final = 15.0
"""How long a pod trains before its slice is killed, so that what can be made ready is."""


@dataclass(frozen=True)
class TrainingPod:
    """Two hosts that train, and the folder with their marks."""

    folder: Path
    local: LocalRay

    def slice_at_work(self) -> str:
        pids = {mark["pid"] for mark in read_marks(self.folder)}
        for name in self.local.status().slices:
            hosts = [self.local.host_stack(name, worker) for worker in range(2)]
            if any(process.pid in pids for host in hosts for process in host.processes()):
                return name
        raise RuntimeError("no slice trains")

    def processes_of_runner(self) -> list[psutil.Process]:
        """The driver, the actors on the hosts, and the processes that train."""
        training = {mark["pid"] for mark in read_marks(self.folder)}
        names = ("benchmarks.pods.driver", "ray::PodHost")
        return [
            process
            for process in self.local.stack.processes()
            if process.pid in training or any(name in word for word in _command(process) for name in names)
        ]


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        return process.cmdline()
    return []


@dataclass(frozen=True)
class Cluster:
    """The cluster, and where its pods write."""

    local: LocalRay
    folder: Path

    @contextmanager
    def training(self, runner: str) -> Iterator[TrainingPod]:
        """A pod under that runner, which has begun to train."""
        from ray.job_submission import JobSubmissionClient

        client, folder = JobSubmissionClient(self.local.address), self.folder / "run"
        folder.mkdir()
        command = shlex.join([sys.executable, "-m", "benchmarks.pods.driver", runner, str(folder)])
        job = client.submit_job(entrypoint=f"cd {shlex.quote(str(ROOT))} && exec {command}")
        try:
            until(lambda: has_begun(folder), lambda: client.get_job_logs(job)[-3000:])
            yield TrainingPod(folder, self.local)
        finally:
            client.stop_job(job)
            until(lambda: client.get_job_status(job).is_terminal(), lambda: client.get_job_logs(job)[-3000:])


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        slices = [LocalSlice(f"slice-{number}", SLICE_TYPE) for number in range(2)]
        ray = LocalRay(LocalStack(Path(folder)), token="", num_cpus=4, slices=slices)
        try:
            ray.start()
            yield Cluster(ray, Path(folder))
        finally:
            ray.stack.stop()


def has_begun(folder: Path) -> bool:
    """Whether both hosts train and have saved a checkpoint."""
    return len(list(folder.glob("checkpoint-*.npz"))) == 2


def timeline_of(folder: Path) -> Sequence[TimelineEvent]:
    """What our runner has noted; nothing under the peer."""
    try:
        return read_timeline(str(folder / TIMELINE_FILE))
    except BadTimelineError:  # it is being written
        return []
