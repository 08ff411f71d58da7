"""Where a shard is: the row that it reads, what happens to rows that fail, and the counters of the user's functions.

from tradewind.datasets import counters

def is_long(row):
    if len(row["text"]) < 100:
        counters.increment("too_short")
        return False
    return True

With ``on_error="skip"`` or ``"quarantine"`` rows that fail are left out: lines and members that cannot be read, rows
for which the function of ``map``, ``flat_map``, ``filter``, the key of ``group_by`` or the combiner of a join fails,
keys whose reducer fails, and rows without a form in JSON lines or bytes. A row goes with all that was made of it.
Always an error is what no single row is to blame for: a file that cannot be read on, a function of a whole shard, rows
that cannot be ordered or fit no schema, mistakes in code such as a missing module or name, a process of the function's
own that was killed (``ChildProcessError``), and that rows fail and none is left.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeVar

from tradewind.text import quote_first_names, single_line, truncated_repr

OnError = Literal["raise", "skip", "quarantine"]
ON_ERROR: Final = ("raise", "skip", "quarantine")
PERMANENT: Final = (SyntaxError, ImportError, NameError)
"""Errors that neither another row nor a second try mends."""
MAX_QUARANTINED_CHARS: Final = 1 << 25
"""Of the rows of one shard that fail, about so much is kept for a look; the rest is counted."""

_MAX_REJECTION_CHARS: Final = 400
_MAX_HELD: Final = 1_000
_MAX_HELD_BYTES: Final = 1 << 24
"""Results of one row are held until its function has ended well, so that half of them are never written: so many of
them, or of about so many bytes of text."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class RowError(ValueError):
    """A row of an input cannot be read. The message begins with its file and its number.

    Another try would find the same row, so there is none.
    """


class SeveralRowsError(RowError):
    """Rows that were read together fit neither a file nor an order: the one that was read last is not to blame."""


class UnreadableFileError(RowError):
    """A file cannot be read on, which another try may mend."""


def selected(row: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return these columns of a row.

    Raises:
        RowError: It has not all of them.
    """
    try:
        return {column: row[column] for column in columns}
    except (KeyError, TypeError, IndexError):
        has = f"it has {quote_first_names(row)}" if isinstance(row, dict) else f"it is {truncated_repr(row)}"
        missing = next(column for column in columns if not isinstance(row, dict) or column not in row)
        raise RowError(f"The row has no column {missing!r}: {has}.") from None


def rough_size(row: Any) -> int:
    """Return about how many bytes of text a row has."""
    values = row.values() if isinstance(row, dict) else (row,)
    return sum(len(value) for value in values if isinstance(value, (str, bytes, list)))


def _first_of(results: Iterator[_T]) -> list[_T]:
    held: list[_T] = []
    size = 0
    for result in results:
        held.append(result)
        size += rough_size(result)
        if len(held) == _MAX_HELD or size > _MAX_HELD_BYTES:
            break
    return held


def given_rows(given: Iterable[_R] | None, method: str) -> Iterable[_R]:
    """Return what a user's function gave, unless it forgot to."""
    if given is None:
        raise TypeError(f"the function of {method} returned None: return or yield rows")
    return given


def error_text(error: BaseException) -> str:
    """Return the error's text in one line, or say that it has none that can be shown."""
    try:
        return single_line(error)
    except Exception:
        return "its text cannot be shown"


class Rows:
    """The state of one shard while it is processed.

    Attributes:
        folder: The stage's files of shards, removed when the pipeline has ended.
        path: File that is read; empty outside of one.
        number: Number of the row in it, from 1.
        row: The row itself, as it was read.
        counters: What the user's functions counted.
        quarantined: Texts of rows that failed, one JSON object each.
        first_rejection: Place and error of the first of them.
    """

    def __init__(self, on_error: OnError = "raise", folder: str = "") -> None:
        self.on_error = on_error
        self.folder = folder
        self.path = ""
        self.number = 0
        self.row: Any = None
        self.counters: Counter[str] = Counter()
        self.quarantined: list[str] = []
        self.first_rejection = ""
        self._tally: Counter[str] = Counter()

    @property
    def rejected(self) -> int:
        """Number of rows that failed and were left out."""
        return self._tally["rejected"]

    def beside(self) -> Rows:
        """Return the state for the other side of a join: another place, the same counts."""
        return copy.copy(self)

    def following(self, other: Rows, rows: Iterator[_T]) -> Iterator[_T]:
        """Yield the rows of the other side of a join; if they fail, its place is where that was."""
        try:
            yield from rows
        except Exception:
            self.path, self.number, self.row = other.path, other.number, other.row
            raise

    @property
    def place(self) -> str:
        """``FILE line 12``, or what there is of it."""
        return f"{self.path} row {self.number:,}" if self.path else f"row {self.number:,}" if self.number else ""

    def described(self, error: BaseException) -> tuple[str, str]:
        """Return an error's text, and where it was unless the text says so."""
        if not isinstance(error, RowError):
            return f"{type(error).__name__}: {error_text(error)}", self.place
        message = error_text(error)
        place = self.path if isinstance(error, SeveralRowsError) else self.place
        return message, "" if self.path and self.path in message else place

    def reject(self, error: Exception) -> None:
        """Leave out the row that is being processed, or raise ``error``, as ``on_error`` says."""
        if self.on_error == "raise" or isinstance(error, (*PERMANENT, ChildProcessError)):  # no fault of the row
            raise error
        self._tally["rejected"] += 1
        if not self.first_rejection:
            self.first_rejection = single_line(
                ", while it read ".join(filter(None, self.described(error))), _MAX_REJECTION_CHARS
            )
        if self.on_error == "quarantine" and self._tally["characters"] < MAX_QUARANTINED_CHARS:
            about = {"place": self.place, "error": f"{type(error).__name__}: {error_text(error)}"}
            try:
                text = json.dumps({**about, "row": self.row}, default=truncated_repr)
            except (TypeError, ValueError, RecursionError):  # keys of other types, a cycle
                text = json.dumps({**about, "row": truncated_repr(self.row)})
            self._tally["characters"] += len(text)
            self.quarantined.append(text)

    def numbered(self, rows: Iterable[_T]) -> Iterator[_T]:
        """Note each row as the one that is being processed."""
        for number, row in enumerate(rows, 1):
            self.number, self.row = number, row
            yield row

    def mapped(self, fn: Callable[[_T], _R], rows: Iterator[_T]) -> Iterator[_R]:
        """Apply ``fn`` to each row."""
        if self.on_error == "raise":
            return (fn(row) for row in rows)  # not map(): a StopIteration of fn would end it as if all were done
        return self._guarded(fn, rows)

    def _guarded(self, fn: Callable[[_T], _R], rows: Iterator[_T]) -> Iterator[_R]:
        for row in rows:
            try:
                result = fn(row)
            except Exception as error:
                self.reject(error)
                continue
            yield result

    def flattened(self, fn: Callable[[_T], Iterable[_R]], rows: Iterator[_T]) -> Iterator[_R]:
        """Yield what ``fn`` yields for each row."""
        for row in rows:
            yield from self.whole(lambda row=row: given_rows(fn(row), "flat_map"))  # type: ignore[misc]

    def whole(self, results_of_row: Callable[[], Iterable[_R]]) -> Iterator[_R]:
        """Yield the results of one row, or none of them if its function fails and rows that fail are left out.

        Results that are too many to be held are yielded at once; a later error is then one of the shard.
        """
        if self.on_error == "raise":
            yield from results_of_row()
            return
        try:
            results = iter(results_of_row())
            held = _first_of(results)
        except Exception as error:
            self.reject(error)
            return
        yield from held
        yield from results

    def filtered(self, fn: Callable[[_T], Any], rows: Iterator[_T]) -> Iterator[_T]:
        """Keep the rows for which ``fn`` is true."""
        if self.on_error == "raise":
            return (row for row in rows if fn(row))
        return (row for row, keep in self._guarded(lambda row: (row, fn(row)), rows) if keep)


current_rows: Final[ContextVar[Rows | None]] = ContextVar("tradewind_rows", default=None)
"""The shard that this thread processes."""
