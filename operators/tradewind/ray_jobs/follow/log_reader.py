"""The log of a running job as it comes, over Ray's websocket.

The stream begins at the log's first byte whenever it is opened, and may end although the job goes on: then it is
opened again, and what was taken before is passed over. It ends for ever at the same place when the log holds bytes
that are no UTF-8; it is then tried ever more rarely, and the reading after the job's end brings the rest.
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
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow.log_lines import JobLog, LineReader, LogPosition, ProgressBarState, parse_progress_bar
from tradewind.ray_jobs.follow.poller import WatchedJob

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
MAX_EMPTY_READS = 5
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
            watched.poll_soon()  # the job may have ended
        if vain == MAX_EMPTY_READS:
            notice(
                f"The log of Ray job {watched.job} cannot be followed beyond its character {before:,}: Ray ends the "
                "stream there each time, as it does at bytes that are no UTF-8. The rest follows after the job's end."
            )
        await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** max(0, vain - 1), MAX_PAUSE_S))


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
        watched.record_line()
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


# The whole log of a job as a stream of text, whatever its size.
#
# Ray answers ``GET …/logs`` with one JSON string, and fails when the log holds bytes that are no UTF-8; then its State
# API, which hands out the file as it is, is asked instead. Either way only a small part is in memory at a time.

_PIECE_BYTES = 64 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=120.0)

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
"""Characters and escapes that can be decoded without knowing what follows: a pair of surrogates stays together."""


class JsonLogDecoder:
    """Decodes ``{"logs": "..."}`` piece by piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._held = ""
        self._is_open = False
        self.has_ended = False
        """Whether the string's closing quote was seen: without it the log is cut short."""

    def text(self, body: bytes) -> str:
        """The text that ``body``, the next bytes of the answer, adds.

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
            raise ValueError(f"no log in an answer that begins with {self._held[:100]!r}")
        return self._is_open


async def whole_log(api: JobsApi, job: JobDetails) -> AsyncIterator[str]:
    """Pieces of the log of ``job`` from its first character to its last; nothing when the cluster has no such log.

    Raises:
        RayUnreachableError: It cannot be read, or not to its end.
        RayAuthenticationError: The token is refused.
    """
    decoder = JsonLogDecoder()
    async with api.request("GET", f"/api/jobs/{job.job}/logs", timeout=_TIMEOUT) as response:
        if response.status == 404:
            return
        async for body in response.content.iter_chunked(_PIECE_BYTES):
            try:
                text = decoder.text(body)
            except ValueError as error:
                raise RayUnreachableError(f"{api.cluster} sent something that is not the log: {error}") from error
            yield text
    if not decoder.has_ended:
        raise RayUnreachableError(f"{api.cluster} sent only the beginning of the log of job {job.job!r}.")


async def whole_log_file(api: JobsApi, job: JobDetails) -> AsyncIterator[str]:
    """The same from the file on the node of the job's entrypoint, bytes that are no UTF-8 replaced."""
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    query = {"node_id": job.node_id or "", "filename": f"job-driver-{job.job}.log", "lines": "-1", "timeout": "120"}
    async with api.request("GET", "/api/v0/logs/file", params=query, timeout=_TIMEOUT) as response:
        if response.status == 404:
            return
        async for body in response.content.iter_chunked(_PIECE_BYTES):
            yield decoder.decode(body)
    yield decoder.decode(b"", final=True)


# The end of a job's log, read once the job has ended: the lines still missing, the last ones, and its result.

LAST_LINES = 50
_LONGEST_LAST_LINE = 2000
_PAUSES_S = (1.0, 3.0, 0.0)


class LogEnd:
    """The last lines of a log and the result in it, gathered while all of it passes by.

    Args:
        marker: What the line with the result starts with. The last such line counts.
    """

    def __init__(self, marker: str | None = None) -> None:
        self.result: str | None = None
        self._marker = marker
        self._reader = LineReader(LogPosition())
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._bar: ProgressBarState | None = None

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines; a progress bar is one of them, and very long ones are shortened."""
        return tuple(_shortened(line) for line in self._last)

    def read(self, piece: str) -> None:
        """The next text of the log."""
        for line in self._reader.lines(piece):
            self._add(line)

    def finish(self) -> None:
        """The log has ended."""
        for line in self._reader.last_line():
            self._add(line)

    def _add(self, line: str) -> None:
        if self._marker is not None and line.startswith(self._marker):
            self.result = line[len(self._marker) :]
            return
        state = parse_progress_bar(line)
        if state is not None and state.goes_on_from(self._bar):
            self._last.pop()
        self._bar = state
        self._last.append(line)


async def read_log_end(
    api: JobsApi, job: JobDetails, log: JobLog | None, notice: Callable[[str], None], marker: str | None
) -> LogEnd:
    """Read the log of ``job``, which has ended, giving ``log`` what it lacks. Trouble is noticed, not raised."""
    for pause_s in _PAUSES_S:
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


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LAST_LINE else f"{line[:_LONGEST_LAST_LINE]}..."
