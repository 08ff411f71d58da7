"""Write the rows of one shard to a file, which appears only when complete, with its size and checksum."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

from tradewind.datasets.files import atomic_writer
from tradewind.datasets.rows import RowError
from tradewind.text import single_line, truncated_repr

_GZIP_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 3
_BATCH_ROWS: Final = 10_000
_BUFFER_BYTES: Final = 1 << 20


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


def write_rows(kind: str, path: str, rows: Iterable[Any], options: dict[str, Any]) -> WrittenFile:
    """Write ``rows`` to ``path`` with the writer ``kind``: ``jsonl``, ``parquet`` or ``binary``.

    Raises:
        RowError: A row does not fit into the file.
    """
    writer = {"jsonl": _write_jsonl, "parquet": _write_parquet, "binary": _write_binary}[kind]
    with atomic_writer(path) as file:
        summed = SummedFile(file)
        count = writer(summed, path, rows, **options)
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


def _write_jsonl(file: SummedFile, path: str, rows: Iterable[Any]) -> int:
    count = 0
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    with _packed(file, path) as packed:
        for count, row in enumerate(rows, 1):  # noqa: B007
            try:
                packed.write(encode(row).encode() + b"\n")
            except (TypeError, ValueError, RecursionError) as error:  # an object, a cycle, half of a character
                raise RowError(f"A row has no JSON form: {single_line(error)}: {truncated_repr(row)}.") from error
    return count


def _write_binary(file: SummedFile, path: str, rows: Iterable[Any]) -> int:
    count = 0
    with _packed(file, path) as packed:
        for count, row in enumerate(rows, 1):  # noqa: B007
            if not isinstance(row, (bytes, bytearray, memoryview)):
                raise RowError(f"write_binary got a {type(row).__name__}: give bytes.")
            packed.write(row)
    return count


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


def _write_parquet(file: SummedFile, path: str, rows: Iterable[Any], schema: Any = None) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    stream = iter(rows)
    first = list(itertools.islice(stream, _BATCH_ROWS))
    count = 0
    with ExitStack() as stack:
        batches = itertools.chain([first], iter(lambda: list(itertools.islice(stream, _BATCH_ROWS)), []))
        writer: Any = None
        for batch in batches:
            try:
                table = _table(batch, schema, count)
            except pa.ArrowException as error:
                raise RowError(
                    f"Rows {count + 1:,} and following do not fit into Parquet: {single_line(error)}."
                ) from error
            if writer is None:
                schema = table.schema
                sink = pa.PythonFile(file, mode="w")
                writer = stack.enter_context(parquet.ParquetWriter(sink, schema, compression="zstd"))
            writer.write_table(table)
            count += len(batch)
    return count


def _table(batch: list[Any], schema: Any, before: int) -> Any:
    """Return the rows as a table of ``schema``, which no column may silently leave or change."""
    import pyarrow as pa

    if batch and not isinstance(batch[0], dict):
        if isinstance(batch[0], pa.RecordBatch):
            return pa.Table.from_batches(batch)
        raise RowError(f"write_parquet got a {type(batch[0]).__name__}: give dicts or record batches.")
    names = {name for row in batch for name in row}
    if schema is None:
        return pa.Table.from_pylist(batch, pa.schema([])) if not batch else _inferred(batch)
    if unknown := sorted(names - set(schema.names)):
        raise RowError(
            f"Rows {before + 1:,} and following have the column {unknown[0]!r}, which earlier rows have not: give all "
            "rows the same columns, or write_parquet a schema."
        )
    return pa.Table.from_pylist(batch, schema)


def _inferred(batch: list[Any]) -> Any:
    import pyarrow as pa

    ordered = dict.fromkeys(name for row in batch for name in row)
    columns = {name: [row.get(name) for row in batch] for name in ordered}
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values)
        except pa.ArrowException as error:
            raise RowError(f"Column {name!r} has values of several types: {single_line(error)}.") from error
    return pa.table(arrays)
