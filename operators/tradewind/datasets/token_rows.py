"""Read the rows of one file, or of a span of its bytes, in one pass, with their numbers.

A row belongs to the span in which it begins: a line with its first byte, a Parquet row group with its first page. So
consecutive spans of a file contain each row once, wherever the cuts are.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import IO, Any, Final, NamedTuple, cast

from tradewind.datasets.files import basename, is_remote
from tradewind.storage import open_file
from tradewind.text import quote_first_names, single_line

_READ_BYTES: Final = 1 << 20
_PARQUET_ROWS: Final = 1024
_MAX_WINDOW_BYTES: Final = 1 << 31
"""Largest window of a zstd frame, which takes as much memory (RFC 8878, section 3.1.1.1.2)."""
_MARK_BYTES: Final = 16
MAX_LINE_BYTES: Final = 1 << 25
"""Bound for a line, an element of a list and a text: tokenizers take some 200 bytes of memory a character."""
_PLAIN_BYTES: Final = 1 << 22
"""A line up to this size may hold any number of values."""
_MAX_VALUES: Final = 1 << 22
_MAX_BLANK: Final = 1_000_000
"""Blank lines in sequence: some bytes of a packed file are billions of them."""
POINTER: Final = b"version https://git-lfs.github.com/spec/v1"
"""Beginning of the small file that Git has in place of a large one."""
IS_POINTER: Final = (
    "is a pointer of Git LFS, and not the data itself: fetch that with 'git lfs pull', or download the repository with "
    "default_download."
)
SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a character, which has no UTF-8 form; JSON may contain it as an escape."""
_SIGNS: Final = (b"[", b"{", b'"')
_BLANK: Final = re.compile(r"[ \t\r\n]*")

Open = Callable[[str], AbstractContextManager[IO[bytes]]]
"""Opens a file by its path."""


class TokenizingError(ValueError):
    """A file, or a row of it, cannot be tokenized. The message begins with the file and the line."""


class Span(NamedTuple):
    """Bytes of a file from ``start`` to before ``end``; None is the end of the file."""

    start: int = 0
    end: int | None = None


WHOLE: Final = Span()


def spans_of(path: str, size_bytes: int, max_bytes: int) -> list[Span]:
    """Cut a file into spans that workers can read separately; one if it must be read from its beginning."""
    if not path.endswith((".jsonl", ".parquet")) or size_bytes <= max_bytes:
        return [WHOLE]
    starts = range(0, size_bytes, max_bytes)
    return [Span(start, start + max_bytes) for start in starts[:-1]] + [Span(starts[-1])]


def rows_of(
    path: str, column: str | None, span: Span = WHOLE, open_path: Open = open_file
) -> Iterator[tuple[int, Any]]:
    """Yield number, from 1, and value of each row; of a Parquet file only ``column``, if given.

    Blank lines are left out. In a span that does not begin the file, the number of a line is its byte offset, since
    the count of the lines before is unknown.

    Raises:
        TokenizingError: The file is not what its name says, or has no such column.
    """
    if path.endswith(".parquet"):
        return _parquet_rows(path, column, span, open_path)
    return _json_rows(path, span, open_path)


def row_place(path: str, number: int, span: Span = WHOLE) -> str:
    """Return the place of a row, for an error."""
    if path.endswith(".parquet"):
        return f"{path} row {number:,}"
    return f"{path} {_line(number, span)}"


def _line(number: int, span: Span) -> str:
    return f"line at byte {number:,}" if span.start else f"line {number:,}"


def _json_rows(path: str, span: Span, open_path: Open) -> Iterator[tuple[int, Any]]:
    number = span.start
    try:
        with open_unpacked(path, open_path) as file:
            blank = 0
            for number, line in lines_of(file, span):
                is_first = number == 1 and not span.start
                if is_first and ".jsonl" not in basename(path) and line.lstrip()[:1] == b"[":
                    _check_values(line, _SIGNS)
                    for number, value in _JsonList(line, file):
                        yield number, value
                    return
                if line.strip():
                    yield number, parse_line(line)
                    blank = 0
                elif (blank := blank + 1) > _MAX_BLANK:
                    raise ValueError(f"more than {_MAX_BLANK:,} blank lines end there")
    except (OSError, EOFError, zlib.error) as error:
        check_no_pointer(path, open_path)
        place = _line(number, span)
        raise TokenizingError(f"{path} cannot be read on after {place}: {single_line(error)}.") from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or too deep
        check_no_pointer(path, open_path)
        raise TokenizingError(f"{row_place(path, number, span)} is malformed: {single_line(error)}.") from error


def parse_line(line: bytes) -> Any:
    """Return the value of a line of JSON lines.

    Raises:
        ValueError: It is no JSON, or too long; ``RecursionError`` if it is too deep.
    """
    _check_values(line, _SIGNS)
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it has more than {MAX_LINE_BYTES:,} bytes: split its text")
    return json.loads(line)


def _check_values(content: Any, signs: Sequence[Any]) -> None:
    """Refuse JSON that is small itself, and fills the memory with empty lists or short texts."""
    if len(content) > _PLAIN_BYTES:
        list_sign, object_sign, quote = map(content.count, signs)
        if list_sign + object_sign + quote // 2 > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES:,} values")


def check_no_pointer(path: str, open_path: Open) -> None:
    """Raise ``TokenizingError`` if the file is a pointer of Git LFS."""
    with suppress(OSError), open_path(path) as file:
        if file.read(len(POINTER)) == POINTER:
            raise TokenizingError(f"{path} {IS_POINTER}")


class _JsonList:
    """Numbers and values of a list's elements, one in memory at a time.

    Args:
        head: The beginning of the list.
        file: The rest.
    """

    def __init__(self, head: bytes, file: Any) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._to_text = codecs.getincrementaldecoder("utf-8")()
        self._text = self._to_text.decode(head).lstrip()
        self._at = 1
        self._number = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        sign = self._next_sign()
        while sign != "]":
            self._number += 1
            yield self._number, self._value()
            sign = self._next_sign()
            if sign not in (",", "]"):
                after = f"is followed by {sign!r}" if sign else "is the last, and the list is cut off"
                raise ValueError(f"element {self._number:,} of its list {after}")
            self._at += 1
        self._at += not self._number
        if self._next_sign():
            raise ValueError("its list is followed by something else")

    def _next_sign(self) -> str:
        """Return the next character that is no blank; empty at the end of the file."""
        while True:
            blanks = _BLANK.match(self._text, self._at)
            self._at = blanks.end() if blanks is not None else self._at
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        self._next_sign()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._read_on():
                    raise ValueError(f"element {self._number:,} of its list: {error.msg}") from error
                continue
            if end < len(self._text) or not self._read_on():  # else it may be the beginning of a number
                self._at = end
                return value

    def _read_on(self) -> bool:
        """Read at least as much as is left; return whether there was something."""
        left = len(self._text) - self._at
        if left >= MAX_LINE_BYTES:
            raise ValueError(f"element {self._number:,} of its list has more than {MAX_LINE_BYTES:,} characters")
        more = self._file.read(max(_READ_BYTES, left))
        if more:
            self._text, self._at = self._text[self._at :] + self._to_text.decode(more), 0
            _check_values(self._text, '[{"')
        else:
            self._to_text.decode(b"", True)
        return bool(more)


def lines_of(file: Any, span: Span) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in the span, with their numbers; of an overlong line only its beginning.

    A byte order mark at the beginning of the file is left out.
    """
    at = count = 0
    if span.start:
        file.seek(span.start - 1)
        at = span.start - 1 + skip_line(file)
    while span.end is None or at < span.end:
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        count += 1
        number, at = (at if span.start else count), at + len(line)
        yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 and not span.start else line


def skip_line(file: Any) -> int:
    """Read to the next line, which may be far; return the bytes read."""
    count = 0
    while line := file.readline(MAX_LINE_BYTES):
        count += len(line)
        if line.endswith(b"\n"):
            break
    return count


@contextmanager
def open_unpacked(path: str, open_path: Open = open_file) -> Iterator[Any]:
    """Open a file that may be packed (``.gz``, ``.zst``, ``.zstd``, ``.bz2``) for reading of its content."""
    with ExitStack() as stack:
        file = stack.enter_context(open_path(path))
        if path.endswith(".gz"):
            stack.enter_context(_damaged_gzip())
            yield stack.enter_context(_gzip().open(file))
        elif path.endswith(".bz2"):
            yield stack.enter_context(bz2.open(file))
        elif path.endswith((".zst", ".zstd")):
            yield io.BufferedReader(_ZstdReader(file), _READ_BYTES)
        else:
            yield io.BufferedReader(file, _READ_BYTES) if is_remote(path) else file


@contextmanager
def _damaged_gzip() -> Iterator[None]:
    """Raise isal's errors of damaged content, which it derives from none, as those of zlib."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ == "IsalError":
            raise zlib.error(str(error)) from error
        raise


def _gzip() -> Any:
    """Return the module that reads gzip: isal's if it is installed, which is twice as fast."""
    try:
        from isal import igzip
    except ImportError:
        return gzip
    return igzip


class _ZstdReader(io.RawIOBase):
    """Reads all frames, with windows up to the format's 2 GiB; Arrow's reader refuses those above 128 MiB.

    The library does not say whether a file ends inside a frame, so a frame with a mark follows the file. After a whole
    frame the mark is read at the end, and otherwise not.
    """

    def __init__(self, file: Any) -> None:
        import zstandard

        self._error: type[Exception] = zstandard.ZstdError
        self._mark = os.urandom(_MARK_BYTES)
        end = zstandard.ZstdCompressor(write_checksum=True).compress(self._mark)  # it does not end with the mark
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        self._stream = decompressor.stream_reader(cast(Any, _Chain(file, end)), read_across_frames=True)
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._held) <= _MARK_BYTES:
            try:
                data = self._stream.read(len(buffer))
            except self._error as error:
                raise OSError(str(error)) from error
            if not data:
                if self._held != self._mark:
                    raise EOFError("the file ends inside a compressed frame")
                return 0
            self._held += data
        count = min(len(buffer), len(self._held) - _MARK_BYTES)
        buffer[:count], self._held = self._held[:count], self._held[count:]
        return count


class _Chain:
    """A file, and bytes that follow it."""

    def __init__(self, file: Any, end: bytes) -> None:
        self._file = file
        self._end = io.BytesIO(end)

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        return data or self._end.read(1)  # zstd takes a frame at the start of its input for a new one, also in a header


def _parquet_rows(path: str, column: str | None, span: Span, open_path: Open) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with open_path(path) as file:
            opened = parquet.ParquetFile(file)
            names = opened.schema_arrow.names
            if not names:  # of a shard without rows
                return
            if column is not None and column not in names:
                raise TokenizingError(
                    f"{row_place(path, 1)} has no {column!r}: its columns are {quote_first_names(names)}."
                    f"{attributes_hint(names)}"
                )
            groups, number = _groups(opened.metadata, span)
            wanted = None if column is None else [column]
            _check_row_sizes(map(opened.metadata.row_group, groups), column)
            for batch in opened.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        check_no_pointer(path, open_path)
        raise TokenizingError(
            f"{path} cannot be read on after row {number:,}: {single_line(error).rstrip('.')}."
        ) from error


def attributes_hint(names: Iterable[Any]) -> str:
    """Return what to do with rows of these columns if they are attributes of documents, which have no text."""
    return " Join attributes with their documents by consolidate(...), and give that." if "attributes" in names else ""


def _check_row_sizes(groups: Iterable[Any], column: str | None) -> None:
    """Refuse row groups whose average row is too large: a batch of them would fill the memory."""
    for group in groups:
        parts = map(group.column, range(group.num_columns))
        read = [part for part in parts if column in (None, part.path_in_schema.partition(".")[0])]
        if sum(part.total_uncompressed_size for part in read) > MAX_LINE_BYTES * max(group.num_rows, 1):
            raise OSError(f"its rows have more than {MAX_LINE_BYTES:,} bytes on average")


def _groups(metadata: Any, span: Span) -> tuple[list[int], int]:
    """Return the row groups that begin in the span, and the number of rows before them."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # Keep the order of rows even if a writer stored a group before its predecessors.
    begins = list(itertools.accumulate(map(_first_byte, groups), max))
    last = math.inf if span.end is None else span.end
    inside = [number for number, begin in enumerate(begins) if span.start <= begin < last]
    return inside, sum(group.num_rows for group in groups[: inside[0]]) if inside else 0


def _first_byte(group: Any) -> int:
    columns = [group.column(number) for number in range(group.num_columns)]
    pages = [page for each in columns for page in (each.dictionary_page_offset, each.data_page_offset)]
    return min((page for page in pages if page is not None), default=0)
