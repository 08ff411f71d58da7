"""The log of a running job as it comes, over Ray's websocket.

The stream begins at the log's first byte whenever it is opened, and may end although the job goes on: then it is
opened again, and what was taken before is passed over. It ends for ever at the same place when the log holds bytes
that are no UTF-8; it is then tried ever more rarely, and the reading after the job's end brings the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow.watch import WatchedJob
from tradewind.ray_jobs.logs.lines import JobLog

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
VAIN_READINGS = 5
"""So many readings in a row that bring nothing new, and the reader is told."""
_TOUCH_S = 5.0
PAUSE_S = 1.25
"""Ray's stream tells 2 to 4 s late that the job has ended, and brings the lines of a busy job every second. So a longer
pause in them may be the end, and is worth a look."""
PAUSES_EVERY_S = (5.0, 60.0)
"""Of a job that pauses often, so seldom at first, and in the end: else its looks would cost more than a poll does."""
_QUIET_S = 20.0
"""A stream that was open for so long has not failed, though its job may have written nothing."""


@asynccontextmanager
async def tailing(watched: WatchedJob, log: JobLog, notice: Callable[[str], None]) -> AsyncIterator[None]:
    """Meanwhile the job's log is read into ``log``; an error that is no connection trouble reaches ``watched``."""
    task = asyncio.create_task(_tail(watched, log, notice))
    task.add_done_callback(lambda done: _pass_on(done, watched))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _pass_on(done: asyncio.Task[None], watched: WatchedJob) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        watched.fail(error)


async def _tail(watched: WatchedJob, log: JobLog, notice: Callable[[str], None]) -> None:
    vain = 0
    while not log.is_cut:
        while watched.outage:
            await asyncio.sleep(FIRST_PAUSE_S)
            vain = 0
        before, opened = log.taken_chars, time.monotonic()
        with contextlib.suppress(RayUnreachableError):  # the watcher tells of it
            await _read(watched, log)
        log.flush()  # who reads it need not wait until the stream is open again
        went_well = log.taken_chars > before or time.monotonic() - opened > _QUIET_S
        vain = 0 if went_well else vain + 1
        if vain <= 1:
            watched.hurry()  # the job may have ended
        if vain == VAIN_READINGS:
            notice(
                f"The log of Ray job {watched.job} cannot be followed beyond its character {before:,}: Ray ends the "
                "stream there each time, as it does at bytes that are no UTF-8. The rest follows after the job's end."
            )
        await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** max(0, vain - 1), LONGEST_PAUSE_S))


async def touch(watched: WatchedJob) -> None:
    """Open the job's log for a moment.

    A head that comes back from its stored state looks after the jobs in it only when somebody asks for the log of
    one; until then they seem to run although they are dead.
    """
    with contextlib.suppress(RayUnreachableError, TimeoutError):
        async with watched.api.websocket(f"/api/jobs/{watched.job}/logs/tail") as stream:
            await stream.receive(_TOUCH_S)


async def _read(watched: WatchedJob, log: JobLog) -> None:
    """One reading, to its end."""
    log.begin()
    async with watched.api.websocket(f"/api/jobs/{watched.job}/logs/tail") as stream:
        with watched.streamed():
            await _read_stream(stream, watched, log)


async def _read_stream(stream: aiohttp.ClientWebSocketResponse, watched: WatchedJob, log: JobLog) -> None:
    pauses = _Pauses()
    while not log.is_cut:
        waits = [wait_s for wait_s in (log.wait_s(), pauses.wait_s()) if wait_s is not None]
        try:
            message = await stream.receive(min(waits, default=None))
        except TimeoutError:
            log.tick()
            if pauses.is_one_to_look_at():
                watched.look()
            continue
        if message.type is not aiohttp.WSMsgType.TEXT:
            return
        watched.has_line()
        pauses.end()
        log.read(message.data)


class _Pauses:
    """The pauses between a stream's lines: which of them is long enough, and the first in a while."""

    def __init__(self) -> None:
        self._due_at: float | None = None
        self._next_at = float("-inf")
        self._every_s = PAUSES_EVERY_S[0]

    def end(self) -> None:
        """Lines have come."""
        now = time.monotonic()
        self._due_at = now + PAUSE_S if now >= self._next_at else None

    def wait_s(self) -> float | None:
        """After how long this one should be looked at if nothing comes; None: not at all."""
        return None if self._due_at is None else max(0.01, self._due_at - time.monotonic())

    def is_one_to_look_at(self) -> bool:
        """Whether that time has come; true once."""
        now = time.monotonic()
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at, self._next_at = None, now + self._every_s
        self._every_s = min(2 * self._every_s, PAUSES_EVERY_S[1])
        return True
