"""Records of WARC files: each packing, HTTP body and damage."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard

from tradewind.datasets import Backend, Dataset, PipelineError, load_warc
from tradewind.datasets.token_rows import MAX_LINE_BYTES

PAGE = b"<p>A page</p>"


def record(
    block: bytes, url: str = "http://a.org/1", kind: str = "response", length: Any = None, header: str = ""
) -> bytes:
    content_type = {"response": "application/http; msgtype=response", "request": "application/http; msgtype=request"}
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:1>",
        "WARC-Date: 2026-01-02T03:04:05Z",
        f"WARC-Target-URI: {url}",
        f"Content-Type: {content_type.get(kind, 'text/plain')}",
        f"Content-Length: {len(block) if length is None else length}",
        *([header] if header else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + block + b"\r\n\r\n"


def response(body: bytes = PAGE, head: str = "", **options: Any) -> bytes:
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/html; charset=utf-8", *([head] if head else []), "", ""]
    return record("\r\n".join(lines).encode() + body, **options)


LAST = response(b"last", url="http://a.org/last")


def read(path: Path, on_error: Any = "raise", **options: Any) -> Any:
    return Backend("sync", on_error=on_error).execute(Dataset.from_list([str(path)]).load_warc(**options))


def file_with(folder: Path, content: bytes, ending: str = "") -> Path:
    path = folder / f"a.warc{ending}"
    path.write_bytes(content)
    return path


def payloads(path: Path, **options: Any) -> list[bytes]:
    return [row["payload"] for row in read(path, **options)]


PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_records_are_read_as_rows(tmp_path: Path, ending: str) -> None:
    others = [record(b"software: x", kind="warcinfo"), record(b"GET / HTTP/1.1\r\n\r\n", kind="request")]
    path = file_with(tmp_path, b"".join(map(PACKERS[ending], [*others, response(), LAST])), ending)
    first, second = read(path)
    assert first == {
        "url": "http://a.org/1", "date": "2026-01-02T03:04:05Z", "record_id": "<urn:uuid:1>",
        "record_type": "response", "status": 200, "content_type": "text/html; charset=utf-8",
        "headers": {"content-type": "text/html; charset=utf-8"}, "truncated": None, "payload": PAGE,
    }  # fmt: skip
    assert second["payload"] == b"last"
    (asked,) = read(path, record_types=["request"], include_file_paths=True)
    assert (asked["payload"], asked["file_path"]) == (b"GET / HTTP/1.1\r\n\r\n", str(path))
    assert list(load_warc(str(path))) == [first, second]


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def chunked(body: bytes) -> bytes:
    return b"4;name=1\r\n" + body[:4] + b"\r\n" + f"{len(body) - 4:X}".encode() + b"\r\n" + body[4:] + b"\r\n0\r\n\r\n"


BODIES = {
    "gzip": ("Content-Encoding: x-gzip", gzip.compress(PAGE)),
    "gzip of two members": ("content-encoding: GZIP", gzip.compress(PAGE[:5]) + gzip.compress(PAGE[5:])),
    "gzip and padding": ("content-encoding: gzip", gzip.compress(PAGE) + b"\0\0"),
    "deflate": ("Content-Encoding: deflate", zlib.compress(PAGE)),
    "raw deflate": ("Content-Encoding: deflate", raw_deflate(PAGE)),
    "brotli": ("Content-Encoding: br", brotli.compress(PAGE)),
    "zstd": ("Content-Encoding: zstd", zstandard.compress(PAGE)),
    "twice": ("Content-Encoding: br\r\nContent-Encoding: gzip", gzip.compress(brotli.compress(PAGE))),
    "chunks": ("Transfer-Encoding: chunked", chunked(PAGE)),
    "chunks of gzip": ("Transfer-Encoding: gzip, chunked", chunked(gzip.compress(PAGE))),
    "both headers": ("Transfer-Encoding: chunked\r\nContent-Encoding: br", chunked(brotli.compress(PAGE))),
    "unknown": ("Content-Encoding: UTF-8", PAGE),
    **{f"plain, not {coding}": (f"Content-Encoding: {coding}", PAGE) for coding in ("gzip", "br", "deflate", "zstd")},
    "plain, not chunks": ("Transfer-Encoding: chunked", PAGE),
}


@pytest.mark.parametrize("case", BODIES)
def test_body_is_decoded_as_headers_say(tmp_path: Path, case: str) -> None:
    head, body = BODIES[case]
    assert payloads(file_with(tmp_path, response(body, head) + LAST)) == [PAGE, b"last"]


LARGE = gzip.compress(b"\0" * (MAX_LINE_BYTES + 1), 9)
LONG_HEAD = "X: " + "y" * (1 << 18)

BAD_RECORDS = {
    "not gzip": (response(b"\1\2\3\4", "Content-Encoding: gzip"), "its body is not gzip: "),
    "not brotli": (response(b"\1\2\3\4", "Content-Encoding: br"), "its body is not br: "),
    "cut gzip": (response(gzip.compress(PAGE)[:-9], "Content-Encoding: gzip"), "its body in gzip is cut"),
    "cut chunks": (response(chunked(PAGE)[:-9], "Transfer-Encoding: chunked"), "its body in chunked is cut"),
    "gzip bomb": (response(LARGE, "Content-Encoding: gzip"), "its body has more than 33,554,432 bytes"),
    "gzip in gzip": (
        response(gzip.compress(LARGE), "Content-Encoding: gzip, gzip"),
        "its body has more than 33,554,432 bytes",
    ),
    "no status": (record(b"hello"), "it does not begin with a status of HTTP"),
    "nothing": (record(b""), "it does not begin with a status of HTTP"),
    "odd status": (record(b"HTTP/1.1 2000 OK\r\n\r\n"), "it does not begin with a status of HTTP"),
    "long head": (response(PAGE, LONG_HEAD), "its head has more than 262,144 bytes"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_bad_record_is_told_or_left_out(tmp_path: Path, case: str) -> None:
    bad, told = BAD_RECORDS[case]
    path = file_with(tmp_path, LAST + bad + LAST)
    with pytest.raises(PipelineError, match=re.escape(f"a.warc record 2 (http://a.org/1) cannot be read: {told}")):
        read(path)
    for on_error in ("skip", "quarantine"):
        found = read(path, on_error)
        assert ([row["payload"] for row in found], found.rejected) == ([b"last", b"last"], 1)
