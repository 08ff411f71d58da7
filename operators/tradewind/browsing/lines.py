"""Rows of files with one row a line: a place is the byte offset of a line, and its number where that is known.

``123:7`` is row 7, whose line begins at byte 123; ``~123`` is the first line that begins after byte 123.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tradewind.browsing import packed
from tradewind.browsing.access import Access, OutOfTimeError, Stored
from tradewind.browsing.answers import Column
from tradewind.browsing.limits import MAX_LINE_BYTES
from tradewind.browsing.paging import Asked, RawRow
from tradewind.browsing.refusals import UnreadableError

_PLACE: Final = re.compile(r"(~?)(\d{1,16})(?::(\d{1,15}))?", re.ASCII)
_SKIP_BYTES: Final = 1 << 20

Parse = Callable[[bytes], Any]
"""Return a line's value; raises ``ValueError`` with the reason, or ``RecursionError``."""


class LineSource:
    """Rows of a file of lines, which ``parse`` reads; blank lines are left out.

    Args:
        header: Offset of the first row: after a header, if there is one.
    """

    def __init__(self, access: Access, stored: Stored, asked: Asked, parse: Parse, header: int = 0) -> None:
        self.columns: list[Column] | None = None
        self.total: int | None = None
        self.note: str | None = None
        self._access = access
        self._path = stored.path
        self._size = stored.size
        self._parse = parse
        self._header = header
        self._asked = asked
        self._file, self._stream = packed.content_of(access, stored)
        self._at, self._number, self._inside = 0, 0, False
        self._is_damaged = False

    def __iter__(self) -> Iterator[RawRow]:
        has_rows = False
        try:
            self._enter()
            for row in self._rows():
                has_rows = True
                yield row
        except packed.READ_ERRORS as error:
            problem = packed.damaged(self._path, error)
            if not has_rows:
                raise problem from error
            self._is_damaged = True
            yield RawRow(str(self._at), None, None, str(problem))

    @property
    def offset(self) -> int:
        """Bytes of the content before the next row."""
        return self._at

    def close(self) -> None:
        """Close a file that no later request uses; leave the stream of a packed one."""
        packed.release(self._file, self._stream)

    def rest_of_row(self, line: bytes) -> bytes:
        """Read the further lines of a row, in formats whose rows may have several."""
        return b""

    def after(self) -> str | None:
        try:
            if self._is_damaged or (not self._inside and not self._file.peek(1)):
                return None
        except packed.READ_ERRORS:
            pass  # the next page says it
        if self._inside:
            return f"~{self._at}"
        return f"{self._at}:{self._number + 1}" if self._number >= 0 else str(self._at)

    def position(self) -> float | None:
        if self._stream is not None and not self._stream.closed:
            return round(self._stream.fraction(), 6)
        return round(min(self._at / self._size, 1.0), 6) if self._size else 1.0

    def _enter(self) -> None:
        """Go to the place that was asked for."""
        self._at, self._number = self._header, 0
        is_inside = False
        if self._asked.cursor:
            place = _PLACE.fullmatch(self._asked.cursor)
            if place is None:
                raise UnreadableError(f"{self._path} has no place {self._asked.cursor!r}.")
            self._at = max(int(place[2]), self._header)
            self._number = int(place[3]) - 1 if place[3] else -1 if self._at > self._header else 0
            is_inside = bool(place[1]) and self._at > self._header
        elif self._asked.at:
            is_inside = True
            self._number = -1
            if self._stream is not None:
                self._at = max(self._stream.seek_fraction(self._asked.at), self._header)
            else:
                self._at = max(int(self._size * self._asked.at), self._header)
        if self._at > self._size and self._stream is None:
            raise UnreadableError(f"{self._path} has {self._size:,} bytes, and the place {self._at:,} is behind them.")
        self._file.seek(self._at)
        if is_inside and self._at > self._header:
            self._skip_line()

    def _rows(self) -> Iterator[RawRow]:
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            line += self.rest_of_row(line)
            begin, self._at = self._at, self._at + len(line)
            if self._number >= 0:
                self._number += 1
            if not begin:
                line = line.removeprefix(codecs.BOM_UTF8)
            is_cut = len(line) > MAX_LINE_BYTES and not line.endswith(b"\n")
            number = self._number if self._number >= 0 else None
            at = f"{begin}:{number}" if number else str(begin)
            if is_cut:
                yield RawRow(at, number, None, f"The line has more than {MAX_LINE_BYTES >> 20} MB: see it as text.")
                self._skip_line()
                continue
            if not line.strip():
                if self._access.left_s < 0:
                    raise OutOfTimeError(self.position() or 0.0, self.after())
                continue
            try:
                value = self._parse(line)
            except (ValueError, RecursionError) as error:
                reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                yield RawRow(at, number, None, f"The line cannot be read: {reason}")
                continue
            yield RawRow(at, number, value)

    def _skip_line(self) -> None:
        """Go to the next line, or as far as the time allows."""
        self._inside = True
        while self._access.left_s >= 0:
            part = self._file.readline(_SKIP_BYTES)
            self._at += len(part)
            if not part or part.endswith(b"\n"):
                self._inside = False
                return
        raise OutOfTimeError(self.position() or 0.0, f"~{self._at}")
