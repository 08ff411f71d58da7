"""Parquet by row groups: only the columns that are shown, in small batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

from tradewind.browsing.access import Access, OutOfTimeError, Stored
from tradewind.browsing.answers import Column, Fact
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_COLUMNS, MAX_FOOTER_BYTES
from tradewind.browsing.paging import Asked, RawRow
from tradewind.browsing.refusals import TooLargeError, UnreadableError
from tradewind.text import quote_first_names, single_line

_BATCH_ROWS: Final = (1024, 16, 1)
"""Rows of a batch at most; fewer if they take too much memory, since a packed row may be a million times as large."""
_BATCH_BYTES: Final = 8 << 20
"""Size of a batch in memory, as far as the metadata tell."""
_BUFFER_BYTES: Final = 4 << 20
"""Read ahead, all columns together."""
_TAIL_BYTES: Final = 8


class ParquetSource:
    """Rows from a number on; a place is the number of a row, from 0."""

    def __init__(self, access: Access, stored: Stored, asked: Asked) -> None:
        self._access = access
        self._path = stored.path
        self._asked = asked
        self._file = access.open(stored.path)
        self._opened = _open(self._file, stored)
        self.total: int | None = self._opened.metadata.num_rows
        names = self._opened.schema_arrow.names
        if missing := [name for name in asked.columns if name not in names]:
            raise UnreadableError(f"{stored.path} has no column {missing[0]!r}: it has {quote_first_names(names)}.")
        shown = list(dict.fromkeys(asked.columns or names))
        self.note: str | None = None
        if len(shown) > MAX_COLUMNS:
            self.note = f"The file has {len(names):,} columns, and a page shows {MAX_COLUMNS}: name others to see them."
        self._names = shown[:MAX_COLUMNS]
        types = {field.name: str(field.type) for field in self._opened.schema_arrow}
        self.columns: list[Column] | None = [Column(name, types[name]) for name in self._names]
        self._next = self._first()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def after(self) -> str | None:
        return None if self._next >= (self.total or 0) else str(self._next)

    def position(self) -> float | None:
        return round(min(self._next / self.total, 1.0), 6) if self.total else 1.0

    def _first(self) -> int:
        if self._asked.cursor:
            if not self._asked.cursor.isascii() or not self._asked.cursor.isdecimal():
                raise UnreadableError(f"{self._path} has no row {self._asked.cursor!r}.")
            return int(self._asked.cursor[:18])
        if self._asked.at is not None:
            return int((self.total or 0) * self._asked.at)
        return self._asked.start or 0

    def __iter__(self) -> Iterator[RawRow]:
        import pyarrow as pa

        try:
            for most in _BATCH_ROWS:
                try:
                    for batch in self._batches(most):
                        for row in _rows_of(batch, self._asked.raw_chars):
                            self._next += 1
                            yield RawRow(str(self._next - 1), self._next, row)
                    return
                except MemoryError:  # pyarrow's own derives from it
                    if most == _BATCH_ROWS[-1]:
                        raise
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UnreadableError(
                f"{self._path} cannot be read on after row {self._next:,}: {single_line(error).rstrip('.')}."
            ) from error

    def _batches(self, most: int) -> Iterator[Any]:
        """Yield record batches from the first row on, one row group after another."""
        metadata = self._opened.metadata
        before = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if before + group.num_rows > self._next:
                skipped = self._next - before
                size = sum(
                    group.column(at).total_uncompressed_size
                    for at in range(group.num_columns)
                    if group.column(at).path_in_schema.partition(".")[0] in self._names
                )
                fitting = _BATCH_BYTES * group.num_rows // max(size, 1)
                wanted = most if self._asked.filter else min(most, max(self._asked.limit, 1))
                count = max(min(fitting, wanted), 1)
                for batch in self._opened.iter_batches(count, row_groups=[number], columns=self._names):
                    if skipped >= batch.num_rows:
                        skipped -= batch.num_rows
                        if self._access.left_s < 0:
                            raise OutOfTimeError(self.position() or 0.0, str(self._next))
                        continue
                    yield batch.slice(skipped)
                    skipped = 0
            before += group.num_rows


def rows(access: Access, stored: Stored, asked: Asked) -> ParquetSource:
    """Return the rows of a Parquet file."""
    return ParquetSource(access, stored, asked)


def describe(access: Access, stored: Stored) -> Details:
    """Return schema and counts, which the footer has."""
    with access.open(stored.path) as file:
        opened = _open(file, stored)
        metadata = opened.metadata
        schema = opened.schema_arrow
        groups = metadata.num_row_groups
        facts = [Fact("row groups", f"{groups:,}"), Fact("written by", single_line(metadata.created_by or "unknown"))]
        if groups:
            first = metadata.row_group(0)
            facts.append(Fact("rows in the first group", f"{first.num_rows:,}"))
            if first.num_columns:
                facts.append(Fact("compression", str(first.column(0).compression).lower()))
        columns = [Column(field.name, str(field.type)) for field in list(schema)[:MAX_COLUMNS]]
    notes = [] if len(schema) <= MAX_COLUMNS else [f"The file has {len(schema):,} columns; {MAX_COLUMNS} are listed."]
    return Details(columns=columns, rows=metadata.num_rows, facts=facts, notes=notes)


def _open(file: IO[bytes], stored: Stored) -> Any:
    """Open a file, after a look at the size of its footer.

    Raises:
        TooLargeError: The footer is too large.
        UnreadableError: It is no Parquet file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file.seek(max(stored.size - _TAIL_BYTES, 0))
        tail = file.read(_TAIL_BYTES)
        size = int.from_bytes(tail[:4], "little")
        if tail[4:] == b"PAR1" and size > MAX_FOOTER_BYTES:
            raise TooLargeError(
                f"{stored.path} has a footer of {size:,} bytes, and a page reads {MAX_FOOTER_BYTES >> 20} MB: it has "
                "too many row groups or columns."
            )
        metadata = parquet.read_metadata(file)
        read_ahead = max(min(_BUFFER_BYTES // max(metadata.num_columns, 1), 1 << 20), 1 << 12)
        return parquet.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=read_ahead)
    except pa.ArrowMemoryError:
        raise MemoryError from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnreadableError(
            f"{stored.path} is no readable Parquet file: {single_line(error).rstrip('.')}."
        ) from error


def _rows_of(batch: Any, chars: int | None) -> Iterator[Mapping[str, Any]]:
    names = batch.schema.names
    columns = [_values_of(batch.column(at), chars) for at in range(batch.num_columns)]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))
    if not columns:
        yield from ({} for _ in range(batch.num_rows))


def _values_of(array: Any, chars: int | None) -> Sequence[Any]:
    """Return the values of a column; texts and lists only as long as a page shows them."""
    import pyarrow as pa
    from pyarrow import compute

    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if chars is not None:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            array = compute.utf8_slice_codeunits(array, 0, chars)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            array = compute.binary_slice(array, 0, chars)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            array = compute.list_slice(array, 0, chars)
    try:
        values: list[Any] = array.to_pylist()
    except (ValueError, OverflowError, TypeError):  # a time that Python does not have
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        values = [str(value) if value.is_valid else None for value in array.view(width)]
    return values
