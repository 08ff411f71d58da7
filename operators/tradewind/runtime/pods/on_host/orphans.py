"""Orphans: find and kill processes of earlier pods on a host before a new one starts, so that the chips are free.

Every process of a pod has a mark that names its host and its actor. It is an orphan when that actor is dead: an actor
kills its processes, unless it was killed itself. So no process of a live pod counts as one. On a real TPU host, any
other process that holds chips is an orphan too, since the pod has reserved all of them. Linux only.
"""

from __future__ import annotations

import glob
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

MARK: Final = "TRADEWIND_POD"
LOCKFILE: Final = "/tmp/libtpu_lockfile"
_KILL_TIMEOUT_S: Final = 10.0


def process_mark(host: str, pid: int) -> str:
    """Return the value of ``TRADEWIND_POD`` for the processes of the actor ``pid`` on ``host``."""
    return f"{host}/{pid}/{_started(pid)}"


def kill_orphans(host: str, *, holds_chips: bool) -> list[int]:
    """Kill the orphans of earlier pods on ``host``; return their pids."""
    return _kill(lambda pid: _is_orphan(pid, host, holds_chips))


def find_orphans(host: str, *, holds_chips: bool) -> list[int]:
    """Return the pids that ``kill_orphans`` would kill."""
    return [pid for pid in _pids() if _is_orphan(pid, host, holds_chips)]


def kill_marked(mark: str) -> list[int]:
    """Kill every process with this mark, in any session; return the pids."""
    return _kill(lambda pid: _mark(pid) == mark)


def remove_lockfile() -> str | None:
    """Remove libtpu's lock file: left by a killed process, it blocks the next one that needs the chips (jax#10192).

    Return a sentence if the file cannot be deleted, most likely because another user owns it.
    """
    try:
        os.unlink(LOCKFILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        return (
            f"tradewind: {LOCKFILE} on {socket.gethostname()} cannot be deleted: {error.strerror}. If the process "
            "finds its TPU in use, delete that file by hand."
        )
    return None


def chip_devices() -> list[str]:
    """Return the device files of this machine's TPU chips."""
    accel = [device for device in glob.glob("/dev/accel*") if not os.path.isdir(device)]
    return accel + glob.glob("/dev/vfio/[0-9]*")


def _kill(is_wanted: Callable[[int], bool]) -> list[int]:
    killed: list[int] = []
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (pids := [pid for pid in _pids() if is_wanted(pid)]) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed += [pid for pid in pids if pid not in killed]
        time.sleep(0.02)
    return killed


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid())


def _is_orphan(pid: int, host: str, holds_chips: bool) -> bool:
    """Whether the process has the mark of a dead actor of this host, or holds chips without that of a live one."""
    mark = _mark(pid) or ""
    _, _, actor = mark.partition("/")
    actor_pid, _, started = actor.partition("/")
    if started and _started(int(actor_pid)) == started:
        return False
    return mark.startswith(f"{host}/") or (holds_chips and _has_chips(pid))


def _mark(pid: int) -> str | None:
    """Return the mark of a live process; None without one, or if another user owns the process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            for entry in environ.read().split(b"\0"):
                if entry.startswith(f"{MARK}=".encode()):
                    return entry.partition(b"=")[2].decode(errors="replace") if _started(pid) else None
    except OSError:
        return None
    return None


def _started(pid: int) -> str:
    """Return when the process started, in ticks, which distinguishes reused pids; "" if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _has_chips(pid: int) -> bool:
    chips = set(chip_devices())
    try:
        return any(os.readlink(link) in chips for link in glob.glob(f"/proc/{pid}/fd/*"))
    except OSError:
        return False
