"""A job's log on its way to a reader: whole lines, each once and in order, in batches and within a byte budget.

What was given is known at every moment, and is all that a successor needs to go on: lines that were read and not yet
given (the newest state of a progress bar, a batch that is being collected) are behind the position and come again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tradewind.ray_jobs.logs.bars import BarFold
from tradewind.ray_jobs.logs.position import LineReader, LogPosition

__all__ = ["MAX_BYTES", "JobLog", "LogPosition", "LinePace"]

MAX_BYTES = 20 * 1024 * 1024
BATCH_S = 0.2
"""How long lines are collected before they are given."""
_BATCH_LINES = 1000


class LinePace:
    """When the logs that share it give their lines: at the same moments, and not more often than ``every_s``.

    For readers to whom being woken costs more than the lines do. What comes after a pause is given as soon as ever.
    """

    def __init__(self, every_s: float = BATCH_S) -> None:
        self._every_s = every_s
        self._moment = float("-inf")

    def next_moment(self, now: float) -> float:
        """When lines that have come ``now`` are to be given."""
        if self._moment <= now:
            self._moment = max(now + BATCH_S, self._moment + self._every_s)
        return self._moment


class JobLog:
    """The log of one job, for one reader.

    Args:
        give: Takes the next lines. When it raises, they do not count as given.
        start: What was given before, by this or another process.
        max_bytes: How much is given in all; then one line says where the rest is. None: no limit.
        full_log: Where the whole log can be read, for that line.
        pace: When lines are given; its own if it shares none.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        give: Callable[[Sequence[str]], None],
        start: LogPosition = LogPosition(),  # noqa: B008 - immutable
        max_bytes: int | None = MAX_BYTES,
        full_log: str = "",
        *,
        pace: LinePace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.full_log = full_log
        self._give = give
        self._max_bytes = max_bytes
        self._pace = pace or LinePace()
        self._clock = clock
        self._hidden: str | None = None
        self._given = self._taken = self._shown = start
        self._reader = LineReader(start)
        self._bars = BarFold()
        self._batch: list[str] = []
        self._give_at = 0.0

    @property
    def position(self) -> LogPosition:
        """How much was given so far."""
        return self._given

    @property
    def is_cut(self) -> bool:
        """Whether the budget is used up: nothing more will be given."""
        return self._given.is_cut

    @property
    def taken_chars(self) -> int:
        """How far the log was read, whether given or not; more than before means that the log went on."""
        return self._taken.chars

    def hide_lines_starting_with(self, marker: str | None) -> None:
        """Lines that start so are passed over."""
        self._hidden = marker

    def begin(self) -> None:
        """The log is read from its first byte, again: what was taken from it before is passed over."""
        self._reader = LineReader(self._taken)

    def read(self, piece: str) -> None:
        """Take the next text of the log."""
        self._take(self._reader.lines(piece))

    def finish(self) -> None:
        """The log has ended: give what is left of it, a last line without newline included."""
        self._take(self._reader.last_line())
        self._show(self._bars.end())
        self._shown = self._taken
        self.flush()

    def wait_s(self) -> float | None:
        """After how long ``tick`` should be called if nothing more is read; None: no need."""
        times = [self._give_at] if self._batch else []
        if self._bars.due_at is not None:
            times.append(self._bars.due_at)
        return max(0.01, min(times) - self._clock()) if times else None

    def tick(self) -> None:
        """Give what has waited for long enough."""
        now = self._clock()
        if due := self._bars.show(now):
            self._show(due)
            self._shown = self._taken
        if self._batch and (now >= self._give_at or len(self._batch) >= _BATCH_LINES):
            self.flush()

    def flush(self) -> None:
        """Give the lines collected so far."""
        lines, shown, is_cut = self._within_budget(self._batch)
        self._batch = []
        if lines:
            self._give(lines)
        self._given = replace(self._shown, shown=shown, is_cut=is_cut)

    def _take(self, lines: Sequence[str]) -> None:
        for line in lines:
            before = self._taken
            self._taken = before.after(line)
            is_hidden = self._hidden is not None and line.startswith(self._hidden)
            self._show(self._bars.end() if is_hidden else self._bars.add(line, self._clock()))
            if not self._bars.held:
                self._shown = self._taken
            elif len(self._bars.held) == 1:  # this very line is held back, and comes again unless a newer state does
                self._shown = before
        self.tick()

    def _show(self, lines: Sequence[str]) -> None:
        if lines and not self._batch:
            self._give_at = self._pace.next_moment(self._clock())
        self._batch.extend(lines)

    def _within_budget(self, lines: list[str]) -> tuple[list[str], int, bool]:
        """What of ``lines`` can be given, the bytes given then, and whether that is all that will be."""
        shown = self._given.shown
        if self._given.is_cut:
            return [], shown, True
        for number, line in enumerate(lines):
            size = len(line.encode(errors="replace")) + 1
            if self._max_bytes is not None and shown + size > self._max_bytes:
                return [*lines[:number], self._cut_line(self._max_bytes)], shown, True
            shown += size
        return lines, shown, False

    def _cut_line(self, max_bytes: int) -> str:
        where = f"full log at {self.full_log}" if self.full_log else "the cluster's dashboard has the full log"
        return f"[The rest of the log is not shown here, which is limited to {max_bytes:,} bytes; {where}]"
