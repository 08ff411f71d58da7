"""Read a job's log: over Ray's websocket while the job runs, then from its start to its end.

The stream begins at the log's first byte whenever it is opened, and may end while the job continues. It is then
reopened, and lines taken before are skipped. A log with bytes that are no UTF-8 ends every stream at the same place;
retries become less and less frequent, and the reading after the job's end returns the rest.

``GET …/logs`` returns the log as one JSON string, and fails for bytes that are no UTF-8. Ray's State API, which returns
the raw file, is the fallback. Either way only a small part is in memory at a time.

After the job has ended, one reading returns the missing lines, the last lines and the result.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import job_path
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow.log_lines import JobLog, LineReader, LogPosition, ProgressBarState, parse_progress_bar
from tradewind.ray_jobs.follow.poller import WatchedJob

LAST_LINES = 50
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
MAX_EMPTY_READS = 5
"""Readings in a row without new lines after which the reader is informed."""
_TOUCH_S = 5.0
PAUSE_S = 1.25
"""A longer pause in the lines may mean that the job has ended, so it triggers a poll.

Ray's stream reports the end 2 to 4 s late, and returns the lines of a busy job every second.
"""
PAUSES_EVERY_S = (5.0, 60.0)
"""First and final interval of such polls for a job that pauses often; more would cost more than polling."""
_QUIET_S = 20.0
"""A stream that was open for so long has not failed, even without lines."""
_PIECE_BYTES = 64 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=120.0)
_MAX_LINE_CHARS = 2000
_RETRY_PAUSES_S = (1.0, 3.0, 0.0)
"""Pauses between readings of the log of an ended job."""


@asynccontextmanager
async def tailing(watched: WatchedJob, log: JobLog, notice: Callable[[str], None]) -> AsyncIterator[None]:
    """Read the job's log into ``log`` meanwhile; all but connection errors reach ``watched``."""
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
    empty_reads = 0
    while not log.is_cut:
        while watched.outage:
            await asyncio.sleep(FIRST_PAUSE_S)
            empty_reads = 0
        before, opened = log.taken_chars, time.monotonic()
        with contextlib.suppress(RayUnreachableError):  # the watcher reports it
            await _read(watched, log)
        log.flush()  # lines are given before the stream is reopened
        went_well = log.taken_chars > before or time.monotonic() - opened > _QUIET_S
        empty_reads = 0 if went_well else empty_reads + 1
        if empty_reads <= 1:
            watched.poll_soon()  # the job may have ended
        if empty_reads == MAX_EMPTY_READS:
            notice(
                f"The log of Ray job {watched.job} cannot be followed beyond its character {before:,}: Ray ends the "
                "stream there each time, as it does at bytes that are not UTF-8. The rest follows after the job's end."
            )
        await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** max(0, empty_reads - 1), MAX_PAUSE_S))


async def touch(watched: WatchedJob) -> None:
    """Open the job's log for a moment.

    A head restored from stored state checks its jobs only once a client requests the log of one. Until then dead jobs
    appear to run.
    """
    with contextlib.suppress(RayUnreachableError, TimeoutError):
        async with watched.api.websocket(f"{job_path(watched.job)}/logs/tail") as stream:
            await stream.receive(_TOUCH_S)


async def _read(watched: WatchedJob, log: JobLog) -> None:
    """Read the stream once, to its end."""
    log.begin()
    pauses = _Pauses()
    async with watched.api.websocket(f"{job_path(watched.job)}/logs/tail") as stream:
        with watched.streamed():
            while not log.is_cut:
                waits = [wait_s for wait_s in (log.wait_s(), pauses.wait_s()) if wait_s is not None]
                try:
                    message = await stream.receive(min(waits, default=None))
                except TimeoutError:
                    log.tick()
                    if pauses.is_long_now():
                        watched.refresh_soon()
                    continue
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return
                watched.record_line()
                pauses.end()
                log.read(message.data)


class _Pauses:
    """Pauses between a stream's lines: detects long ones, at a limited rate."""

    def __init__(self) -> None:
        self._due_at: float | None = None
        self._next_at = float("-inf")
        self._every_s = PAUSES_EVERY_S[0]

    def end(self) -> None:
        """Note that lines have come."""
        now = time.monotonic()
        self._due_at = now + PAUSE_S if now >= self._next_at else None

    def wait_s(self) -> float | None:
        """Return the delay after which this pause is long; None: no poll is due."""
        return None if self._due_at is None else max(0.01, self._due_at - time.monotonic())

    def is_long_now(self) -> bool:
        """Return whether the pause is long now; true once."""
        now = time.monotonic()
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at, self._next_at = None, now + self._every_s
        self._every_s = min(2 * self._every_s, PAUSES_EVERY_S[1])
        return True


_OPENING = re.compile(r'\s*\{\s*"logs"\s*:\s*"')
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(
    rf"""(?:
        [^"\\]+
      | \\[^u]
      | \\u(?![dD][89abAB])[0-9a-fA-F]{{4}}
      | {_HIGH}(?:{_LOW} | (?=[^\\] | \\[^u] | \\u(?![dD][c-fC-F])[0-9a-fA-F]{{4}}))
    )*""",
    re.VERBOSE,
)
"""Characters and escapes that decode without lookahead: a surrogate pair stays together."""


class JsonLogDecoder:
    """Decodes ``{"logs": "..."}`` piece by piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._held = ""
        self._is_open = False
        self.has_ended = False
        """Whether the string's closing quote was read: without it the log is truncated."""

    def text(self, body: bytes) -> str:
        """Return the text that ``body``, the next bytes of the response, adds.

        Raises:
            ValueError: It is not this JSON.
        """
        self._held += self._decoder.decode(body)
        if self.has_ended or not (self._is_open or self._open()):
            return ""
        whole = _WHOLE.match(self._held)
        assert whole is not None, "it matches nothing at all, too"
        self._held = self._held[whole.end() :]
        self.has_ended = self._held.startswith('"')
        text: str = json.loads(f'"{whole[0]}"', strict=False)
        return text

    def _open(self) -> bool:
        opening = _OPENING.match(self._held)
        if opening:
            self._held = self._held[opening.end() :]
            self._is_open = True
        elif len(self._held) > 100:
            raise ValueError(f"no log in a response that begins with {self._held[:100]!r}")
        return self._is_open


async def whole_log(api: JobsApi, job: JobDetails) -> AsyncIterator[str]:
    """Yield the whole log of ``job`` in pieces; nothing if the cluster has no such log.

    Raises:
        RayUnreachableError: It cannot be read, or not to its end.
        RayAuthenticationError: The cluster refuses the token.
    """
    decoder = JsonLogDecoder()
    async with api.request("GET", f"{job_path(job.job)}/logs", timeout=_TIMEOUT) as response:
        if response.status == 404:
            return
        async for body in response.content.iter_chunked(_PIECE_BYTES):
            try:
                text = decoder.text(body)
            except ValueError as error:
                raise RayUnreachableError(f"{api.cluster} sent an invalid log: {error}") from error
            yield text
    if not decoder.has_ended:
        raise RayUnreachableError(f"{api.cluster} sent only the beginning of the log of job {job.job!r}.")


async def whole_log_file(api: JobsApi, job: JobDetails) -> AsyncIterator[str]:
    """Yield the log from the file on the entrypoint's node; bytes that are no UTF-8 are replaced."""
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    query = {"node_id": job.node_id or "", "filename": f"job-driver-{job.job}.log", "lines": "-1", "timeout": "120"}
    async with api.request("GET", "/api/v0/logs/file", params=query, timeout=_TIMEOUT) as response:
        if response.status == 404:
            return
        async for body in response.content.iter_chunked(_PIECE_BYTES):
            yield decoder.decode(body)
    yield decoder.decode(b"", final=True)


class LogEnd:
    """Collects the last lines of a log and its result, while the whole log passes.

    Args:
        marker: Prefix of the line with the result. The last such line counts.
    """

    def __init__(self, marker: str | None = None) -> None:
        self.result: str | None = None
        self._marker = marker
        self._reader = LineReader(LogPosition())
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._bar: ProgressBarState | None = None

    @property
    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines; a progress bar counts as one, and very long lines are shortened."""
        return tuple(line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}..." for line in self._last)

    def read(self, piece: str) -> None:
        """Add the next text of the log."""
        for line in self._reader.lines(piece):
            self._add(line)

    def finish(self) -> None:
        """Note the log's end."""
        for line in self._reader.last_line():
            self._add(line)

    def _add(self, line: str) -> None:
        if self._marker is not None and line.startswith(self._marker):
            self.result = line[len(self._marker) :]
            return
        state = parse_progress_bar(line)
        if state is not None and state.continues(self._bar):
            self._last.pop()
        self._bar = state
        self._last.append(line)


async def read_log_end(
    api: JobsApi, job: JobDetails, log: JobLog | None, notice: Callable[[str], None], marker: str | None
) -> LogEnd:
    """Read the log of the ended ``job`` and give ``log`` the missing lines. Errors become notices."""
    for pause_s in _RETRY_PAUSES_S:
        for source in (whole_log, whole_log_file) if job.node_id else (whole_log,):
            end = LogEnd(marker)
            if log is not None:
                log.begin()
            try:
                async for piece in source(api, job):
                    end.read(piece)
                    if log is not None and not log.is_cut:
                        log.read(piece)
                return _finished(end, log)
            except RayUnreachableError as error:
                problem = error
        await asyncio.sleep(pause_s)
    notice(f"The end of the log of Ray job {job.job} cannot be read: {problem}")
    return _finished(end, log)


def _finished(end: LogEnd, log: JobLog | None) -> LogEnd:
    end.finish()
    if log is not None:
        log.finish()
    return end
