"""Doing what a schedule of faults says, to the slice that trains now; what lasts a while is undone in time.

Who is hit is found at the moment of the fault, from outside, as real trouble finds its victims.
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

from tradewind.rehearsal.drill_sight import Sight, drivers
from tradewind.rehearsal.faults import Fault, PlannedFault

if TYPE_CHECKING:
    from tradewind.rehearsal.local_ray import LocalRay
    from tradewind.rehearsal.rehearsal_cloud import RehearsalCloud

_CHECKPOINT: Final = re.compile(r".*/checkpoints/step-(\d+)/metadata\.json")
_ALL_REQUESTS: Final = 10**9


@dataclass(frozen=True)
class Pace:
    """How long what lasts does last, in seconds."""

    notice_s: float = 10.0
    """From the notice of a preemption to its SIGKILL; Google gives 30."""
    stock_out_s: float = 30.0
    outage_s: float = 60.0
    """Of Cloud Storage."""
    patience_s: float = 300.0
    """How long training may take to go on after a fault."""


class Injector:
    """Injects faults into one rehearsal.

    Args:
        cloud: Whose slices, capacity and storage are hit.
        ray: Its Ray cluster.
        prefix: Where the run's outputs are, checkpoints among them.
        pace: How long outages last.
    """

    def __init__(self, cloud: RehearsalCloud, ray: LocalRay, prefix: str, pace: Pace) -> None:
        self._cloud = cloud
        self._ray = ray
        self._prefix = prefix
        self._pace = pace
        self._outages: list[tuple[threading.Timer, Callable[[], object]]] = []
        self._deeds: dict[Fault, Callable[[Sight, int], str]] = {
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

    def inject(self, fault: PlannedFault, sight: Sight) -> str:
        """Do it now to the pod in ``sight``; what was done, in words."""
        return self._deeds[fault.kind](sight, fault.host % max(len(sight.hosts), 1))

    @property
    def is_outage(self) -> bool:
        """Whether something that was injected still lasts."""
        return any(timer.is_alive() for timer, _ in self._outages)

    def end_outages(self) -> None:
        """End now what still lasts."""
        for timer, undo in self._outages:
            if timer.is_alive():
                timer.cancel()
                undo()
        self._outages.clear()

    def _kill_host(self, sight: Sight, host: int) -> str:
        hit = sight.hosts[host]
        self._cloud.kill_host(hit.slice_name, hit.worker)
        return f"killed host {hit.worker} of {hit.slice_name}"

    def _kill_slice(self, sight: Sight, host: int) -> str:
        hit = sight.hosts[host].slice_name
        self._cloud.preempt(hit)
        return f"preempted {hit} without notice"

    def _drain(self, sight: Sight, host: int) -> str:
        hit = sight.hosts[host].slice_name
        self._cloud.preempt(hit, notice_s=self._pace.notice_s)
        return f"preempted {hit} with {self._pace.notice_s:g} s of notice"

    def _kill_driver(self, sight: Sight, host: int) -> str:
        found = drivers(self._ray.stack)
        for driver in found:
            driver.kill()
        return f"killed the step driver ({len(found)} process{'es' if len(found) != 1 else ''})"

    def _kill_head(self, sight: Sight, host: int) -> str:
        killed = self._ray.kill_head()
        self._ray.start_head()
        return f"killed the Ray head ({killed} processes) and started it again"

    def _hang(self, sight: Sight, host: int) -> str:
        hit = sight.hosts[host]
        os.kill(hit.pid, signal.SIGSTOP)
        return f"froze the training process of host {hit.worker} of {hit.slice_name}"

    def _stock_out(self, sight: Sight, host: int) -> str:
        self._cloud.stock_out(True)
        slices = [one["name"] for one in self._cloud.status()["slices"] if one["state"] == "READY"]
        for name in slices:
            self._cloud.preempt(name)
        self._undo_after(self._pace.stock_out_s, lambda: self._cloud.stock_out(False))
        return f"preempted {', '.join(slices)}, no capacity for {self._pace.stock_out_s:g} s"

    def _damage_checkpoint(self, sight: Sight, host: int) -> str:
        what = self._kill_slice(sight, host)  # first, so that no newer checkpoint follows
        damaged = damage_newest_checkpoint(self._prefix)
        return f"{what}, and {f'damaged {damaged}' if damaged else 'found no checkpoint to damage'}"

    def _store_outage(self, sight: Sight, host: int) -> str:
        storage = self._cloud.storage
        storage.failures = _ALL_REQUESTS
        self._undo_after(self._pace.outage_s, lambda: setattr(storage, "failures", 0))
        return f"Cloud Storage answers 503 for {self._pace.outage_s:g} s"

    def _undo_after(self, seconds: float, undo: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, undo)
        timer.daemon = True
        timer.start()
        self._outages.append((timer, undo))


def damage_newest_checkpoint(prefix: str) -> str | None:
    """Cut the largest file of the newest complete checkpoint below ``prefix`` in half; which file, if there is one."""
    from fsspec.core import url_to_fs

    fs, root = url_to_fs(prefix)
    fs.invalidate_cache()
    files: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    complete = {int(found[1]): posixpath.dirname(path) for path in files if (found := _CHECKPOINT.fullmatch(path))}
    if not complete:
        return None
    folder = complete[max(complete)]
    sizes = {path: about["size"] for path, about in files.items() if path.startswith(f"{folder}/")}
    largest = max(sizes, key=lambda path: (sizes[path], path))
    fs.pipe_file(largest, fs.cat_file(largest)[: sizes[largest] // 2])
    return f"{posixpath.basename(folder)}{largest[len(folder) :]}"
