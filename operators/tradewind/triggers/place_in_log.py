"""A trigger's place in its job's log, kept so that a triggerer's end neither loses a line nor repeats many.

The place is an XCom of the task, because that is what a trigger can reach and what Airflow wipes for the next try. It
is written only when Airflow has taken every line up to it out of the trigger process: a triggerer that is killed may
take lines with it that were on their way, and those must come again. On an orderly end the last place is exact.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import functools
import os
import socket
import termios
import time
from dataclasses import dataclass
from typing import Any

from airflow.sdk.execution_time.xcom import XCom

PLACE_KEY = "ray_log_place"
SAVE_INTERVAL_S = 0.5
MOST_SAVES_PER_SECOND = 10
_DRAIN_POLL_S = 0.01
_LONGEST_DRAIN_S = 5.0
_LAST_ANSWER_S = 1.0
_next_turn = 0.0


@dataclass(frozen=True)
class TaskAddress:
    """Which task instance an XCom belongs to."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclass(frozen=True)
class Place:
    """Where a trigger was.

    Attributes:
        job: The job whose log it read.
        position: The position in it, as JSON.
        is_exact: It was left in order: no line after it was given.
    """

    job: str
    position: Any
    is_exact: bool


async def load_place(task: TaskAddress, job: str) -> Place | None:
    """Where the last trigger of this task was in the log of ``job``; None when it is the first."""
    found = await XCom.aget_one(key=PLACE_KEY, **vars(task))
    return Place(**found) if found and found["job"] == job else None


async def save_place(task: TaskAddress, place: Place) -> bool:
    """Write ``place`` down once Airflow has all lines that were logged before this call; whether it did in time."""
    if not await _lines_are_taken():
        return False
    await XCom.aset(PLACE_KEY, vars(place), **vars(task))
    return True


async def turn_to_save() -> None:
    """Wait until it is this trigger's turn: Airflow's database is not asked more often, however many triggers save."""
    global _next_turn
    now = time.monotonic()
    _next_turn = max(now, _next_turn + 1 / MOST_SAVES_PER_SECOND)
    await asyncio.sleep(_next_turn - now)


async def save_last_place(task: TaskAddress, place: Place) -> None:
    """The same while the triggerer shuts down: it still reads what we send, but may not answer any more."""
    if await _lines_are_taken():
        sending = asyncio.ensure_future(XCom.aset(PLACE_KEY, vars(place), **vars(task)))
        await asyncio.wait({sending}, timeout=_LAST_ANSWER_S)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _lines_are_taken() -> bool:
    """Whether the process that keeps the logs has read all that this process has sent to it, within a few seconds."""
    for _ in range(round(_LONGEST_DRAIN_S / _DRAIN_POLL_S)):
        if not _unread_bytes():
            return True
        await asyncio.sleep(_DRAIN_POLL_S)
    return False


def _unread_bytes() -> int:
    """How much the other ends of this process's Unix sockets have yet to read; Airflow's log channel is one of them."""
    count, unread = array.array("i", [0]), 0
    for descriptor in _unix_sockets():
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, count)  # SIOCOUTQ by its other name
        unread += count[0]
    return unread


@functools.cache
def _unix_sockets() -> tuple[int, ...]:
    """The Unix stream sockets of this process. Those to Airflow's supervisor are there from its start to its end."""
    found = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if (one.family, one.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and _is_connected(one):
                    found.append(int(name))
        except OSError:  # no socket, or closed meanwhile
            continue
    return tuple(found)


def _is_connected(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True
