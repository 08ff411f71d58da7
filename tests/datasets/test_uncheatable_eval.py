"""Newest texts of Uncheatable Eval, from a server with GitHub's API."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets.documents import read_documents
from tradewind.datasets.source_files import DownloadError
from tradewind.datasets.uncheatable_eval import UncheatableEvalConfig, download_uncheatable_eval

FOLDER = "/repos/owner/texts/contents/data?ref=main"


class GitHub:
    """Server of one folder of one repository."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.entries: list[Any] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(owner.entries).encode() if self.path == FOLDER else owner.pages.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, name: str, content: Any) -> dict[str, Any]:
        """Add a file to the folder; return its entry in the listing."""
        body = json.dumps(content).encode()
        self.pages[f"/raw/{len(self.pages)}"] = body
        url = f"{self.url}/raw/{len(self.pages) - 1}"
        sha = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
        entry = {"name": name, "download_url": url, "size": len(body), "sha": sha}
        self.entries.append(entry)
        return entry


@pytest.fixture
def github() -> Iterator[GitHub]:
    made = GitHub()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def download(github: GitHub, output: Path) -> dict[str, Any]:
    return download_uncheatable_eval(UncheatableEvalConfig(str(output), "owner", "texts", "data", "main", github.url))


def test_the_newest_file_of_each_set_becomes_documents(github: GitHub, tmp_path: Path) -> None:
    github.put("bbc_news_20250101to20250115.json", ["old"])
    github.put("bbc_news_20250701to20250715.json", ["first text", "second text"])
    github.put("bbc_news_20250615to20250715.json", ["began earlier"])
    github.put("github_cpp_20250101to20250115.json", [{"title": "a", "text": "int main() {}"}])
    github.put("README.md", "no texts")
    github.entries.append({"name": "older", "type": "dir", "download_url": None})
    assert download(github, tmp_path) == {"sets": {"bbc_news": 2, "github_cpp": 1}}
    assert [document.text for document in read_documents(str(tmp_path))] == [
        "first text", "second text", "int main() {}"
    ]  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "bbc_news_20250701to20250715.jsonl.gz",
        "github_cpp_20250101to20250115.jsonl.gz",
        "metadata.json",
    ]


def test_what_github_did_not_announce_is_not_kept(github: GitHub, tmp_path: Path) -> None:
    github.put("bbc_news_20250701to20250715.json", ["a text"])["sha"] = "0" * 40
    with pytest.raises(DownloadError, match=r"gave bytes with the sha1 [0-9a-f]{40}, and should give 0000"):
        download(github, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("bbc_news_20250701to20250715.json", [{"title": "only a title"}], "entry 0 has no text, but {'title': 'only a"),
        ("bbc_news_20250701to20250715.json", {"text": "no list"}, "is no list but a dict."),
        ("../bbc_news_20250701to20250715.json", ["a"], "which is no path below the output"),
        ("bbc_news.json", ["a"], "data_path has no file named like"),
    ],
)
def test_a_folder_that_is_another_is_refused(
    github: GitHub, tmp_path: Path, name: str, content: Any, told: str
) -> None:
    github.put(name, content)
    with pytest.raises(DownloadError) as error:
        download(github, tmp_path)
    assert told in str(error.value)
    assert not list(tmp_path.rglob("*.jsonl.gz"))


def test_a_repository_that_is_not_there_is_named(github: GitHub, tmp_path: Path) -> None:
    config = UncheatableEvalConfig(str(tmp_path), "owner", "texts", "data", "gone", github.url)
    with pytest.raises(DownloadError, match=r"contents/data\?ref=gone answered 404: is it there\?$"):
        download_uncheatable_eval(config)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"download_url": "http://169.254.169.254/computeMetadata/v1/"}, "redirects to '169.254.169.254'"),
        ({"download_url": "http://["}, "has no address of 'bbc_news"),
        ({"size": "8"}, "has no size"),
        ({"size": 1 << 40}, "has no size, one above"),
        ({"sha": 7}, "no checksum"),
    ],
)
def test_a_list_that_leads_elsewhere_or_says_nothing_is_refused(
    github: GitHub, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    github.put("bbc_news_20250701to20250715.json", ["a text"]).update(changes)
    with pytest.raises(DownloadError) as error:
        download(github, tmp_path)
    assert told in str(error.value)


def test_a_file_of_brackets_without_end_is_told(github: GitHub, tmp_path: Path) -> None:
    body = b"[" * 100_000
    entry = github.put("bbc_news_20250701to20250715.json", [])
    entry |= {"size": len(body), "sha": hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()}
    github.pages["/raw/0"] = body
    with pytest.raises(DownloadError, match="is no JSON"):
        download(github, tmp_path)
