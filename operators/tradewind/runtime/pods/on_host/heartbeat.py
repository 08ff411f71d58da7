"""Heartbeats: a process writes once a second that it is alive and which step it has reached; stalls show by them.

The training process writes into a page of memory that its host's actor created and reads, so a full or slow disk does
not matter. Times are of the boot clock, which includes suspended time. This module runs in the user's process and needs
only the standard library.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tradewind.machine import boot_time

HEARTBEAT_VARIABLE: Final = "TRADEWIND_HEARTBEAT_FILE"
MEMORY_NAME: Final = "tradewind-heartbeat"
"""Name of the page of memory in ``/proc/PID/fd``."""
_PAGE_BYTES: Final = 4096
_IDENTITY: Final = {"rank": "TRADEWIND_PROCESS_ID", "processes": "TRADEWIND_NUM_PROCESSES"}
"""Field of the page -> variable, so that a user who inspects the host can identify the process."""
_EVERY_S: Final = 1.0
_MIN_INTERVAL_S: Final = 0.1  # so that quick steps cost nothing


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a process."""

    alive_at: float
    step: int | None = None
    """None before the first step, and for ever in a function without steps."""
    step_at: float | None = None
    """When the step finished; before the first one, since when it is expected, if it is."""
    saved: int | None = None
    """The step of the newest complete checkpoint, if this process reports it."""

    def on_clock(self, host_now: float, now: float) -> Beat:
        """Convert to another clock, which shows ``now`` when the host's shows ``host_now``."""
        offset = now - host_now
        step_at = None if self.step_at is None else self.step_at + offset
        return replace(self, alive_at=self.alive_at + offset, step_at=step_at)


class _Heartbeat:
    """The heartbeat of this process."""

    def __init__(self, path: str) -> None:
        self._page = _open_page(path)
        self._lock = threading.Lock()
        self._step: int | None = None
        self._step_at: float | None = None
        self._saved: int | None = None
        self._written_at = 0.0
        self._identity = {"pid": os.getpid(), **{field: os.environ.get(name) for field, name in _IDENTITY.items()}}
        threading.Thread(target=self._run, daemon=True, name="heartbeat").start()

    def step(self, step: int) -> None:
        now = boot_time()
        self._step, self._step_at = step, now
        if now - self._written_at >= _MIN_INTERVAL_S:
            self._write(now)

    def expect_steps(self) -> None:
        if self._step_at is None:
            self._step_at = boot_time()
            self._write(self._step_at)

    def saved(self, step: int) -> None:
        self._saved = step
        self._write(boot_time())

    def _run(self) -> None:
        while True:
            self._write(boot_time())
            time.sleep(_EVERY_S)

    def _write(self, now: float) -> None:
        with self._lock:
            self._written_at = now
            state = {"alive_at": now, "step": self._step, "step_at": self._step_at, "saved": self._saved}
            text = json.dumps({**state, **self._identity})
            record = f"{text}\n{zlib.crc32(text.encode()):08x}\n".encode()  # the checksum shows a partial record
            self._page[: len(record)] = record


def _open_page(path: str) -> mmap.mmap:
    """Map the page at ``path``, which the host's actor reads. It is allocated before the first write."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < _PAGE_BYTES:
            os.posix_fallocate(descriptor, 0, _PAGE_BYTES)
        return mmap.mmap(descriptor, _PAGE_BYTES)
    finally:
        os.close(descriptor)


class BeatPage:
    """The page of memory of one process, created by the host's actor; it is freed when both have ended."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create(MEMORY_NAME)
        os.posix_fallocate(self._descriptor, 0, _PAGE_BYTES)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        """The path by which a process of the same user opens it."""

    def read(self) -> Beat | None:
        """Return the last heartbeat; None before the first, and after ``close``."""
        return read_beat(self.path)

    def close(self) -> None:
        """Stop reading; does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.path = -1, ""


_own: _Heartbeat | None = None


def start_heartbeat() -> None:
    """Start the heartbeat of this process; does nothing outside a pod, or the second time."""
    global _own
    path = os.environ.get(HEARTBEAT_VARIABLE)
    if path and _own is None:
        with suppress(OSError):  # the actor is gone, and its guard kills this process too
            _own = _Heartbeat(path)


def expect_steps() -> None:
    """Report that steps follow. From now on, the driver ends a pod without steps after its stall limit."""
    start_heartbeat()
    if _own is not None:
        _own.expect_steps()


def beat(step: int) -> None:
    """Report that ``step`` is finished, which implies ``expect_steps``. It may be a number of NumPy or JAX."""
    start_heartbeat()
    if _own is not None:
        _own.step(int(step))


def saved(step: int) -> None:
    """Report a complete checkpoint of ``step``: the same failure before and after it may be retried once more."""
    start_heartbeat()
    if _own is not None:
        _own.saved(int(step))


def read_beat(path: str) -> Beat | None:
    """Return the last heartbeat in ``path``; None before the first, or during a write."""
    try:
        with open(path) as file:
            text, _, rest = file.read(_PAGE_BYTES).partition("\n")
        if int(rest[:8], 16) != zlib.crc32(text.encode()):
            return None
        fields = json.loads(text)
        values = [fields[name] for name in ("alive_at", "step", "step_at", "saved")]
        is_valid = all(value is None or type(value) in (int, float) for value in values) and values[0] is not None
        return Beat(*values) if is_valid else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def find_stalled_host(
    beats: Mapping[int, Beat | None], now: float, frozen_s: float, stall_s: float
) -> tuple[int, float] | None:
    """Return the rank that stalls the pod, and for how many seconds; None if there is none.

    ``beats`` are those of the running processes by rank, all on the clock that shows ``now``. A process without a
    heartbeat for ``frozen_s`` is frozen. When a process has finished no step for ``stall_s``, the one with the lowest
    step stalls the others, which wait for it in the next collective.
    """
    known = {rank: beat for rank, beat in beats.items() if beat is not None}
    frozen = {rank: now - beat.alive_at for rank, beat in known.items() if now - beat.alive_at > frozen_s}
    if frozen:
        rank = max(frozen, key=lambda each: frozen[each])
        return rank, frozen[rank]
    since = {rank: now - beat.step_at for rank, beat in known.items() if beat.step_at is not None}
    if not since or max(since.values()) <= stall_s:
        return None
    steps = {rank: -1 if beat.step is None else beat.step for rank, beat in known.items()}
    slowest = min(known, key=lambda rank: (steps[rank], -since.get(rank, 0.0), rank))
    return slowest, since.get(slowest, max(since.values()))
