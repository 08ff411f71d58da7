"""Log position of a trigger, saved so that a triggerer's end loses no line and repeats few.

The position is an XCom of the task: a trigger can access it, and Airflow deletes it before the next try. An XCom costs
the triggerer a request to its own API and a write to Airflow's database, so it is updated every ``SAVE_TO_AIRFLOW_S``
only. In between, the position is saved in a small file below Airflow's log folder: any process that can continue that
log can read the file as well. The file counts only together with the XCom of the same follower.

A position is saved only when Airflow has taken every line up to it out of the trigger process. A killed triggerer may
lose lines on their way, and those must be read again. After an orderly end, the last position is exact.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import secrets
import socket
import stat
import termios
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import conf
from airflow.sdk.execution_time.xcom import XCom

from tradewind.deployment.task_instances import TaskAddress

POSITION_KEY = "ray_log_place"
SAVE_INTERVAL_S = 0.5
SAVE_TO_AIRFLOW_S = 30.0
MAX_SAVES_PER_SECOND = 10
FILES = ".ray_log_places"
_OLD_S = 7 * 86400.0
_DRAIN_POLL_S = 0.01
_MAX_DRAIN_S = 5.0
_LAST_SAVE_TIMEOUT_S = 1.0
_next_slot_at = 0.0


@dataclass(frozen=True)
class SavedPosition:
    """Saved log position of a trigger.

    Attributes:
        job: The job of the log.
        position: The position in it, as JSON.
        is_exact: The trigger ended in order: no line after the position was given.
        follower: Unique ID of the trigger.
    """

    job: str
    position: Any
    is_exact: bool
    follower: str = ""


async def load_position(task: TaskAddress, job: str) -> SavedPosition | None:
    """Return the saved position in the log of ``job``; None for the first trigger of this task."""
    found = await XCom.aget_one(key=POSITION_KEY, **vars(task))
    if not found or found["job"] != job:
        return None
    position = SavedPosition(**found)
    return position if position.is_exact else await asyncio.to_thread(PositionFile(task).newer_than, position)


class PositionFile:
    """File with a follower's newest position, for its successor after a kill."""

    def __init__(self, task: TaskAddress) -> None:
        folder = Path(conf.get("logging", "base_log_folder"), FILES)
        name = hashlib.sha256(json.dumps(list(vars(task).values())).encode()).hexdigest()
        self._file = folder / f"{name}.json"

    def newer_than(self, position: SavedPosition) -> SavedPosition:
        """Return the last position that the follower of ``position`` wrote."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = SavedPosition(**json.loads(self._file.read_text(encoding="utf-8")))
            if (found.job, found.follower) == (position.job, position.follower) and position.follower:
                return found
        return position

    def write(self, position: SavedPosition) -> bool:
        """Save ``position``; return whether that succeeded."""
        own = self._file.with_suffix(f".{position.follower}")
        try:
            if not self._file.parent.exists():
                self._file.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(json.dumps(vars(position)), encoding="utf-8")
            own.replace(self._file)
        except OSError:
            return False
        return True

    def delete(self) -> None:
        """Delete the file, and files of other tasks that are a week old."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
            for file in self._file.parent.iterdir():
                if time.time() - file.stat().st_mtime > _OLD_S:
                    file.unlink(missing_ok=True)


async def save_position(task: TaskAddress, position: SavedPosition) -> bool:
    """Save ``position`` once Airflow has all lines logged before this call; return whether it did in time."""
    if not await _lines_are_taken():
        return False
    await XCom.aset(POSITION_KEY, vars(position), **vars(task))
    return True


async def wait_for_save_slot() -> None:
    """Wait for this trigger's slot: slots limit writes to Airflow's database over all triggers."""
    global _next_slot_at
    now = time.monotonic()
    _next_slot_at = max(now, _next_slot_at + 1 / MAX_SAVES_PER_SECOND)
    await asyncio.sleep(_next_slot_at - now)


class PositionSaver:
    """Saves the position of one follower: in the file at every change, with Airflow now and then.

    Args:
        task: The follower's task.
        save: Saves it with Airflow; returns whether that succeeded in time.
    """

    def __init__(
        self, task: TaskAddress, save: Callable[[TaskAddress, SavedPosition], Awaitable[bool]] = save_position
    ) -> None:
        self.follower = secrets.token_hex(8)
        self._task = task
        self._save = save
        self._file = PositionFile(task)
        self._in_airflow: SavedPosition | None = None
        self._saved_at = float("-inf")
        self._in_file: SavedPosition | None = None

    async def save(self, position: SavedPosition) -> None:
        """Save ``position`` if it is new; the first one goes to Airflow at once, for a successor."""
        if position != self._in_file and self._in_airflow is not None and await _lines_are_taken():
            self._in_file = position if await asyncio.to_thread(self._file.write, position) else None
        due_at = self._saved_at + (SAVE_TO_AIRFLOW_S if position == self._in_file else 0.0)
        if position != self._in_airflow and time.monotonic() >= due_at:
            await wait_for_save_slot()
            if await self._save(self._task, position):
                self._in_airflow, self._saved_at = position, time.monotonic()

    async def end(self) -> None:
        """Finish after the log's end. Wait for Airflow to take all lines: it closes the log with the trigger."""
        await _lines_are_taken()
        await asyncio.to_thread(self._file.delete)


async def save_last_position(task: TaskAddress, position: SavedPosition) -> None:
    """Save ``position`` while the triggerer shuts down: it still reads messages, but may not answer."""
    if await _lines_are_taken():
        sending = asyncio.ensure_future(XCom.aset(POSITION_KEY, vars(position), **vars(task)))
        await asyncio.wait({sending}, timeout=_LAST_SAVE_TIMEOUT_S)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _lines_are_taken() -> bool:
    """Return whether the log process has read all data of this process, within a few seconds."""
    for _ in range(round(_MAX_DRAIN_S / _DRAIN_POLL_S)):
        if not _unread_bytes():
            return True
        await asyncio.sleep(_DRAIN_POLL_S)
    return False


def _unread_bytes() -> int:
    """Return the unread bytes in this process's Unix sockets; Airflow's log channel is one of them."""
    count, unread = array.array("i", [0]), 0
    for descriptor in _unix_sockets():
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, count)  # SIOCOUTQ by its other name
        unread += count[0]
    return unread


@functools.cache
def _unix_sockets() -> tuple[int, ...]:
    """Return this process's Unix stream sockets. Those to Airflow's supervisor exist for its lifetime."""
    found = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue  # socket.socket() would refuse a copy of it and leave the copy open
            with socket.socket(fileno=os.dup(int(name))) as one:
                if (one.family, one.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and _is_connected(one):
                    found.append(int(name))
        except OSError:  # closed meanwhile
            continue
    return tuple(found)


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True
