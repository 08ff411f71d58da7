"""The rows of one file, each with its number; a file is read once, from its beginning to its end."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from tradewind.datasets.files import basename, is_remote
from tradewind.datasets.one_line import in_a_line, some_names
from tradewind.storage import open_file

_READ_BYTES: Final = 1 << 20
_PARQUET_ROWS: Final = 1024
LONGEST_LINE_BYTES: Final = 1 << 28
"""A packed file of some megabytes may hold a line that fills the memory."""
LARGEST_LIST_BYTES: Final = 1 << 31
"""Of a file that is one JSON list, which is read whole."""


class TokenizingError(ValueError):
    """A file, or a row of it, cannot be tokenized; it begins with the file and the line."""


def rows_of(path: str, column: str | None) -> Iterator[tuple[int, Any]]:
    """Number, from 1 on, and value of each row; of a Parquet file only ``column``, if one is given.

    Lines with nothing but white space are left out.

    Raises:
        TokenizingError: The file is not what its name says, or has no such column.
    """
    if path.endswith(".parquet"):
        return _parquet_rows(path, column)
    return _json_rows(path)


def row_place(path: str, number: int) -> str:
    """Where a row is, for an error."""
    return f"{path} {'row' if path.endswith('.parquet') else 'line'} {number:,}"


def _json_rows(path: str) -> Iterator[tuple[int, Any]]:
    number = 0
    with _uncompressed(path) as file:
        try:
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE_BYTES + 1), b""), start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if ".jsonl" not in basename(path) and line.lstrip()[:1] == b"[":
                        yield from enumerate(_list(line, file), start=1)
                        return
                if len(line) > LONGEST_LINE_BYTES:
                    raise ValueError(f"it has more than {LONGEST_LINE_BYTES:,} bytes")
                if line.strip():
                    yield number, json.loads(line)
        except (OSError, EOFError, zlib.error) as error:
            raise TokenizingError(f"{path} cannot be read on after line {number:,}: {error}.") from error
        except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or brackets without end
            raise TokenizingError(f"{row_place(path, number)} is malformed: {in_a_line(error)}.") from error


def _list(line: bytes, file: Any) -> Any:
    content = line + file.read(LARGEST_LIST_BYTES)
    if len(content) > LARGEST_LIST_BYTES:
        raise ValueError(f"the list has more than {LARGEST_LIST_BYTES:,} bytes")
    return json.loads(content)


@contextmanager
def _uncompressed(path: str) -> Iterator[Any]:
    with ExitStack() as stack:
        file = stack.enter_context(open_file(path))
        if path.endswith(".gz"):
            yield stack.enter_context(gzip.open(file))
        elif path.endswith((".zst", ".zstd")):
            import pyarrow as pa

            stream = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))
            yield io.BufferedReader(stream, _READ_BYTES)
        else:
            yield io.BufferedReader(file, _READ_BYTES) if is_remote(path) else file


def _parquet_rows(path: str, column: str | None) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    with open_file(path) as file:
        try:
            opened = parquet.ParquetFile(file)
            names = opened.schema_arrow.names
            if column is not None and column not in names:
                raise TokenizingError(f"{row_place(path, 1)} has no {column!r}: its columns are {some_names(names)}.")
            for batch in opened.iter_batches(_PARQUET_ROWS, columns=None if column is None else [column]):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TokenizingError(f"{path} cannot be read on after row {number:,}: {in_a_line(error)}.") from error
