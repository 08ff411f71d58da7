"""Inject scheduled faults into the slice that trains now, and end temporary ones in time.

The victim is determined from outside at the moment of the fault, as with real faults.
"""

from __future__ import annotations

import os
import posixpath
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.rehearsal.drill.faults import Fault, Injection, PlannedFault
from tradewind.rehearsal.drill.observer import TrainingSnapshot, drivers
from tradewind.storage import file_system_at

if TYPE_CHECKING:
    from tradewind.rehearsal.cloud.cloud import RehearsalCloud
    from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
    from tradewind.rehearsal.local.ray import LocalRay

_CHECKPOINT: Final = re.compile(r".*/checkpoints/step-(\d+)/metadata\.json")
_ALL_REQUESTS: Final = 10**9


@dataclass(frozen=True)
class Pace:
    """Durations of temporary faults, in seconds."""

    notice_s: float = 10.0
    """From the notice of a preemption to its SIGKILL; Google gives 30."""
    stock_out_s: float = 30.0
    outage_s: float = 60.0
    """Of a Cloud Storage outage."""
    patience_s: float = 300.0
    """Timeout for training to continue after a fault."""


class Injector:
    """Injects faults into one rehearsal.

    Args:
        cloud: The cloud whose slices, capacity and storage are hit.
        ray: Its Ray cluster.
        prefix: Prefix of the run's outputs and checkpoints.
        pace: Durations of outages.
    """

    def __init__(self, cloud: RehearsalCloud, ray: LocalRay, prefix: str, pace: Pace) -> None:
        self._cloud = cloud
        self._ray = ray
        self._prefix = prefix
        self._pace = pace
        self._outages: list[tuple[threading.Timer, Callable[[], object]]] = []
        self._how: dict[Fault, Callable[[TrainingSnapshot, int], Injection]] = {
            Fault.HOST: self._kill_host,
            Fault.SLICE: self._kill_slice,
            Fault.DRAIN: self._drain,
            Fault.DRIVER: self._kill_driver,
            Fault.HEAD: self._kill_head,
            Fault.HANG: self._hang,
            Fault.STOCK_OUT: self._stock_out,
            Fault.CHECKPOINT: self._damage_checkpoint,
            Fault.STORE: self._store_outage,
        }

    def inject(self, fault: PlannedFault, snapshot: TrainingSnapshot) -> Injection:
        """Inject the fault into the pod in ``snapshot`` now."""
        return self._how[fault.kind](snapshot, fault.host % max(len(snapshot.hosts), 1))

    @property
    def is_outage(self) -> bool:
        """Whether an injected fault is still active."""
        return any(timer.is_alive() for timer, _ in self._outages)

    def end_outages(self) -> None:
        """End active faults now."""
        for timer, undo in self._outages:
            if timer.is_alive():
                timer.cancel()
                undo()
        self._outages.clear()

    def _kill_host(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        hit = snapshot.hosts[host]
        killed = self._cloud.kill_host(hit.slice_name, hit.worker)
        return Injection(f"killed host {hit.worker} of {hit.slice_name}", (hit.slice_name,) if killed else ())

    def _kill_slice(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        hit = snapshot.hosts[host].slice_name
        self._cloud.preempt(hit)
        return Injection(f"preempted {hit} without notice", (hit,))

    def _drain(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        hit = snapshot.hosts[host].slice_name
        self._cloud.preempt(hit, notice_s=self._pace.notice_s)
        return Injection(f"preempted {hit} with {self._pace.notice_s:g} s of notice", (hit,))

    def _kill_driver(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        found = drivers(self._ray.stack)
        for driver in found:
            driver.kill()
        what = f"killed the step driver ({len(found)} process{'es' if len(found) != 1 else ''})"
        return Injection(what, tuple(f"process {driver.pid}" for driver in found))

    def _kill_head(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        killed = self._ray.kill_head()
        self._ray.start_head()
        what = f"killed the Ray head ({killed} processes) and started it again"
        return Injection(what, ("the Ray head",) if killed else ())

    def _hang(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        hit = snapshot.hosts[host]
        try:
            os.kill(hit.pid, signal.SIGSTOP)
        except ProcessLookupError:
            return Injection(f"the training process of host {hit.worker} of {hit.slice_name} had ended")
        return Injection(f"froze the training process of host {hit.worker} of {hit.slice_name}", (hit.slice_name,))

    def _stock_out(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        self._cloud.stock_out(True)
        slices = tuple(known["name"] for known in self._cloud.status()["slices"] if known["state"] == "READY")
        for name in slices:
            self._cloud.preempt(name)
        seconds = self._pace.stock_out_s
        self._undo_after(seconds, lambda: self._cloud.stock_out(False))
        return Injection(f"preempted {', '.join(slices)}, no capacity for {seconds:g} s", slices, lasts_s=seconds)

    def _damage_checkpoint(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        killed = self._kill_slice(snapshot, host)  # first, so that no newer checkpoint follows
        damage = damage_newest_checkpoint(self._prefix)
        if damage is None:
            return Injection(f"{killed.what}, and found no two checkpoints, so damaged none")
        return Injection(f"{killed.what}, and damaged {damage.file}", killed.victims, damage.step, damage.older)

    def _store_outage(self, snapshot: TrainingSnapshot, host: int) -> Injection:
        storage, seconds = self._cloud.storage, self._pace.outage_s
        storage.failures = _ALL_REQUESTS
        self._undo_after(seconds, lambda: setattr(storage, "failures", 0))
        return Injection(f"Cloud Storage answers 503 for {seconds:g} s", ("Cloud Storage",), lasts_s=seconds)

    def _undo_after(self, seconds: float, undo: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, undo)
        timer.daemon = True
        timer.start()
        self._outages.append((timer, undo))


class StoreProbe:
    """Facts that a drill reads from the store: the run's checkpoints, and refused requests."""

    def __init__(self, storage: LocalCloudStorage, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix

    def newest_checkpoint(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        return max(_checkpoints(self._prefix)[1], default=None)

    def refused_requests(self) -> int:
        """Return how many requests the store has refused so far."""
        return self._storage.requests["failed"]


@dataclass(frozen=True)
class Damage:
    """The damaged checkpoint's file and step, and the step of the newest complete one left."""

    file: str
    step: int
    older: int


def damage_newest_checkpoint(prefix: str) -> Damage | None:
    """Truncate the largest file of the newest complete checkpoint below ``prefix`` to half, if an older one exists.

    A training whose every checkpoint is damaged fails.
    """
    fs, complete, files = _checkpoints(prefix)
    if len(complete) < 2:
        return None
    step = max(complete)
    folder = complete.pop(step)
    sizes = {path: about["size"] for path, about in files.items() if path.startswith(f"{folder}/")}
    largest = max(sizes, key=lambda path: (sizes[path], path))
    fs.pipe_file(largest, fs.cat_file(largest)[: sizes[largest] // 2])
    return Damage(f"{posixpath.basename(folder)}{largest[len(folder) :]}", step, max(complete))


def _checkpoints(prefix: str) -> tuple[Any, dict[int, str], dict[str, dict[str, Any]]]:
    """Return the file system, each complete checkpoint's folder by step, and all files below ``prefix``."""

    fs, root = file_system_at(prefix)
    fs.invalidate_cache()
    files: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    found = (_CHECKPOINT.fullmatch(path) for path in files)
    return fs, {int(match[1]): posixpath.dirname(match.string) for match in found if match}, files
