"""Find the processes of a test by an environment variable or by their parent."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


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
    return [pid for pid in pids if _status(pid) not in (None, psutil.STATUS_ZOMBIE)]


def _status(pid: int) -> str | None:
    try:
        return psutil.Process(pid).status()
    except psutil.Error:
        return None
