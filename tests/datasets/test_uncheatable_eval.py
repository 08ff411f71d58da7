"""Newest texts of Uncheatable Eval, from a server with GitHub's API."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets.documents import read_documents
from tradewind.datasets.source_files import DownloadError
from tradewind.datasets.uncheatable_eval import UncheatableEvalConfig, download_uncheatable_eval
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer, json_answer

FOLDER = "/repos/owner/texts/contents/data"
NEWS = "bbc_news_20250701to20250715.json"


class GitHub(LoopbackServer):
    """Server of one folder of one repository."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, bytes] = {}
        self.entries: list[Any] = []

    def answer(self, call: HttpRequest) -> Answer:
        if call.path == FOLDER and call.query == {"ref": "main"}:
            return json_answer("list", self.entries)
        body = self.pages.get(call.path)
        return Answer("file", 200, body) if body is not None else self.refusal("file", 404, "")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return Answer(kind, status, message.encode())

    def put(self, name: str, content: Any) -> dict[str, Any]:
        """Add a file to the folder, from JSON or bytes; return its entry in the listing."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.pages[f"/raw/{len(self.pages)}"] = body
        url = f"{self.url}/raw/{len(self.pages) - 1}"
        sha = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
        entry = {"name": name, "download_url": url, "size": len(body), "sha": sha}
        self.entries.append(entry)
        return entry


@pytest.fixture
def github() -> Iterator[GitHub]:
    server = GitHub()
    server.start()
    yield server
    server.stop()


def download(github: GitHub, output: Path) -> dict[str, Any]:
    return download_uncheatable_eval(UncheatableEvalConfig(str(output), "owner", "texts", "data", "main", github.url))


def test_newest_file_of_each_set_becomes_documents(github: GitHub, tmp_path: Path) -> None:
    github.put("bbc_news_20250101to20250115.json", ["old"])
    github.put(NEWS, ["first text", "second text"])
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


def test_file_with_other_checksum_is_not_kept(github: GitHub, tmp_path: Path) -> None:
    github.put(NEWS, ["a text"])["sha"] = "0" * 40
    with pytest.raises(DownloadError, match=r"gave bytes with the sha1 [0-9a-f]{40}, and should give 0000"):
        download(github, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (NEWS, [{"title": "only a title"}], "entry 0 has no text, but {'title': 'only a"),
        (NEWS, {"text": "no list"}, "is no list but a dict."),
        (NEWS, b"[" * 100_000, "is no JSON"),
        ("../bbc_news_20250701to20250715.json", ["a"], "which is no path below the output"),
        ("bbc_news.json", ["a"], "data_path has no file named like"),
    ],
)
def test_unexpected_folder_content_refused(
    github: GitHub, tmp_path: Path, name: str, content: Any, message: str
) -> None:
    github.put(name, content)
    with pytest.raises(DownloadError, match=re.escape(message)):
        download(github, tmp_path)
    assert not list(tmp_path.rglob("*.jsonl.gz"))


def test_missing_repository_is_named(github: GitHub, tmp_path: Path) -> None:
    config = UncheatableEvalConfig(str(tmp_path), "owner", "texts", "data", "gone", github.url)
    with pytest.raises(DownloadError, match=r"contents/data\?ref=gone answered 404: is it there\?$"):
        download_uncheatable_eval(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"download_url": "http://169.254.169.254/computeMetadata/v1/"}, "redirects to '169.254.169.254'"),
        ({"download_url": "http://["}, "has no address of 'bbc_news"),
        ({"size": "8"}, "has no size"),
        ({"size": 1 << 40}, "has no size, one above"),
        ({"sha": 7}, "no checksum"),
    ],
)
def test_invalid_listing_entry_refused(github: GitHub, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    github.put(NEWS, ["a text"]).update(changes)
    with pytest.raises(DownloadError, match=re.escape(message)):
        download(github, tmp_path)
