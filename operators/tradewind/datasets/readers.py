"""Read the rows of one file. Each reader takes the state of the shard and a path, and yields rows.

A row that cannot be read is left out or raised, as the pipeline's ``on_error`` says; a file that cannot be read on
always raises. Lines, texts and members are bounded by ``MAX_LINE_BYTES``, packed or not.
"""

from __future__ import annotations

import fnmatch
import lzma
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Final, cast

from tradewind.datasets.rows import RowError, Rows, UnreadableFileError, selected
from tradewind.datasets.token_rows import (
    MAX_LINE_BYTES,
    WHOLE,
    TokenizingError,
    check_no_pointer,
    lines_of,
    open_unpacked,
    parse_line,
    skip_line,
)
from tradewind.datasets.warc_records import warc_rows
from tradewind.storage import open_file
from tradewind.text import quote_first_names, single_line

_PARQUET_ROWS: Final = 256
"""Rows in memory as dicts; some bytes of a packed dictionary may be as many megabytes in each."""
_BATCH_ROWS: Final = 8192
_ENCRYPTED: Final = 1
"""Bit of a member's flags."""
_MAX_DIRECTORY_BYTES: Final = 48 << 20
"""Bound for the directory of an archive: about a million members, which take 400 MB of memory."""
_BATCH_BYTES: Final = 1 << 26
"""Parquet is read in batches of about so many bytes at most, as far as its metadata tell."""
_READ_ERRORS: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)

Reader = Callable[..., Iterator[Any]]


def read_jsonl(rows: Rows, path: str) -> Iterator[Any]:
    """Yield the value of each line that is not blank."""
    with _reading(rows, path), open_unpacked(path) as file:
        for number, line in lines_of(file, WHOLE):
            rows.number, rows.row = number, line
            if not line.strip():
                continue
            try:
                value = parse_line(line)
            except (ValueError, RecursionError) as error:
                rows.row = line[:1000].decode("utf-8", "replace")
                if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    skip_line(file)
                if number == 1:
                    check_no_pointer(path, open_file)
                rows.reject(RowError(f"{path} line {number:,} is malformed: {single_line(error)}."))
                continue
            rows.row = value
            yield value


def read_parquet(
    rows: Rows, path: str, columns: Sequence[str] | None = None, batch_mode: bool = False
) -> Iterator[Any]:
    """Yield each row as a dict, or record batches; ``columns`` keeps only these."""
    import pyarrow as pa
    from pyarrow import parquet

    with _reading(rows, path), open_file(path) as file:
        try:
            opened = parquet.ParquetFile(file)
            if not opened.metadata.num_rows:  # an empty shard, whose rows told the writer no columns
                return
            names = opened.schema_arrow.names
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise RowError(f"{path} has several columns {twice[0]!r}, of which a row can hold only one.")
            if missing := [column for column in columns or () if column not in names]:
                raise RowError(f"{path} has no column {missing[0]!r}: it has {quote_first_names(names)}.")
            size = sum(opened.metadata.row_group(at).total_byte_size for at in range(opened.metadata.num_row_groups))
            most = _BATCH_ROWS if batch_mode else _PARQUET_ROWS
            count = min(max(_BATCH_BYTES * opened.metadata.num_rows // max(size, 1), 1), most)
            for batch in opened.iter_batches(count, columns=None if columns is None else list(columns)):
                if batch_mode:
                    rows.number += batch.num_rows
                    yield batch
                    continue
                for row in batch.to_pylist():
                    rows.number += 1
                    rows.row = row
                    yield row
        except pa.ArrowException as error:
            check_no_pointer(path, open_file)
            raise UnreadableFileError(
                f"{path} is no Parquet file that can be read on after row {rows.number:,}: {single_line(error)}."
            ) from error


def read_file(rows: Rows, path: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the rows of JSON lines or Parquet, by the ending of the name."""
    if path.endswith(".parquet"):
        return read_parquet(rows, path, columns)
    if ".json" not in path.rpartition("/")[2]:
        raise RowError(f"{path} has an unknown ending: load_file reads JSON lines (.jsonl, .gz, .zst) and .parquet.")
    if columns is None:
        return read_jsonl(rows, path)
    return rows.mapped(partial(selected, columns=columns), read_jsonl(rows, path))


def read_text(rows: Rows, path: str) -> Iterator[dict[str, str]]:
    """Yield the whole file as one row."""
    with _reading(rows, path), open_unpacked(path) as file:
        rows.number = 1
        yield {"text": _bounded(file, path).decode("utf-8")}


def read_zip_members(rows: Rows, path: str, pattern: str = "*") -> Iterator[dict[str, Any]]:
    """Yield name and bytes of each member that matches; its name is not a path to write to."""
    with _reading(rows, path), open_file(path) as file, zipfile.ZipFile(cast(Any, _Archive(file, path))) as archive:
        for number, member in enumerate(archive.infolist(), 1):
            if member.is_dir() or not fnmatch.fnmatch(member.filename, pattern):
                continue
            rows.number, rows.row = number, {"filename": member.filename}
            try:
                if member.flag_bits & _ENCRYPTED:
                    raise RowError("it is encrypted")
                with archive.open(member) as opened:
                    content = _bounded(opened, "it")
            except (*_READ_ERRORS, RowError) as error:
                rows.reject(RowError(f"{path} member {member.filename!r} cannot be read: {single_line(error)}"))
                continue
            yield {"filename": member.filename, "content": content}


def read_warc(rows: Rows, path: str, record_types: Sequence[str] = ("response",)) -> Iterator[dict[str, Any]]:
    """Yield a row for each record of these types, its HTTP body decoded."""
    with _reading(rows, path):
        yield from warc_rows(rows, path, record_types)


class _Archive:
    """A file of which ``ZipFile`` reads the directory at once, unless it is too large."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_DIRECTORY_BYTES:
            raise RowError(f"{self._path} has a directory of {size:,} bytes, too many members: split it.")
        return self._file.read(size)


READERS: Final[dict[str, Reader]] = {
    "load_file": read_file,
    "load_jsonl": read_jsonl,
    "load_parquet": read_parquet,
    "load_text": read_text,
    "load_warc": read_warc,
    "load_zip_members": read_zip_members,
}


def _loader(kind: str) -> Callable[..., Iterator[Any]]:
    """Return a reader for users; ``flat_map`` of it is the method of that name."""

    def load(path: str, **options: Any) -> Iterator[Any]:
        return READERS[kind](Rows(), path, **options)

    load.__name__ = load.__qualname__ = kind
    load.__doc__ = f"Yield the rows of one file, as ``Dataset.{kind}`` does, with its options."
    load.dataset_reader = kind  # type: ignore[attr-defined]
    return load


load_file = _loader("load_file")
load_jsonl = _loader("load_jsonl")
load_parquet = _loader("load_parquet")
load_text = _loader("load_text")
load_warc = _loader("load_warc")
load_zip_members = _loader("load_zip_members")


@contextmanager
def _reading(rows: Rows, path: str) -> Iterator[None]:
    """Name the file in errors of its content."""
    if not isinstance(path, str):
        raise RowError(f"A reader got a {type(path).__name__}, and needs the path of a file.")
    rows.path, rows.number, rows.row = path, 0, None
    try:
        yield
    except TokenizingError as error:
        raise RowError(str(error)) from error
    except FileNotFoundError as error:
        raise UnreadableFileError(f"{path} is gone.") from error
    except UnicodeDecodeError as error:
        raise RowError(f"{path} is no text in UTF-8: {single_line(error)}.") from error
    except _READ_ERRORS as error:
        try:
            check_no_pointer(path, open_file)
        except TokenizingError as pointer:
            raise RowError(str(pointer)) from error
        raise UnreadableFileError(
            f"{path} cannot be read on after row {rows.number:,}: {single_line(error)}."
        ) from error


def _bounded(file: IO[bytes], what: str) -> bytes:
    content = file.read(MAX_LINE_BYTES + 1)
    if len(content) > MAX_LINE_BYTES:
        raise RowError(f"{what} has more than {MAX_LINE_BYTES:,} bytes.")
    return content


__all__ = ["READERS", "load_file", "load_jsonl", "load_parquet", "load_text", "load_warc", "load_zip_members"]
