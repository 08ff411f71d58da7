"""Document collections: folders of ``*.jsonl.gz`` files, one ``{"id": ..., "text": ...}`` object per line.

    write_documents(folder, (Document(path, source) for path, source in sources))
    for document in read_documents(folder):
        print(document.id, len(document.text))

Both hold one document in memory at a time. Files are written atomically, and the same documents give the same bytes.
Subfolders belong to the collection, so a cleaned collection reads as all its splits.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import escape
from typing import IO, Any, NamedTuple

from tradewind.datasets.files import atomic_writer, is_remote, join
from tradewind.datasets.token_rows import MAX_LINE_BYTES, SURROGATE, check_no_pointer, row_place, rows_of
from tradewind.storage import file_system_at, open_file
from tradewind.text import single_line, truncated_repr

SUFFIX = ".jsonl.gz"
PARQUET = ".parquet"


class Document(NamedTuple):
    """One text, and a name for it that is unique in its collection."""

    id: str
    text: str


def write_documents(folder: str, documents: Iterable[Document], documents_per_file: int = 500) -> int:
    """Write exactly ``documents`` to ``folder`` as ``part-00000.jsonl.gz`` and so on; return how many.

    Later steps read several files in parallel. Leftovers of earlier attempts are removed.

    Raises:
        ValueError: There is no document, or a text has no UTF-8 form (a lone surrogate).
    """
    if documents_per_file < 1:
        raise ValueError(f"documents_per_file={documents_per_file}: a file needs at least one document.")
    stream = iter(documents)
    total = 0
    written: set[str] = set()
    while first := next(stream, None):
        name = f"part-{len(written):05d}{SUFFIX}"
        chunk = itertools.chain([first], itertools.islice(stream, documents_per_file - 1))
        total += write_document_file(join(folder, name), chunk)
        written.add(name)
    if not total:
        raise ValueError(f"There are no documents to write to {folder}.")
    _remove_other_parts(folder, written)
    return total


def read_documents(folder: str) -> Iterator[Document]:
    """Yield every document under ``folder``, file by file in the order of their names; also of a set in Parquet.

    Raises:
        ValueError: There is no such file, or a line or row is no ``{"id", "text"}`` object.
    """
    for path in document_files(folder, (SUFFIX, PARQUET)):
        if path.endswith(PARQUET):
            for number, row in rows_of(path, None):
                yield _document(row, row_place(path, number))
        else:
            for number, line in enumerate(raw_lines(path), start=1):
                yield _parse(line, f"{path} line {number}")


def document_files(folder: str, suffixes: tuple[str, ...] = (SUFFIX,)) -> list[str]:
    """Return the collection's files, sorted; URLs if ``folder`` is one. Raises ``ValueError`` if there are none."""
    fs, root = file_system_at(folder)
    names = sorted(name for name in fs.find(root) if name.endswith(suffixes))
    if not names:
        raise ValueError(f"There are no documents under {folder}: it holds no *{' or *'.join(suffixes)} file.")
    return [str(fs.unstrip_protocol(name)) for name in names] if is_remote(folder) else names


def raw_lines(path: str) -> Iterator[bytes]:
    """Yield the non-empty lines of one file, uncompressed but not decoded.

    Raises:
        ValueError: The file is no gzip or cut off, or a line is too long.
    """
    number = 0
    try:
        with open_file(path) as file, gzip.GzipFile(fileobj=file) as lines:
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError(f"{path} line {number:,} has more than {MAX_LINE_BYTES:,} bytes: split its text.")
                if line.strip():
                    yield line
    except (OSError, EOFError, zlib.error) as error:
        check_no_pointer(path, open_file)
        raise ValueError(f"{path} cannot be read on after line {number:,}: {single_line(error)}.") from error


def write_document_file(path: str, documents: Iterable[Document]) -> int:
    """Write one file of the collection atomically; return the number of documents."""
    count = 0
    with atomic_writer(path) as file, _text_of_gzip(file) as lines:
        for document in documents:
            lines.write(json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) + "\n")
            count += 1
    return count


@contextmanager
def _text_of_gzip(file: IO[bytes]) -> Iterator[IO[str]]:
    """Open a UTF-8 text stream that compresses into ``file``, with neither name nor time in the header."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as compressed,
        io.TextIOWrapper(compressed, encoding="utf-8", newline="\n") as text,
    ):
        yield text


def _parse(line: bytes, place: str) -> Document:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not a document with an id and a text: {single_line(error)}.") from error
    return _document(entry, place)


def _document(entry: Any, place: str) -> Document:
    try:
        document = Document(entry["id"], entry["text"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{place} is not a document with an id and a text: {single_line(error)}.") from error
    for field, value in document._asdict().items():
        if not isinstance(value, str):
            raise ValueError(
                f"{place} is not a document: its {field} is {truncated_repr(value)}; an id and a text are strings."
            )
        if SURROGATE.search(value):
            raise ValueError(f"{place} has half of a character (a lone surrogate) in its {field}: replace it.")
    return document


def _remove_other_parts(folder: str, keep: set[str]) -> None:
    fs, root = file_system_at(folder)
    for name in fs.glob(join(escape(root), f"part-*{SUFFIX}")):
        if name.rsplit("/", 1)[-1] not in keep:
            fs.rm(name)
