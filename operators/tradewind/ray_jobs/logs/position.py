"""How far into a job's log somebody has read, in a measure that every reading of the same log agrees on.

Ray gives a log from its first byte only, and reads it in text mode with universal newlines: a carriage return arrives
as a newline, and one CRLF as one newline or as two, depending on when it was read. So neither bytes nor lines can be
counted. What is counted is the characters that are no newlines, and the empty lines right after the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LONGEST_LINE = 1024 * 1024
"""A longer line comes in parts, so that a log without newlines does not fill the memory."""


@dataclass(frozen=True)
class LogPosition:
    """How much of a job's log was given.

    Attributes:
        chars: Characters in the lines given, newlines not counted.
        empty: Empty lines given after the last line that is not empty.
        shown: Bytes shown to the reader, which the byte budget limits.
        is_cut: Whether the budget is used up, and the reader was told so.
    """

    chars: int = 0
    empty: int = 0
    shown: int = 0
    is_cut: bool = False

    def after(self, line: str) -> LogPosition:
        """The position behind ``line``, the next one."""
        chars, empty = (self.chars + len(line), 0) if line else (self.chars, self.empty + 1)
        return LogPosition(chars, empty, self.shown, self.is_cut)

    def to_json(self) -> dict[str, Any]:
        """As JSON fields."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any] | None) -> LogPosition:
        """The position with these fields; the start of the log when there are none."""
        known = LogPosition.__dataclass_fields__
        return LogPosition(**{key: value for key, value in (fields or {}).items() if key in known})


class LineReader:
    """One reading of a log from its first byte: whole lines out of pieces, those before ``start`` passed over."""

    def __init__(self, start: LogPosition) -> None:
        self._chars_to_skip = start.chars
        self._newlines_to_skip = start.empty + (1 if start.chars else 0)  # the first one ends the last line given
        self._begun = ""

    def lines(self, piece: str) -> list[str]:
        """The lines that ``piece``, the next text of the log, completes."""
        if self._chars_to_skip or self._newlines_to_skip:
            piece = self._skip(piece)
        *whole, self._begun = (self._begun + piece).split("\n")
        if any(len(line) > LONGEST_LINE for line in (*whole, self._begun)):
            whole = [part for line in whole for part in _parts(line)]
            *more, self._begun = _parts(self._begun)
            whole += more
        return whole

    def last_line(self) -> list[str]:
        """The line at the log's end that has no newline, if there is one."""
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
        """Where in ``piece`` the last character to skip ends."""
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
    return [line[start : start + LONGEST_LINE] for start in range(0, len(line), LONGEST_LINE)] or [line]
