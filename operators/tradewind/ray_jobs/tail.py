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
from tradewind.ray_jobs.log_lines import JobLog
from tradewind.ray_jobs.watch import WatchedJob

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
VAIN_READINGS = 5
"""So many readings in a row that bring nothing new, and the reader is told."""
_TOUCH_S = 5.0
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
        if watched.outage:
            await _until_it_answers(watched)
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


async def _until_it_answers(watched: WatchedJob) -> None:
    while watched.outage:
        await asyncio.sleep(FIRST_PAUSE_S)


async def _read(watched: WatchedJob, log: JobLog) -> None:
    """One reading, to its end."""
    log.begin()
    async with watched.api.websocket(f"/api/jobs/{watched.job}/logs/tail") as stream:
        with watched.streamed():
            await _read_stream(stream, watched, log)


async def _read_stream(stream: aiohttp.ClientWebSocketResponse, watched: WatchedJob, log: JobLog) -> None:
    while not log.is_cut:
        try:
            message = await stream.receive(log.wait_s())
        except TimeoutError:
            log.tick()
            continue
        if message.type is not aiohttp.WSMsgType.TEXT:
            return
        watched.has_line()
        log.read(message.data)
