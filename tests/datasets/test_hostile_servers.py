"""Lying hubs and servers: the token stays secret, memory stays bounded, each error is one line."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.hub_server import COMMIT, REPO, TOKEN, Fault, Handler, HubServer, cut, hub
from tests.support.http_server import serving
from tradewind.datasets import hub as listing
from tradewind.datasets.downloads import FilesDownloadConfig, HubDownloadConfig, download_files, download_hf
from tradewind.datasets.files import write_text
from tradewind.datasets.http_reader import DownloadError, HttpReader, check_redirect
from tradewind.datasets.source_files import SourceFile, UnusableNameError, check_apart, check_name
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT
from tradewind.text import single_line

__all__ = ["hub"]
GOOD = {"type": "file", "path": "README.md", "size": 10, "oid": "0" * 40}


def downloaded(output: Path, *globs: str) -> dict[str, Any]:
    return download_hf(HubDownloadConfig(REPO, COMMIT, str(output), list(globs)), pause=lambda _: None)


def page(entries: Any, following: str | None = None) -> Fault:
    """Answer with a page of the file list."""
    link = {"Link": f'<{following}>; rel="next"'} if following else {}
    return lambda handler, _: handler.answer(json.dumps(entries).encode(), 200, link)


def raw(answer: bytes) -> Fault:
    """Answer with these raw bytes."""

    def give(handler: Handler, _: bytes) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    return give


def test_next_page_on_other_host_is_refused_and_gets_no_token(hub: HubServer, tmp_path: Path) -> None:
    with serving(HubServer({})) as other:
        hub.fail(f"/tree/{COMMIT}", page([GOOD], f"{other.url}/more"))
        with pytest.raises(DownloadError, match="which is not the hub"):
            downloaded(tmp_path)
    assert other.tokens == []
    assert set(hub.tokens) == {f"Bearer {TOKEN}"}


def test_cyclic_file_list_refused(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(f"/tree/{COMMIT}", page([GOOD], "?cursor=1"), page([], "?cursor=1"))
    with pytest.raises(DownloadError, match="leads back to one before"):
        downloaded(tmp_path)


def test_endless_file_list_refused(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_FILES", 1)
    with pytest.raises(DownloadError, match="more than 1 files"):
        downloaded(tmp_path)
    monkeypatch.setattr(listing, "MAX_PAGE_BYTES", 100)
    with pytest.raises(DownloadError, match="gives more than 100 bytes"):
        downloaded(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"error": "no"}, "no list but a dict"),
        ([7], "an entry without a path"),
        ([GOOD | {"path": 7}], "an entry without a path"),
        ([GOOD | {"size": "10"}], "no size or no checksum of 'README.md'"),
        ([GOOD | {"size": -1}], "no size or no checksum"),
        ([GOOD | {"size": None}], "no size or no checksum"),
        ([GOOD | {"oid": None}], "no size or no checksum"),
        ([GOOD | {"oid": 5}], "no size or no checksum"),
        ([GOOD | {"lfs": {"size": 1}}], "no size or no checksum"),
        ([GOOD | {"lfs": 5}], "no size or no checksum"),
        ([GOOD, GOOD], "'README.md' twice"),
        ([GOOD, GOOD | {"path": "README.md/a"}], "as a file, and 'README.md/a' within it"),
    ],
)
def test_invalid_file_list_refused_in_one_sentence(hub: HubServer, tmp_path: Path, entries: Any, message: str) -> None:
    hub.fail(f"/tree/{COMMIT}", page(entries))
    with pytest.raises(DownloadError, match=message):
        downloaded(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"<html>", b"[" * 100_000])
@pytest.mark.parametrize("end", [f"/tree/{COMMIT}", f"/revision/{COMMIT}"])
def test_answer_without_json_refused_in_one_sentence(hub: HubServer, tmp_path: Path, end: str, content: bytes) -> None:
    hub.fail(end, lambda handler, _: handler.answer(content))
    with pytest.raises(DownloadError, match=r"is no JSON|cannot be read"):
        downloaded(tmp_path)


def test_server_message_is_one_bounded_line(hub: HubServer, tmp_path: Path) -> None:
    said = f"\x1b[2J{'e' * 50_000}"
    hub.fail(f"/revision/{COMMIT}", lambda handler, _: handler.answer(b"", 400, {"X-Error-Message": said}))
    with pytest.raises(DownloadError) as refusal:
        downloaded(tmp_path)
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 600
    etag = f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: {said}\r\n\r\n11".encode()
    hub.fail("README.md", cut(4), raw(etag))
    with pytest.raises(DownloadError, match="it may be another file") as refusal:
        list(HttpReader(pause=lambda _: None).read(SourceFile("README.md", hub.url_of("README.md"), 10)))
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 1000
    assert single_line("a\nb\x1b") == "a b?"


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("README.md", "more than the 10 bytes that it"),
        (f"/tree/{COMMIT}", "list of people/letters gives more than 4,194,304 bytes"),
        (f"/revision/{COMMIT}", "answer about dataset 'people/letters' .* gives more than 4,194,304 bytes"),
    ],
)
def test_endless_body_is_not_read_to_its_end(hub: HubServer, tmp_path: Path, end: str, message: str) -> None:
    sent = 0

    def endless(handler: Handler, _: bytes) -> None:
        nonlocal sent
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        handler.close_connection = True
        for _ in range(2000):
            try:
                handler.wfile.write(b" " * (1 << 20))
            except OSError:  # the client has closed the connection
                return
            sent += 1

    hub.fail(end, *[endless] * 3)
    with pytest.raises(DownloadError, match=message):
        downloaded(tmp_path, "README.md")
    assert sent < 2000


@pytest.mark.parametrize(
    ("head", "is_read"),
    [
        (b"200 OK\r\nContent-Length: \xb2", True),
        (b"200 OK\r\nContent-Length: " + b"9" * 5000, True),
        (b"206 OK\r\nContent-Length: 10\r\nContent-Range: bytes " + b"9" * 5000 + b"-1/2", False),
        (b"503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0", False),
        (b"302 Found\r\nLocation: http://[\r\nContent-Length: 0", False),
        (b"302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0", False),
    ],
)
def test_invalid_headers_are_ignored_or_refused(hub: HubServer, tmp_path: Path, head: bytes, is_read: bool) -> None:
    hub.fail("README.md", *[raw(b"HTTP/1.1 " + head + b"\r\n\r\n# Letters\n")] * 9)
    if is_read:
        assert downloaded(tmp_path, "README.md")["bytes"] == 10
        return
    with pytest.raises(DownloadError, match="README.md cannot be read"):
        downloaded(tmp_path, "README.md")


# ---- redirects


REDIRECTS = [
    ("https://192.0.2.1/a", "http://192.0.2.1/a", False),
    ("http://192.0.2.1/a", "http://169.254.169.254/computeMetadata/v1/", False),
    ("http://127.0.0.1/a", "http://169.254.169.254/", False),
    ("http://192.0.2.1/a", "http://[::ffff:169.254.169.254]/", False),
    ("http://192.0.2.1/a", "http://[fe80::1]/", False),
    ("http://127.0.0.1/a", "http://Metadata.Google.Internal./", False),
    ("http://192.0.2.1/a", "http://127.0.0.1:8265/api/jobs/", False),
    ("http://192.0.2.1/a", "http://localhost:8265/", False),
    ("http://192.0.2.1/a", "http://0.0.0.0:8265/", False),
    ("https://192.0.2.1/a", "https://192.0.2.2/b", True),
    ("http://192.0.2.1/a", "https://192.0.2.2/b", True),
    ("http://127.0.0.1:1/a", "http://localhost:2/b", True),
    ("https://10.0.0.1/a", "https://10.0.0.2/b", True),
]


@pytest.mark.parametrize(("url", "target", "is_allowed"), REDIRECTS)
def test_redirect_to_internal_address_refused(url: str, target: str, is_allowed: bool) -> None:
    with nullcontext() if is_allowed else pytest.raises(DownloadError, match="was not followed"):
        check_redirect(url, target)


# ---- names


@pytest.mark.parametrize("record", sorted(RECORDS_OF_AN_OUTPUT))
def test_file_named_like_record_is_not_copied(hub: HubServer, tmp_path: Path, record: str) -> None:
    hub.files[f"data/{record}"] = b"SUCCESS"
    downloaded(tmp_path)
    assert not (tmp_path / "data" / record).exists()
    with pytest.raises(UnusableNameError, match="called like a record"):
        check_name(f"data/{record}", "It")


def test_write_refused_where_folder_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(f"{tmp_path}/a", "text")
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_file_below_provenance_refused(hub: HubServer, tmp_path: Path) -> None:
    hub.files["provenance.json/a"] = b""
    with pytest.raises(UnusableNameError, match=r"'provenance.json' as a file"):
        downloaded(tmp_path)
    check_apart(["a/b", "a/c", "ab"], "It")


@pytest.mark.parametrize("end", ["README.md", f"/tree/{COMMIT}", f"/revision/{COMMIT}"])
def test_redirect_to_metadata_server_refused(hub: HubServer, tmp_path: Path, end: str) -> None:
    hub.fail(end, raw(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"))
    with pytest.raises(DownloadError, match=r"redirects to '169.254.169.254'.* it was not followed"):
        downloaded(tmp_path / "out", "README.md")
    hub.fail(end, raw(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"))
    if end == "README.md":
        with pytest.raises(DownloadError, match=r"169.254.169.254"):
            download_files(FilesDownloadConfig([hub.url_of("README.md")], str(tmp_path / "files")))
