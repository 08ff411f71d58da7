"""Read the records of a WARC file: pages of a crawl, with what their servers said of them.

The file is unpacked and read once, in pieces; a record is in memory as a whole, and bounded by ``MAX_LINE_BYTES``
before and after its HTTP body is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, cast

from tradewind.datasets.dataset import record_types_of
from tradewind.datasets.http_bodies import BodyError, decode_body
from tradewind.datasets.rows import RowError, Rows
from tradewind.datasets.token_rows import MAX_LINE_BYTES, open_unpacked
from tradewind.storage import open_file
from tradewind.text import single_line

_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_STATUS: Final = re.compile(r"HTTP/[0-9.]+[ \t]+([0-9]{3})(?![0-9])")
_DICTIONARY: Final = b"\x5d\x2a\x4d\x18"
"""Begins a frame that zstd skips, in which WARC files have their dictionary."""
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MAX_HEAD_BYTES: Final = 1 << 18


def warc_rows(rows: Rows, path: str, record_types: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each record of these types.

    Raises:
        EOFError: The file ends inside a record.
        OSError: It is no WARC file, or cannot be read on.
    """
    from fastwarc.warc import ArchiveIterator

    kinds = record_types_of(record_types)
    with _opened(path) as (stream, unpacked):
        # The library would not tell that a packed file is cut, and ends after a body that it fails to decode.
        records = ArchiveIterator(unpacked, parse_http=False, stream_detect=False)
        for number, record in enumerate(records, 1):
            url, kind = _url(record), record.headers.get("WARC-Type")
            if kind is None or not (record.headers.get("Content-Length") or "").strip().isdecimal():
                raise stream.error or EOFError("the header of the next record is cut, or has no type or length")
            length = record.content_length
            block = record.reader.read(length) if kind in kinds and length <= MAX_LINE_BYTES else b""
            if len(block) + record.consume() < length:
                raise stream.error or EOFError(f"the file ends inside the next record, {single_line(url)}")
            rows.number, rows.row = number, {"url": url, "record_id": record.record_id}
            if kind not in kinds:
                continue
            try:
                if length > MAX_LINE_BYTES:
                    raise BodyError(f"it has more than {MAX_LINE_BYTES:,} bytes")
                row = _row(record, kind, url, block)
            except BodyError as error:
                place = f"{path} record {number:,} ({single_line(url)})"
                rows.reject(RowError(f"{place} cannot be read: {single_line(error)}."))
                continue
            rows.row = row
            yield row
        if stream.error is not None:
            raise stream.error


@contextmanager
def _opened(path: str) -> Iterator[tuple[_Stream, Any]]:
    """Open a file, and its unpacked content; a file packed by zstd may begin with a dictionary."""
    if not path.endswith((".zst", ".zstd")):
        with open_unpacked(path) as file:
            stream = _Stream(file.read1)  # not beyond a damaged member, before which are whole records
            yield stream, stream
        return
    from fastwarc.stream_io import ZstdReader

    with open_file(path) as file:
        head, dictionary = file.read(8), None
        if head.startswith(_DICTIONARY):
            head, dictionary = b"", _dictionary(file, int.from_bytes(head[4:], "little"))
        stream = _Stream(file.read, head)
        yield stream, ZstdReader(cast(Any, stream), dictionary=dictionary)


def _dictionary(file: IO[bytes], length: int) -> bytes:
    """Return the dictionary, which may itself be packed."""
    if length > MAX_LINE_BYTES:
        raise OSError(f"its dictionary has more than {MAX_LINE_BYTES:,} bytes")
    content = file.read(length)
    if not content.startswith(_ZSTD):
        return content
    try:
        return decode_body(content, {"content-encoding": "zstd"}, MAX_LINE_BYTES)
    except BodyError as error:
        raise OSError(f"its dictionary cannot be read: {error}") from error


class _Stream:
    """A file for the library, which reads ahead: where it cannot be read on, it ends, after the records before that."""

    def __init__(self, read: Callable[[int], bytes], head: bytes = b"") -> None:
        self._read = read
        self._head = head
        self._at = 0
        self.error: Exception | None = None

    def read(self, size: int) -> bytes:
        data, self._head = self._head, b""
        try:
            data = data or (b"" if self.error else self._read(size))
        except Exception as error:
            self.error = error
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at


def _row(record: Any, kind: str, url: str, block: bytes) -> dict[str, Any]:
    content_type = record.headers.get("Content-Type")
    truncated = record.headers.get("WARC-Truncated")
    status: int | None = None
    headers: dict[str, str] = {}
    payload = block
    if kind in ("response", "revisit") and (record.is_http or block.startswith(b"HTTP/")):
        status, headers, body = _http_parts(block)
        payload = decode_body(body, headers, MAX_LINE_BYTES, may_be_cut=truncated is not None)
        content_type = headers.get("content-type", "").partition(",")[0] or None
    return {
        "url": url,
        "date": record.headers.get("WARC-Date"),
        "record_id": record.record_id,
        "record_type": kind,
        "status": status,
        "content_type": content_type,
        "headers": headers,
        "truncated": truncated,
        "payload": payload,
    }


def _http_parts(block: bytes) -> tuple[int | None, dict[str, str], bytes]:
    """Return status, headers with names in lower case, and body; lines may end without a carriage return."""
    end = _HEAD_END.search(block, 0, _MAX_HEAD_BYTES)
    if end is None and len(block) > _MAX_HEAD_BYTES:
        raise BodyError(f"its head has more than {_MAX_HEAD_BYTES:,} bytes")
    head, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    status, *lines = re.sub(r"\r?\n[ \t]+", " ", head.decode("latin-1")).split("\n")
    found = _STATUS.match(status)
    if found is None:
        raise BodyError("it does not begin with a status of HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(found[1]), headers, body


def _url(record: Any) -> str:
    return (record.headers.get("WARC-Target-URI") or "").removeprefix("<").removesuffix(">")
