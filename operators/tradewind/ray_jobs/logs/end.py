"""The end of a job's log, read once the job has ended: the lines still missing, the last ones, and its result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.logs.bars import BarState, bar_state
from tradewind.ray_jobs.logs.lines import JobLog
from tradewind.ray_jobs.logs.position import LineReader, LogPosition
from tradewind.ray_jobs.logs.stream import whole_log, whole_log_file

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
        self._bar: BarState | None = None

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
        state = bar_state(line)
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
