"""Records of WARC files: each packing, HTTP body and damage."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli
import fsspec
import pytest
import zstandard
from fastwarc.stream_io import ZstdWriter, zstd_train_dictionary_from_samples

from tests.datasets.warcs import PAGE, record, response
from tradewind.datasets import Backend, Dataset, PipelineError, load_warc
from tradewind.datasets.token_rows import MAX_LINE_BYTES

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
LARGE_ZSTD = zstandard.compress(b"\0" * (MAX_LINE_BYTES + 1))
LONG_HEAD = "X: " + "y" * (1 << 18)

BARE = b"WARC/1.1\r\nWARC-Type: response\r\nContent-Length: 23\r\n\r\nHTTP/1.0 404\nA: b\n\nPage\r\n\r\n"

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
    "gzip of empty members": (
        response(gzip.compress(PAGE) + gzip.compress(b"") * 100, "Content-Encoding: gzip"),
        "its body is not gzip: it has more than 100 members",
    ),
    "gzip with another sum": (
        response(gzip.compress(PAGE)[:-8] + bytes(8), "Content-Encoding: gzip"),
        "its body is not gzip: Error -3 while decompressing data: incorrect data check",
    ),
    "many codings": (response(PAGE, "Content-Encoding: " + "gzip," * 9), "its body has 9 codings"),
    "no status": (record(b"hello"), "it does not begin with a status of HTTP"),
    "nothing": (record(b""), "it does not begin with a status of HTTP"),
    "odd status": (record(b"HTTP/1.1 2000 OK\r\n\r\n"), "it does not begin with a status of HTTP"),
    "long head": (response(PAGE, LONG_HEAD), "its head has more than 262,144 bytes"),
}
CUT_BODY = response(gzip.compress(PAGE * 99)[:-9], "Content-Encoding: gzip", header="WARC-Truncated: length")


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_bad_record_is_told_or_left_out(tmp_path: Path, case: str) -> None:
    bad, told = BAD_RECORDS[case]
    path = file_with(tmp_path, LAST + bad + LAST)
    with pytest.raises(PipelineError, match=re.escape(f"a.warc record 2 (http://a.org/1) cannot be read: {told}")):
        read(path)
    for on_error in ("skip", "quarantine"):
        found = read(path, on_error)
        assert ([row["payload"] for row in found], found.rejected) == ([b"last", b"last"], 1)


@pytest.mark.parametrize("is_packed", [False, True])
def test_dictionary_of_zstd_file_is_used_and_bounded(tmp_path: Path, is_packed: bool) -> None:
    records = [response(b"<p>%d" % number * 9, url=f"http://a.org/{number}") for number in range(200)]
    dictionary = zstd_train_dictionary_from_samples(records, 2048)
    content = io.BytesIO()
    writer = ZstdWriter(content, dictionary=dictionary, compress_dictionary_frame=is_packed)
    for each in records:
        writer.write(each)
        writer.finish()
        writer.flush()
    assert len(payloads(file_with(tmp_path, content.getvalue(), ".zst"))) == 200
    bomb = LARGE_ZSTD if is_packed else b""
    head = b"\x5d\x2a\x4d\x18" + (len(bomb) or 1 << 30).to_bytes(4, "little")
    told = (
        "its dictionary cannot be read: its body has more" if is_packed else "its dictionary has more than 33,554,432"
    )
    with pytest.raises(PipelineError, match=told):
        read(file_with(tmp_path, head + bomb, ".zst"))


def test_record_with_the_least_header_is_read(tmp_path: Path) -> None:
    (row,) = read(file_with(tmp_path, BARE))
    assert (row["status"], row["headers"], row["payload"]) == (404, {"a": "b"}, b"Page")
    assert (row["url"], row["record_id"], row["date"], row["content_type"]) == ("", None, None, None)


def test_body_that_the_crawler_cut_is_read_so_far(tmp_path: Path) -> None:
    first, last = read(file_with(tmp_path, CUT_BODY + LAST))
    assert first["payload"].startswith(PAGE)
    assert (first["truncated"], last["truncated"]) == ("length", None)


PACKED = gzip.compress(LAST)

DAMAGES = {
    "cut block": ("", LAST + response()[:-9], "after row 1: the file ends inside the next record, http://a.org/1"),
    "cut request": ("", LAST + record(b"GET / ", kind="request")[:-6], "after row 1: the file ends inside the next"),
    "cut head": ("", LAST + response()[:60], "after row 1: the header of the next record is cut"),
    "no length": ("", LAST.replace(b"Content-Length", b"X"), "after row 0: the header of the next record is cut"),
    "length too large": ("", LAST + record(b"HTTP/1.1 200\r\n\r\n", length=10**15), "after row 1: the file ends"),
    "length too small": ("", record(b"HTTP/1.1 200 OK\r\n\r\nabc", length=20) + LAST, "after row 1: Invalid WARC"),
    "negative length": ("", record(b"HTTP/1.1 200 OK\r\n\r\nabc", length=-1), "after row 0: the header of the next"),
    "long header": ("", response(header="X: " + "y" * 99_999), "after row 0: Maximum header length exceeded"),
    "other": ("", b"hello\r\n" * 99, "after row 0: Invalid WARC header"),
    "other after a record": ("", LAST + b"\0" * 99, "after row 1: Invalid WARC header"),
    "cut gzip": (".gz", PACKED + PACKED[:-9], "after row "),
    "damaged gzip": (".gz", PACKED + PACKED[:-8] + bytes(8), "after row "),
    "plain as gzip": (".gz", LAST, "after row 0: Not a gzipped file"),
    "cut zstd": (".zst", zstandard.compress(LAST)[:-9], "after row 0: "),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_file_is_told_whatever_happens_to_rows(tmp_path: Path, case: str) -> None:
    ending, content, told = DAMAGES[case]
    path = file_with(tmp_path, content, ending)
    with pytest.raises(PipelineError, match=re.escape(f"a.warc{ending} cannot be read on {told}")):
        read(path, "skip")


@pytest.mark.parametrize("kinds", ["response", [], ["responses"], ["response", 3], None])
def test_unknown_types_of_records_are_refused(kinds: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("give a list of some of warcinfo, response, resource")):
        Dataset.from_list(["a"]).load_warc(kinds)


READ_WITHIN = """
import resource, sys
from tradewind.datasets.readers import read_warc
from tradewind.datasets.rows import Rows
resource.setrlimit(resource.RLIMIT_AS, (500 << 20, 500 << 20))
rows = Rows("quarantine")
print([row["payload"] for row in read_warc(rows, sys.argv[1])], rows.rejected)
"""


@pytest.mark.slow
def test_records_beyond_the_bound_take_no_memory(tmp_path: Path) -> None:
    """A record of 2 GB in a file of 2 MB, and a body of 1 GB in one of a kilobyte."""
    zeros = gzip.compress(bytes(10_000_000))
    packer = brotli.Compressor(quality=3)
    bomb = b"".join(packer.process(bytes(10_000_000)) for _ in range(100)) + packer.finish()
    large = [gzip.compress(record(b"", length=2_000_000_000)[:-4]), *[zeros] * 200, gzip.compress(b"\r\n\r\n")]
    packed = gzip.compress(response(bomb, "Content-Encoding: br"))
    path = file_with(tmp_path, b"".join([PACKED, *large, packed, PACKED]), ".gz")
    assert path.stat().st_size < 3_000_000
    done = subprocess.run([sys.executable, "-c", READ_WITHIN, path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[b'last', b'last'] 2\n", 0), done.stderr


def test_records_are_read_from_any_store() -> None:
    for ending, content in {"": LAST, ".gz": PACKED, ".zst": zstandard.compress(LAST)}.items():
        with fsspec.open(f"memory://crawl/a.warc{ending}", "wb") as file:
            file.write(content + content)
        assert [row["payload"] for row in load_warc(f"memory://crawl/a.warc{ending}")] == [b"last", b"last"]
