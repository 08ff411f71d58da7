"""Make a page of rows from a format's source of rows: filter, limits, and values cut to size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, cast

from tradewind.browsing.access import Access, OutOfTimeError
from tradewind.browsing.answers import Column, Row, RowPage, Scalar, WholeValue
from tradewind.browsing.cells import MAX_EXACT, cell_of, equals, holds, type_name, whole_text
from tradewind.browsing.limits import (
    MAX_COLUMNS,
    MAX_PAGE_BYTES,
    MAX_SCANNED_ROWS,
    MAX_WHOLE_VALUE_CHARS,
    VALUE_CHARS,
)
from tradewind.browsing.packed import is_packed
from tradewind.browsing.refusals import BrowsingError, UnreadableError

ONLY_COLUMN: Final = "value"
"""The column of rows that are no objects."""
_NAMED: Final = re.compile(r"([^:=]+)([:=])(.+)", re.DOTALL)
"""A condition on one column. Names that have these characters themselves are filtered as a part of all values."""
_AND: Final = " & "
"""Between conditions on columns, all of which must hold."""
_CHECKED_ROWS: Final = 64
"""The clock is read once in so many rows."""
_COUNT_S: Final = 0.5
"""Time in which the matching rows after a page are counted."""
_COUNTED_ROWS: Final = 8
_CELL_BYTES: Final = 16
"""What a value takes besides its text."""

_Matches = Callable[[Mapping[str, Any]], bool]


class RawRow(NamedTuple):
    """A row as its format reads it: a mapping of columns, or one value; ``problem`` if it cannot be read."""

    at: str
    number: int | None
    value: Any
    problem: str | None = None


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        start: Number of the first row, from 0; of formats that count rows.
        cursor: A place that a source gave.
        at: A fraction of the file.
        filter: A text that a row must contain, ``column:text``, ``column=value``, or several of the latter two with
            ``" & "`` between them.
        chars: Characters of a value.
    """

    start: int | None = None
    cursor: str | None = None
    at: float | None = None
    limit: int = 100
    columns: Sequence[str] = ()
    filter: str = ""
    chars: int = VALUE_CHARS

    @property
    def raw_chars(self) -> int | None:
        """Characters of a value that a source has to read; None for all, which a filter needs."""
        return None if self.filter else self.chars + 1


class RowSource(Protocol):
    """Rows of one file from a place on.

    Attributes:
        columns: The columns of the file; None if each row has its own.
        total: Number of rows of the file, if known.
        note: A sentence about the place or the columns.
    """

    columns: list[Column] | None
    total: int | None
    note: str | None

    def __iter__(self) -> Iterator[RawRow]: ...

    def after(self) -> str | None:
        """Return the place after the row that was read last; None at the end of the file."""

    def position(self) -> float | None:
        """Return that place as a fraction of the file."""

    def close(self) -> None:
        """Close the file."""


class _Page:
    """A page while it is filled."""

    def __init__(self, asked: Asked, columns: Sequence[Column] | None, mark: str) -> None:
        self._mark = mark
        self._chars = asked.chars
        self._is_fixed = columns is not None
        self._index = {each.name: at for at, each in enumerate(columns or ())}
        self._types: dict[str, set[str]] = {}
        self.rows: list[Row] = []
        self.size = 0
        self.has_dropped = False

    def add(self, raw: RawRow, values: Mapping[str, Any]) -> None:
        """Add a row, its values cut to size."""
        index, chars, size = self._index, self._chars, 0
        shown: list[Scalar] = [None] * len(index)
        cut: list[int] = []
        nested: list[int] = []
        for name, value in values.items():
            at = index.get(name)
            if at is None:
                if self._is_fixed:
                    continue
                if len(index) >= MAX_COLUMNS:
                    self.has_dropped = True
                    continue
                at = index[name] = len(shown)
                shown.append(None)
            if not self._is_fixed:
                self._types.setdefault(name, set()).add(type_name(value))
            kind = type(value)  # the most frequent cases first
            if kind is str and len(value) <= chars and value.isascii():
                shown[at] = value
                size += len(value)
            elif (kind is int and -MAX_EXACT < value < MAX_EXACT) or (kind is float and value - value == 0):
                shown[at] = value
            elif value is not None:
                cell = cell_of(value, chars)
                shown[at] = cell.value
                if type(cell.value) is str:
                    size += len(cell.value)
                if cell.is_cut:
                    cut.append(at)
                if cell.is_nested:
                    nested.append(at)
        self.size += size + _CELL_BYTES * len(shown)
        self.rows.append(Row(raw.at + self._mark, raw.number, shown, sorted(cut), sorted(nested), raw.problem))

    def columns(self) -> list[Column]:
        """Return the columns of all rows, and give each row a value for each."""
        for row in self.rows:
            row.values.extend([None] * (len(self._index) - len(row.values)))
        kinds = {name: sorted(each - {"null"} or each) for name, each in self._types.items()}
        return [Column(name, " | ".join(kinds.get(name, ()))) for name in self._index]


def make_page(path: str, format_name: str, source: RowSource, asked: Asked, access: Access, mark: str = "") -> RowPage:
    """Read rows from ``source`` until the page is full, the file ends, or a limit is reached.

    Args:
        mark: Ends each place of the page.
    """
    matches = _filter_of(asked, source)
    page = _Page(asked, source.columns, mark)
    scanned, more, note = 0, None, source.note
    left, named = iter(source), asked.columns if source.columns is None else ()
    try:
        for raw in left:
            scanned += 1
            values = _values(raw.value, named)
            if matches is None or (not raw.problem and matches(values)):
                page.add(raw, {} if raw.problem else values)
            if (stop := _stop(page, scanned, access, asked)) is not None:
                note = stop or note
                break
        following, position = source.after(), source.position()
        if matches is not None:
            more = 0 if following is None else _count(path, left, named, matches, access)
    except OutOfTimeError as error:
        where = f"The reader came to {error.reached:.0%} of the file in the time of one request"
        note = f"{where}, and keeps its place for some minutes: load again to continue."
        following, position = error.place or asked.cursor, source.position()
    if page.has_dropped:
        note = f"The rows have more than {MAX_COLUMNS} columns; name those to show."
    columns = page.columns() if source.columns is None else source.columns
    following = None if following is None else following + mark
    return RowPage(path, format_name, columns, page.rows, following, source.total, scanned, more, position, note)


def _count(path: str, left: Iterator[RawRow], columns: Sequence[str], matches: _Matches, access: Access) -> int | None:
    """Count the rows that are left and match; None if that takes long."""
    if is_packed(path):
        return None  # the stream stays where the next page begins
    until_s, count = access.left_s - _COUNT_S, 0
    try:
        for read, raw in enumerate(left):
            if not raw.problem and matches(_values(raw.value, columns)):
                count += 1
            if read % _COUNTED_ROWS == 0 and access.left_s < max(until_s, 0.0):
                return None
    except (BrowsingError, OutOfTimeError, MemoryError):  # the page before is whole
        return None
    return count


def make_value(path: str, source: RowSource, cursor: str, column: str) -> WholeValue:
    """Return the value of a column in the first row of ``source``."""
    raw = next(iter(source), None)
    if raw is None or raw.problem:
        raise UnreadableError(f"{path} has no readable row at {cursor}." if raw is None else f"{path}: {raw.problem}")
    values = _values(raw.value, ())
    if column not in values:
        raise UnreadableError(f"The row of {path} at {cursor} has no column {column!r}.")
    kind, text = whole_text(values[column])
    shown = text[:MAX_WHOLE_VALUE_CHARS]
    return WholeValue(path, raw.at, column, cast(Any, kind), shown, len(text), len(text) > len(shown))


def _values(value: Any, columns: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        return {ONLY_COLUMN: value}
    return {name: value[name] for name in columns if name in value} if columns else value


def _filter_of(asked: Asked, source: RowSource) -> _Matches | None:
    """Return whether a row's values match the filter; None without one."""
    if not asked.filter:
        return None
    wanted = asked.filter.lower()
    known = None if source.columns is None else {each.name for each in source.columns}
    conditions = _conditions(asked.filter.split(_AND), known) or _conditions([asked.filter], known)

    def matches(values: Mapping[str, Any]) -> bool:
        if conditions and all(name in values for name, _, _ in conditions):
            return all(compare(values[name], text) for name, compare, text in conditions)
        # Without such columns the filter is a text with a colon in it, such as an address.
        return (known is None or not conditions) and any(holds(value, wanted) for value in values.values())

    return matches


def _conditions(parts: Sequence[str], known: Set[str] | None) -> list[tuple[str, Callable[[Any, str], bool], str]]:
    """Return column, comparison and text of each part; none if one of them is no condition on a known column."""
    found = [_NAMED.fullmatch(part) for part in parts]
    named = [each for each in found if each is not None and (known is None or each[1] in known)]
    return [
        (each[1], equals if each[2] == "=" else holds, each[3].lower()) for each in named if len(named) == len(parts)
    ]


def _stop(page: _Page, scanned: int, access: Access, asked: Asked) -> str | None:
    """Return why the page ends here: empty if it is full; None if it continues."""
    if len(page.rows) >= asked.limit:
        return ""
    if page.size >= MAX_PAGE_BYTES:
        return f"The page ends at {len(page.rows):,} rows, which have {MAX_PAGE_BYTES >> 20} MB of texts."
    if scanned >= MAX_SCANNED_ROWS:
        return f"The page ends after {scanned:,} rows, of which {len(page.rows):,} match."
    if scanned % _CHECKED_ROWS == 0 and access.left_s < 0:
        return f"The page ends after {scanned:,} rows, which took the time of one request."
    return None
