"""Observe the training on this machine from outside, by the heartbeats of its processes.

A heartbeat names its process and the last completed step. No process is queried, and heartbeats of dead processes are
ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from tradewind.rehearsal.local.processes import SCRATCH_SUFFIX, LocalStack
from tradewind.runtime.pods.on_host.heartbeat import MEMORY_NAME

_BEATS: Final = "*/session_*/pod-*/heartbeat.json"
"""Pattern below a cluster's temporary folder, with a folder per node. The files link to memory pages."""
_GUARD: Final = "process_guard.py"
_DRIVER: Final = "tradewind.runtime.run_step"
POLL_S: Final = 0.2


class DrillTimeoutError(RuntimeError):
    """An event that a drill waited for did not occur in time."""


@dataclass(frozen=True)
class TrainingHost:
    """The training process of one host."""

    slice_name: str
    worker: int
    rank: int
    pid: int
    started: float
    step: int | None
    """The last completed step; None before the first."""
    step_at: float | None
    """Time of that step, in seconds since the epoch."""


@dataclass(frozen=True)
class TrainingSnapshot:
    """All hosts of the training pod, by rank; empty without a pod, or while hosts are missing."""

    hosts: tuple[TrainingHost, ...] = ()

    @property
    def step(self) -> int | None:
        """The step that every host has completed."""
        steps = [host.step for host in self.hosts]
        return None if not steps or None in steps else min(step for step in steps if step is not None)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(host.pid for host in self.hosts)

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host.slice_name for host in self.hosts))

    def is_successor_of(self, before: TrainingSnapshot) -> bool:
        """Whether these are other processes, and all of them have started to train."""
        return self.step is not None and not self.pids & before.pids


def observe_training(stack: LocalStack) -> TrainingSnapshot:
    """Return the training pod among the processes of ``stack``."""
    found: dict[int, TrainingHost] = {}
    size = 0
    for file in _beat_files(stack):
        try:
            beat = json.loads(file.read_text().partition("\n")[0])
            host = _host(stack, beat)
            of = int(beat["processes"])
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            continue  # of a dead process, or of one outside a pod
        if host.rank not in found or host.started > found[host.rank].started:
            found[host.rank], size = host, of
    return (
        TrainingSnapshot(tuple(found[rank] for rank in sorted(found)))
        if found and len(found) == size
        else TrainingSnapshot()
    )


def drivers(stack: LocalStack) -> list[psutil.Process]:
    """Return the step drivers among the processes of ``stack``."""
    return [process for process in stack.processes() if _runs(process, _DRIVER)]


def _beat_files(stack: LocalStack) -> set[Path]:
    links = [*stack.root.glob(f"*{SCRATCH_SUFFIX}"), *stack.root.glob(f"*/*{SCRATCH_SUFFIX}")]
    found = {file for link in links for file in link.readlink().resolve().glob(_BEATS)}
    return {file for file in found if _is_page(file)}


def _is_page(file: Path) -> bool:
    """Whether ``file`` still leads to a memory page: the ID of a dead process may be reused.

    The new process may have a pipe there, on which a reader would block forever.
    """
    try:
        return os.readlink(file.readlink()).startswith(f"/memfd:{MEMORY_NAME}")
    except OSError:
        return False


def _host(stack: LocalStack, beat: Mapping[str, Any]) -> TrainingHost:
    """Return the host of a heartbeat, whose times are of the boot clock."""
    process = psutil.Process(int(beat["pid"]))
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if not stack.owns(process) or process.create_time() > beat["alive_at"] + boot:
        raise psutil.NoSuchProcess(process.pid)
    env = process.environ()
    step_at = beat["step_at"]
    return TrainingHost(
        slice_name=env["TPU_NAME"],
        worker=int(env["TPU_WORKER_ID"]),
        rank=int(beat["rank"]),
        pid=process.pid,
        started=process.create_time(),
        step=beat["step"],
        step_at=None if step_at is None else step_at + boot,
    )


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        words = process.cmdline()
        return module in words and not any(os.path.basename(word) == _GUARD for word in words)
    except psutil.Error:
        return False
