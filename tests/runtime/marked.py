"""Find the processes of a test by an environment variable or by their parent, and read what a guard has noted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import psutil

from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import ENDED, guard_offset

MARK = "RUNTIME_TEST"
"""Environment variable of the processes that the fixture ``mark`` kills."""


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Return the live processes whose environment has ``variable`` with this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(variable) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found


def descendants_named(name: str, pid: int | None = None) -> list[psutil.Process]:
    """Return the descendants of a process, by default this one, that have this name.

    Descendants that exit during the search are skipped.
    """
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == name:
                found.append(process)
    return found


def alive(pids: Iterable[int]) -> list[int]:
    """Return the processes that are alive; zombies count as dead."""
    left = []
    for pid in pids:
        with suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                left.append(pid)
    return left


def fencing_time(deadline: LeaseDeadline, guard: int) -> float | None:
    """Return the time from which this guard's exit counts as fencing.

    The time is infinite before the guard reads a deadline, and None before the guard writes a note.
    """
    noted = os.pread(deadline.descriptor, ENDED.size, guard_offset(guard))
    return float(ENDED.unpack(noted)[0]) if noted else None
