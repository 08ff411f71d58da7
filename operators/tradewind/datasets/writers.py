"""Write the rows of one shard to a file, which appears only when complete, with its size and checksum."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import IO, Any, Final

from tradewind.datasets.cache_rows import write_cache
from tradewind.datasets.files import atomic_writer
from tradewind.datasets.rows import RowError, Rows, SeveralRowsError, rough_size
from tradewind.text import single_line, truncated_repr

_GZIP_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 3
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = 1 << 26
"""Rows of Parquet are written in groups of so many rows, or of about so many bytes of text."""
_HINT: Final = "Give all rows values of one type, or give write_parquet a schema."
_BUFFER_BYTES: Final = 1 << 20
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class WrittenFile:
    """A file that a shard wrote.

    Attributes:
        path: Where it is.
        size_bytes: Its size.
        crc32: Checksum of its bytes.
        rows: Number of rows in it.
    """

    path: str
    size_bytes: int
    crc32: int
    rows: int


def write_rows(kind: str, path: str, stream: Iterable[Any], rows: Rows, options: dict[str, Any]) -> WrittenFile:
    """Write ``stream`` to ``path`` with the writer ``kind``: ``jsonl``, ``parquet``, ``levanter_cache`` or ``binary``.

    Raises:
        RowError: A row does not fit into the file, and ``rows`` leaves out none, or not one of Parquet.
    """
    with atomic_writer(path) as file:
        summed = SummedFile(file)
        match kind:
            case "parquet":
                count = _write_parquet(summed, path, stream, **options)
            case "levanter_cache":
                count = write_cache(summed, path, stream, **options)
            case "jsonl":
                count = _write_lines(summed, path, rows.mapped(_json_line, iter(stream)))
            case _:
                name = "" if options.get("is_packed") else path
                count = _write_lines(summed, name, rows.mapped(_plain_bytes, iter(stream)))
    return WrittenFile(path, summed.size, summed.crc32, count)


class SummedFile(io.RawIOBase):
    """A file that knows size and checksum of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = self.crc32 = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def tell(self) -> int:
        return self.size


def _write_lines(file: SummedFile, path: str, lines: Iterable[bytes]) -> int:
    count = 0
    with _packed(file, path) as packed:
        for count, line in enumerate(lines, 1):  # noqa: B007
            packed.write(line)
    return count


def _json_line(row: Any) -> bytes:
    try:
        return _encode(row).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:  # an object, a cycle, half of a character
        raise RowError(f"A row has no JSON form: {single_line(error)}: {truncated_repr(row)}.") from error


def _plain_bytes(row: Any) -> Any:
    if not isinstance(row, (bytes, bytearray, memoryview)):
        raise RowError(f"write_binary got a {type(row).__name__}: give bytes.")
    return row


@contextmanager
def _packed(file: SummedFile, path: str) -> Iterator[Any]:
    """Compress as the ending of the name says; the same rows give the same bytes."""
    with ExitStack() as stack:
        buffered = stack.enter_context(io.BufferedWriter(file, _BUFFER_BYTES))
        if path.endswith((".gz", ".gzip")):
            yield stack.enter_context(io.BufferedWriter(_gzip_into(buffered), _BUFFER_BYTES))
        elif path.endswith((".zst", ".zstd")):
            import zstandard

            packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
            yield stack.enter_context(packer.stream_writer(buffered, closefd=False))
        else:
            yield buffered


def _gzip_into(file: Any) -> Any:
    """Return a gzip writer with neither name nor time in its header: isal's if it is installed."""
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=_GZIP_LEVEL)
    return igzip.IGzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=_GZIP_LEVEL)


def _write_parquet(file: SummedFile, path: str, stream: Iterable[Any], schema: Any = None) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    count = 0
    with ExitStack() as stack:
        writer: Any = None
        for batch in _batches(stream):
            place = f"{path} rows {count + 1:,} and following: "
            table = _table(batch, schema, place)
            if writer is None:
                schema = table.schema
                sink = pa.PythonFile(file, mode="w")
                writer = stack.enter_context(parquet.ParquetWriter(sink, schema, compression="zstd"))
            elif table.schema != schema:
                raise SeveralRowsError(f"{place}the record batch has another schema: {single_line(table.schema)}.")
            try:
                writer.write_table(table)
            except pa.ArrowException as error:  # None in a column of a schema that allows none
                raise SeveralRowsError(f"{place}{single_line(error).rstrip('.')}.") from error
            count += table.num_rows
    return count


def _batches(stream: Iterable[Any]) -> Iterator[Any]:
    """Yield record batches as they are, and other rows in lists; one empty list if there is none."""
    batch: list[Any] = []
    size, is_first = 0, True
    for row in stream:
        if not isinstance(row, dict):
            if not hasattr(row, "num_rows") or batch:
                raise RowError(f"write_parquet got a {type(row).__name__}: give dicts, or only record batches.")
            yield row
            is_first = False
            continue
        batch.append(row)
        size += rough_size(row)
        if len(batch) == _BATCH_ROWS or size > _BATCH_BYTES:
            yield batch
            batch, size, is_first = [], 0, False
    if batch or is_first:
        yield batch


def _table(batch: Any, schema: Any, place: str) -> Any:
    """Return the rows as a table of ``schema``, which no column may silently leave or change."""
    import pyarrow as pa

    if not isinstance(batch, list):
        return batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    names = list(dict.fromkeys(name for row in batch for name in row))
    if bad := [name for name in names if not isinstance(name, str)]:
        raise SeveralRowsError(f"{place}they have the column {truncated_repr(bad[0])}: names are texts.")
    if batch and not names:
        raise SeveralRowsError(f"{place}they have no column, which Parquet cannot hold.")
    kinds = dict.fromkeys(names) if schema is None else {field.name: field.type for field in schema}
    if unknown := [name for name in names if name not in kinds]:
        raise SeveralRowsError(
            f"{place}they have the column {truncated_repr(unknown[0])}, and earlier rows or the schema not. {_HINT}"
        )
    arrays = [_array(name, kind, [row.get(name) for row in batch], place) for name, kind in kinds.items()]
    if schema is not None:
        return pa.Table.from_arrays(arrays, schema=schema)
    return pa.Table.from_arrays(arrays, names=list(kinds))


def _array(name: str, kind: Any, values: list[Any], place: str) -> Any:
    import pyarrow as pa

    if kind is None and {date, datetime} <= {type(value) for value in values}:
        raise SeveralRowsError(
            f"{place}the column {truncated_repr(name)} has dates and times: make all of them one. {_HINT}"
        )
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        earlier = "" if kind is None else f", and is {kind} in earlier rows or the schema"
        raise SeveralRowsError(
            f"{place}the column {truncated_repr(name)} does not fit{earlier}: {single_line(error).rstrip('.')}. {_HINT}"
        ) from error
    if kind is not None and (lost := _lost(values, kind)):
        raise SeveralRowsError(
            f"{place}the column {truncated_repr(name)} has {lost}, and earlier rows or the schema have not. {_HINT}"
        )
    return array


def _lost(values: list[Any], kind: Any) -> str | None:
    """Return what Arrow would leave out or cut off without a word when it makes ``kind`` of the values."""
    import pyarrow as pa

    if not (pa.types.is_nested(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
        return None
    try:
        return _lost_of(pa.array(values).type, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # pairs for a map, which has a type for each
        return None


def _lost_of(found: Any, kind: Any) -> str | None:
    from pyarrow import types

    if types.is_floating(found) and types.is_integer(kind):
        return f"numbers of the type {found}"
    if types.is_timestamp(found) and types.is_date(kind):
        return "times"
    if types.is_struct(found) and types.is_struct(kind):
        for field in found:
            if kind.get_field_index(field.name) < 0:
                return f"the field {truncated_repr(field.name)}"
            if lost := _lost_of(field.type, kind.field(field.name).type):
                return lost
    if types.is_list(found) and hasattr(kind, "value_type"):
        return _lost_of(found.value_type, kind.value_type)
    return None
