"""A process says once a second that it lives, and which step it has reached; who stands still is found by that.

The training process writes into a page of memory that its host's actor has made and reads: a disk that is full or slow
has no part in it. Times are of the boot clock, which counts suspended time too. Standard library only: this runs inside
the user's process.
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
"""What ``/proc/PID/fd`` calls the page of memory."""
_PAGE_BYTES: Final = 4096
_PLACE: Final = {"rank": "TRADEWIND_PROCESS_ID", "processes": "TRADEWIND_NUM_PROCESSES"}
"""Field of the file -> variable: who looks from outside finds there whose beat it is."""
_EVERY_S: Final = 1.0
_AT_MOST_EVERY_S: Final = 0.1  # so that quick steps cost nothing


@dataclass(frozen=True)
class Beat:
    """What a process last said of itself."""

    alive_at: float
    step: int | None = None
    """None before the first step, and for ever in a function that counts none."""
    step_at: float | None = None
    """When it was done; before the first step, since when that is expected, if it is."""
    saved: int | None = None
    """The step of the newest complete checkpoint, if this process is the one that says so."""

    def on_clock(self, host_now: float, now: float) -> Beat:
        """The same on another clock, which shows ``now`` when the host's shows ``host_now``."""
        moved = now - host_now
        step_at = None if self.step_at is None else self.step_at + moved
        return replace(self, alive_at=self.alive_at + moved, step_at=step_at)


class _Heartbeat:
    """The one of this process."""

    def __init__(self, path: str) -> None:
        self._page = _open_page(path)
        self._lock = threading.Lock()
        self._step: int | None = None
        self._step_at: float | None = None
        self._saved: int | None = None
        self._written_at = 0.0
        self._who = {"pid": os.getpid(), **{field: os.environ.get(name) for field, name in _PLACE.items()}}
        threading.Thread(target=self._run, daemon=True, name="heartbeat").start()

    def step(self, step: int) -> None:
        now = boot_time()
        self._step, self._step_at = step, now
        if now - self._written_at >= _AT_MOST_EVERY_S:
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
            said = {"alive_at": now, "step": self._step, "step_at": self._step_at, "saved": self._saved}
            record = _record(json.dumps({**said, **self._who}))
            self._page[: len(record)] = record


def _open_page(path: str) -> mmap.mmap:
    """The page that is shared with whoever reads ``path``. It is there before it is written to."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < _PAGE_BYTES:
            os.posix_fallocate(descriptor, 0, _PAGE_BYTES)
        return mmap.mmap(descriptor, _PAGE_BYTES)
    finally:
        os.close(descriptor)


def _record(text: str) -> bytes:
    """``text`` in its first line, and in the second what tells a reader that it has seen the whole of it."""
    return f"{text}\n{zlib.crc32(text.encode()):08x}\n".encode()


class BeatPage:
    """The page of memory of one process, in the hands of the host's actor; it goes when both are gone."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create(MEMORY_NAME)
        os.posix_fallocate(self._descriptor, 0, _PAGE_BYTES)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        """Where the process of the same user opens it."""

    def read(self) -> Beat | None:
        """What the process last said; None before its first word, and after ``close``."""
        return read_beat(self.path)

    def close(self) -> None:
        """Read no more; does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.path = -1, ""


_mine: _Heartbeat | None = None


def start_heartbeat() -> None:
    """Say once a second that this process lives; does nothing outside a pod, or the second time."""
    global _mine
    path = os.environ.get(HEARTBEAT_VARIABLE)
    if path and _mine is None:
        with suppress(OSError):  # whoever made the page is gone, and ends this process too
            _mine = _Heartbeat(path)


def expect_steps() -> None:
    """Say that steps follow from here. From now on, a pod whose steps do not come is ended after its stall limit."""
    start_heartbeat()
    if _mine is not None:
        _mine.expect_steps()


def beat(step: int) -> None:
    """Say that ``step`` is done, which implies ``expect_steps``. It may be of NumPy or JAX."""
    start_heartbeat()
    if _mine is not None:
        _mine.step(int(step))


def saved(step: int) -> None:
    """Say that a complete checkpoint has ``step``: what fails alike before and after it may be tried once more."""
    start_heartbeat()
    if _mine is not None:
        _mine.saved(int(step))


def read_beat(path: str) -> Beat | None:
    """What the process that writes to ``path`` last said; None before its first word, or in the middle of one."""
    try:
        with open(path) as file:
            text, _, rest = file.read(_PAGE_BYTES).partition("\n")
        if int(rest[:8], 16) != zlib.crc32(text.encode()):
            return None
        found = json.loads(text)
        said = [found[name] for name in ("alive_at", "step", "step_at", "saved")]
        is_typed = all(value is None or type(value) in (int, float) for value in said) and said[0] is not None
        return Beat(*said) if is_typed else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def find_stalled_host(
    beats: Mapping[int, Beat | None], now: float, frozen_s: float, stall_s: float
) -> tuple[int, float] | None:
    """The rank that holds up the pod, and for how many seconds; None while all is well.

    ``beats`` are those of the processes that still run, by rank, all on the clock that shows ``now``. A process that
    has not said that it lives for ``frozen_s`` is frozen. When some process has made no step for ``stall_s``, the one
    with the lowest step holds up the others: they reached the next collective and wait in it.
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
