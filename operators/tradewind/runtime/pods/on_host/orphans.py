"""Before a host starts a process, those of earlier pods are gone from it, and the chips with them.

Every process of a pod carries a mark that names its host and the actor that started it. It is a stray when that actor
lives no more: an actor ends its processes, unless it was killed itself. So no process of a live pod is ever taken for
one. On a real TPU host, whoever else holds the chips is a stray too: they are all ours while the slice is. Linux only.
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
_PATIENCE_S: Final = 10.0


def process_mark(host: str, pid: int) -> str:
    """What the processes of the actor ``pid`` on ``host`` carry in ``TRADEWIND_POD``."""
    return f"{host}/{pid}/{_started(pid)}"


def kill_orphans(host: str, *, holds_chips: bool) -> list[int]:
    """End what earlier pods left behind on ``host``; returns the pids."""
    return _end(lambda pid: _is_left_behind(pid, host, holds_chips))


def find_orphans(host: str, *, holds_chips: bool) -> list[int]:
    """The pids that ``kill_orphans`` would end."""
    return [pid for pid in _pids() if _is_left_behind(pid, host, holds_chips)]


def kill_marked(mark: str) -> list[int]:
    """End every process that carries this mark, in whatever session it is."""
    return _end(lambda pid: _mark(pid) == mark)


def remove_lockfile() -> str | None:
    """Left behind by a killed process, it blocks the next one that wants the chips (jax#10192).

    Returns a sentence if it is there and cannot be deleted, most likely because it is another user's.
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
    """The device files of this machine's TPU chips."""
    accel = [device for device in glob.glob("/dev/accel*") if not os.path.isdir(device)]
    return accel + glob.glob("/dev/vfio/[0-9]*")


def _end(is_wanted: Callable[[int], bool]) -> list[int]:
    ended: list[int] = []
    deadline = time.monotonic() + _PATIENCE_S
    while (found := [pid for pid in _pids() if is_wanted(pid)]) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended += [pid for pid in found if pid not in ended]
        time.sleep(0.02)
    return ended


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid())


def _is_left_behind(pid: int, host: str, holds_chips: bool) -> bool:
    return _is_orphan(pid, host) or (holds_chips and _has_chips(pid) and not _is_of_a_live_pod(pid))


def _is_orphan(pid: int, host: str) -> bool:
    mark = _mark(pid)
    return mark is not None and mark.startswith(f"{host}/") and not _has_live_actor(mark)


def _is_of_a_live_pod(pid: int) -> bool:
    mark = _mark(pid)
    return mark is not None and _has_live_actor(mark)


def _has_live_actor(mark: str) -> bool:
    _, _, actor = mark.partition("/")
    pid, _, started = actor.partition("/")
    return bool(started) and _started(int(pid)) == started


def _mark(pid: int) -> str | None:
    """The mark of a live process; None if it has none, or is not ours to look at."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            for entry in environ.read().split(b"\0"):
                if entry.startswith(f"{MARK}=".encode()):
                    return entry.partition(b"=")[2].decode(errors="replace") if _started(pid) else None
    except OSError:
        return None
    return None


def _started(pid: int) -> str:
    """When the process started, in ticks, which tells it from another of the same pid; "" if it is over."""
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
