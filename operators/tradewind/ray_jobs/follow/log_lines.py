"""A job's log on its way to a reader: whole lines, once and in order, batched, within a byte budget.

The log position is known at every moment, and is all that a successor needs. Lines that were read and not yet given
(the newest state of a progress bar, a batch) are behind the position and are read again.

Progress bars are folded to their last state. A bar redraws itself with carriage returns, which Ray's log turns into
newlines: each state looks like a line. So bars are recognized by their format (tqdm's and Keras's), and other lines are
never held back or dropped. Consecutive states of one bar are folded. The newest state passes now and then while the bar
continues, and the last one always, before the next ordinary line.

All readings of a log agree on a position. Ray returns a log from its first byte only, and reads it in text mode with
universal newlines: a carriage return arrives as a newline, and one CRLF as one newline or two, depending on the time of
reading. So neither bytes nor lines can be counted. A position counts the characters that are no newlines, and the empty
lines right after the last of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

MAX_BYTES = 20 * 1024 * 1024
MAX_LINE_CHARS = 1024 * 1024
"""Longer lines are split, so that a log without newlines does not fill the memory."""
BATCH_S = 0.2
"""How long lines are collected into a batch."""
SHOW_INTERVAL_S = 30.0
_BATCH_LINES = 1000
_MAX_EMPTY_LINES = 20
_MAX_STATE_CHARS = 1000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIMES = r"\[\d+:\d\d(?::\d\d)?(?:<[^,\]]+)?(?:, [^\]]*)?\]"
_SHAPES = (
    # tqdm: "desc:  42%|####2     | 42/100 [00:01<00:02, 31.2it/s, loss=2]"
    re.compile(rf"(?P<what>.*?)\s*(?P<done>\d{{1,3}})%\|[ #\d█▉▊▋▌▍▎▏]*\|\s*\S+/(?P<total>\S+) {_TIMES}.*"),
    # tqdm without a total: "desc: 42it [00:01, 31.2it/s]"
    re.compile(r"(?P<what>.*?)(?<![\w.])(?P<done>\d+)(?P<total>[A-Za-z]+) \[\d+:\d\d(?::\d\d)?, [^\]]*/[^\]]*\]"),
    # Keras: "42/100 [=====>......] - ETA: 3s - loss: 2", "42/100 ━━━━━━ 3s 31ms/step - loss: 2"
    re.compile(r"(?P<what>)\s*(?P<done>\d+)/(?P<total>\d+) (?:\[[=>.]{10,}\] - .*|━{10,} .*)"),
)


@dataclass(frozen=True)
class ProgressBarState:
    """One state of a progress bar: its identity and its progress."""

    bar: tuple[str, str]
    done: int

    def continues(self, former: ProgressBarState | None) -> bool:
        """Return whether it is a later state of the same bar; a restarted bar is another one."""
        return former is not None and self.bar == former.bar and self.done >= former.done


def parse_progress_bar(line: str) -> ProgressBarState | None:
    """Return the state in ``line``, or None for an ordinary line."""
    if "/" not in line or ("[" not in line and "━" not in line) or len(line) > _MAX_STATE_CHARS:
        return None
    plain = _ANSI.sub("", line).strip()
    for shape in _SHAPES:
        if match := shape.fullmatch(plain):
            what = re.sub(r"\d+(\.\d+)?", "0", match["what"])  # a description may contain a running loss
            return ProgressBarState((what, match["total"]), int(match["done"]))
    return None


class ProgressBarFilter:
    """Filter that drops states of a progress bar that newer ones follow."""

    def __init__(self, now: float = 0.0) -> None:
        self._last: ProgressBarState | None = None
        self._shown_at = now
        self.pending: list[str] = []
        """The newest state not yet passed, and the empty lines since."""

    def add(self, line: str, now: float) -> list[str]:
        """Add ``line`` and return the lines that can be shown now."""
        state = parse_progress_bar(line)
        if state is None:
            return self._ordinary(line)
        if state.continues(self._last):
            self.pending, out = [line], []
        else:
            out, self.pending = self.pending, [line]
            self._shown_at = now
        self._last = state
        return out

    def show(self, now: float) -> list[str]:
        """Return the newest state if it is due; the bar may continue."""
        if self.due_at is None or now < self.due_at:
            return []
        self._shown_at = now
        out, self.pending = self.pending, []
        return out

    def end(self) -> list[str]:
        """Return the pending lines: no more follow."""
        out, self.pending, self._last = self.pending, [], None
        return out

    @property
    def due_at(self) -> float | None:
        """Time at which the newest state passes if no line comes."""
        return self._shown_at + SHOW_INTERVAL_S if self.pending else None

    def _ordinary(self, line: str) -> list[str]:
        is_empty = not _ANSI.sub("", line).strip()
        if is_empty and self.pending and len(self.pending) <= _MAX_EMPTY_LINES:
            self.pending.append(line)  # nested bars have such lines between their states
            return []
        return [*self.end(), line]


@dataclass(frozen=True)
class LogPosition:
    """How much of a job's log was given.

    Attributes:
        chars: Characters in the lines given, newlines not counted.
        empty: Empty lines given after the last line that is not empty.
        shown: Bytes given to the reader, which the byte budget limits.
        is_cut: The budget is used up, and the reader was informed.
    """

    chars: int = 0
    empty: int = 0
    shown: int = 0
    is_cut: bool = False

    def after(self, line: str) -> LogPosition:
        """Return the position behind ``line``, the next one."""
        chars, empty = (self.chars + len(line), 0) if line else (self.chars, self.empty + 1)
        return LogPosition(chars, empty, self.shown, self.is_cut)

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON fields."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any] | None) -> LogPosition:
        """Return the position with these fields; without fields, the start of the log."""
        known = LogPosition.__dataclass_fields__
        return LogPosition(**{key: value for key, value in (fields or {}).items() if key in known})


class LineReader:
    """One reading of a log from its first byte: whole lines from pieces, those before ``start`` skipped."""

    def __init__(self, start: LogPosition) -> None:
        self._chars_to_skip = start.chars
        self._newlines_to_skip = start.empty + (1 if start.chars else 0)  # the first one ends the last line given
        self._begun = ""

    def lines(self, piece: str) -> list[str]:
        """Return the lines that ``piece``, the next text of the log, completes."""
        if self._chars_to_skip or self._newlines_to_skip:
            piece = self._skip(piece)
        *whole, self._begun = (self._begun + piece).split("\n")
        if any(len(line) > MAX_LINE_CHARS for line in (*whole, self._begun)):
            whole = [part for line in whole for part in _parts(line)]
            *more, self._begun = _parts(self._begun)
            whole += more
        return whole

    def last_line(self) -> list[str]:
        """Return the line at the log's end without a newline, if there is one."""
        begun, self._begun = self._begun, ""
        return [begun] if begun else []

    def _skip(self, piece: str) -> str:
        chars = len(piece) - piece.count("\n")
        if chars < self._chars_to_skip:
            self._chars_to_skip -= chars
            return ""
        piece = piece[self._end_of_skipped_chars(piece) :]
        self._chars_to_skip = 0
        rest = piece.lstrip("\n")
        newlines = min(len(piece) - len(rest), self._newlines_to_skip)
        self._newlines_to_skip = 0 if rest else self._newlines_to_skip - newlines
        return piece[newlines:]

    def _end_of_skipped_chars(self, piece: str) -> int:
        """Return the end of the last character to skip in ``piece``."""
        end, left = 0, self._chars_to_skip
        while left:
            newline = piece.find("\n", end)
            run = (len(piece) if newline < 0 else newline) - end
            if run >= left:
                return end + left
            left -= run
            end = newline + 1
        return end


def _parts(line: str) -> list[str]:
    return [line[start : start + MAX_LINE_CHARS] for start in range(0, len(line), MAX_LINE_CHARS)] or [line]


class FlushSchedule:
    """Moments at which logs that share it give their lines: together, and at most once per ``every_s``.

    For readers whose wake-up costs more than the lines do. A line after a pause is given without additional delay.
    """

    def __init__(self, every_s: float = BATCH_S) -> None:
        self._every_s = every_s
        self._moment = float("-inf")

    def next_moment(self, now: float) -> float:
        """Return the time at which lines that have come ``now`` are given."""
        if self._moment <= now:
            self._moment = max(now + BATCH_S, self._moment + self._every_s)
        return self._moment


class JobLog:
    """Log of one job, for one reader.

    Args:
        give: Takes the next lines. If it raises, they do not count as given.
        start: Position that this or another process had reached.
        max_bytes: Byte budget; after it, one line names the location of the rest. None: no limit.
        full_log: Location of the whole log, for that line.
        schedule: Schedule of the batches; its own if None.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        give: Callable[[Sequence[str]], None],
        start: LogPosition = LogPosition(),
        max_bytes: int | None = MAX_BYTES,
        full_log: str = "",
        *,
        schedule: FlushSchedule | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.full_log = full_log
        self._give = give
        self._max_bytes = max_bytes
        self._schedule = schedule or FlushSchedule()
        self._clock = clock
        self._hidden: str | None = None
        self._given = self._taken = self._shown = start
        self._reader = LineReader(start)
        self._bars = ProgressBarFilter()
        self._batch: list[str] = []
        self._give_at = 0.0
        self.taken_at = clock()
        """When the last new line was read, by the clock; at first, when the log was made."""

    @property
    def position(self) -> LogPosition:
        """Position behind the lines given so far."""
        return self._given

    @property
    def is_cut(self) -> bool:
        """Whether the budget is used up: no more lines will be given."""
        return self._given.is_cut

    @property
    def taken_chars(self) -> int:
        """Characters read from the log, given or not; growth means that the log continues."""
        return self._taken.chars

    def hide_lines_starting_with(self, marker: str | None) -> None:
        """Skip lines that start with ``marker``."""
        self._hidden = marker

    def begin(self) -> None:
        """Start reading from the log's first byte again: lines taken before are skipped."""
        self._reader = LineReader(self._taken)

    def read(self, piece: str) -> None:
        """Take the next text of the log."""
        self._take(self._reader.lines(piece))

    def finish(self) -> None:
        """Give the rest after the log's end, including a last line without newline."""
        self._take(self._reader.last_line())
        self._show(self._bars.end())
        self._shown = self._taken
        self.flush()

    def wait_s(self) -> float | None:
        """Return the delay until ``tick`` is due if no text comes; None: not needed."""
        times = [self._give_at] if self._batch else []
        if self._bars.due_at is not None:
            times.append(self._bars.due_at)
        return max(0.01, min(times) - self._clock()) if times else None

    def tick(self) -> None:
        """Give lines that have waited long enough."""
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
            self.taken_at = self._clock()
            before = self._taken
            self._taken = before.after(line)
            is_hidden = self._hidden is not None and line.startswith(self._hidden)
            self._show(self._bars.end() if is_hidden else self._bars.add(line, self._clock()))
            if not self._bars.pending:
                self._shown = self._taken
            elif len(self._bars.pending) == 1:  # this line is held back, and is read again unless a newer state follows
                self._shown = before
        self.tick()

    def _show(self, lines: Sequence[str]) -> None:
        if lines and not self._batch:
            self._give_at = self._schedule.next_moment(self._clock())
        self._batch.extend(lines)

    def _within_budget(self, lines: list[str]) -> tuple[list[str], int, bool]:
        """Return the lines within the budget, the bytes given then, and whether the budget is used up."""
        shown = self._given.shown
        if self._given.is_cut:
            return [], shown, True
        for number, line in enumerate(lines):
            size = len(line.encode(errors="replace")) + 1
            if self._max_bytes is not None and shown + size > self._max_bytes:
                where = f"full log at {self.full_log}" if self.full_log else "the cluster's dashboard has the full log"
                cut = f"[Log cut here, at its limit of {self._max_bytes:,} bytes; {where}]"
                return [*lines[:number], cut], shown, True
            shown += size
        return lines, shown, False
