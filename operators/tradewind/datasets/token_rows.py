"""Read the rows of one file, or of a span of its bytes, in one pass, with their numbers.

A row belongs to the span in which it begins: a line with its first byte, a Parquet row group with its first page. So
consecutive spans of a file contain each row once, wherever the cuts are.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from tradewind.datasets.files import basename, is_remote
from tradewind.storage import open_file
from tradewind.text import quote_first_names, single_line

_READ_BYTES: Final = 1 << 20
_PARQUET_ROWS: Final = 1024
_ZSTD_HEADER_BYTES: Final = 18
"""Largest header of a frame."""
_ZSTD_INPUT_BYTES: Final = 2048
"""Bytes that are decompressed at a time: each three may become a block of 128 KiB."""
_MAX_ARROW_WINDOW_BYTES: Final = 1 << 27
_MAX_WINDOW_BYTES: Final = 1 << 31
MAX_LINE_BYTES: Final = 1 << 28
"""Bound for a line: a compressed file of some megabytes may hold one that fills the memory."""
MAX_JSON_LIST_BYTES: Final = 1 << 31
"""Bound for a file that is one JSON list, which is read at once."""


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


def rows_of(path: str, column: str | None, span: Span = WHOLE) -> Iterator[tuple[int, Any]]:
    """Yield number, from 1, and value of each row; of a Parquet file only ``column``, if given.

    Blank lines are left out. In a span that does not begin the file, the number of a line is its byte offset, since
    the count of the lines before is unknown.

    Raises:
        TokenizingError: The file is not what its name says, or has no such column.
    """
    if path.endswith(".parquet"):
        return _parquet_rows(path, column, span)
    return _json_rows(path, span)


def row_place(path: str, number: int, span: Span = WHOLE) -> str:
    """Return the place of a row, for an error."""
    if path.endswith(".parquet"):
        return f"{path} row {number:,}"
    return f"{path} {_line(number, span)}"


def _line(number: int, span: Span) -> str:
    return f"line at byte {number:,}" if span.start else f"line {number:,}"


def _json_rows(path: str, span: Span) -> Iterator[tuple[int, Any]]:
    number = span.start
    try:
        with _uncompressed(path) as file:
            for number, line in _lines(file, span):
                if number == 1 and not span.start:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if ".jsonl" not in basename(path) and line.lstrip()[:1] == b"[":
                        yield from enumerate(_read_list(line, file), start=1)
                        return
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError(f"it has more than {MAX_LINE_BYTES:,} bytes")
                if line.strip():
                    yield number, json.loads(line)
    except (OSError, EOFError, zlib.error) as error:
        place = _line(number, span)
        raise TokenizingError(f"{path} cannot be read on after {place}: {single_line(error)}.") from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or too deep
        raise TokenizingError(f"{row_place(path, number, span)} is malformed: {single_line(error)}.") from error


def _lines(file: Any, span: Span) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in the span, with their numbers; of an overlong line only its beginning."""
    at = count = 0
    if span.start:
        file.seek(span.start - 1)
        at = span.start - 1 + _skip_line(file)
    while span.end is None or at < span.end:
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        count += 1
        yield at if span.start else count, line
        at += len(line)


def _skip_line(file: Any) -> int:
    """Read to the next line, which may be far; return the bytes read."""
    count = 0
    while line := file.readline(MAX_LINE_BYTES):
        count += len(line)
        if line.endswith(b"\n"):
            break
    return count


def _read_list(line: bytes, file: Any) -> Any:
    content = line + file.read(MAX_JSON_LIST_BYTES)
    if len(content) > MAX_JSON_LIST_BYTES:
        raise ValueError(f"the list has more than {MAX_JSON_LIST_BYTES:,} bytes")
    return json.loads(content)


@contextmanager
def _uncompressed(path: str) -> Iterator[Any]:
    with ExitStack() as stack:
        file = stack.enter_context(open_file(path))
        if path.endswith(".gz"):
            yield stack.enter_context(gzip.open(file))
        elif path.endswith((".zst", ".zstd")):
            import pyarrow as pa

            if _has_long_window(file):
                yield io.BufferedReader(_LongWindowReader(file), _READ_BYTES)
                return
            stream = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))
            yield io.BufferedReader(stream, _READ_BYTES)
        else:
            yield io.BufferedReader(file, _READ_BYTES) if is_remote(path) else file


def _has_long_window(file: Any) -> bool:
    """Whether Arrow's decoder would refuse the first frame, as written by ``zstd --long``; the file stays at 0."""
    import zstandard

    head = file.read(_ZSTD_HEADER_BYTES)
    file.seek(0)
    try:
        return bool(zstandard.get_frame_parameters(head).window_size > _MAX_ARROW_WINDOW_BYTES)
    except zstandard.ZstdError:
        return False  # Arrow says what is wrong


class _LongWindowReader(io.RawIOBase):
    """Reads frames with windows up to the format's 2 GiB, which take as much memory (RFC 8878, section 3.1.1.1.2)."""

    def __init__(self, file: Any) -> None:
        import zstandard

        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = self._input or self._file.read(_ZSTD_INPUT_BYTES)
            if not data:
                if self._frame is not None:
                    raise EOFError("the file ends inside a compressed frame")
                return 0
            content, self._input = self._decompress(data)
            self._output = memoryview(content)
        count = min(len(buffer), len(self._output))
        buffer[:count], self._output = self._output[:count], self._output[count:]
        return count

    def _decompress(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the content of ``data``, and the bytes of it that belong to the next frame."""
        import zstandard

        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        try:
            content = self._frame.decompress(data)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        if not self._frame.eof:
            return content, b""
        rest, self._frame = self._frame.unused_data, None
        return content, rest


def _parquet_rows(path: str, column: str | None, span: Span) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with open_file(path) as file:
            opened = parquet.ParquetFile(file)
            names = opened.schema_arrow.names
            if column is not None and column not in names:
                raise TokenizingError(
                    f"{row_place(path, 1)} has no {column!r}: its columns are {quote_first_names(names)}."
                )
            groups, number = _groups(opened.metadata, span)
            wanted = None if column is None else [column]
            for batch in opened.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TokenizingError(
            f"{path} cannot be read on after row {number:,}: {single_line(error).rstrip('.')}."
        ) from error


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
