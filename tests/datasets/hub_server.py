"""Loopback hub for the Hugging Face hub's own client, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.http_server import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "people/letters"
PAGE = 2
"""Entries per page of the file list."""
TOKEN = "hf_nobody_may_see_this"

Fault = Callable[["Handler", bytes], None]
"""Function that answers a request for these bytes wrongly."""


class HubServer(ThreadingHTTPServer):
    """Hub server that records its requests.

    Attributes:
        files: Path in the repository of the data set → content.
        models: Repository of a model → the same of it.
        revisions: Revision → commit, in all repositories.
        lfs: Paths that the file list shows with a SHA-256, as for large files.
        faults: Path ending → faults that answer the next requests before the server answers correctly.
        asked: Number of requests per path.
        ranges: ``Range`` header of each request for a file's bytes, None for the whole file.
        tokens: ``Authorization`` headers of requests to the hub and to its redirect target.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], cdn: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(files)
        self.models: dict[str, dict[str, bytes]] = {}
        self.revisions = dict.fromkeys(("0123456", "main", COMMIT), COMMIT)
        self.lfs: set[str] = set()
        self.faults: dict[str, deque[Fault]] = {}
        self.asked: Counter[str] = Counter()
        self.ranges: list[str | None] = []
        self.tokens: list[str | None] = []
        self.cdn = cdn
        self.etag = '"the-only"'
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def url_of(self, name: str) -> str:
        """URL of a file outside the repository that the token is for."""
        return f"{self.url}/x/resolve/{COMMIT}/{name}"

    def fail(self, end: str, *faults: Fault) -> None:
        """Answer the next requests for paths with this ending with these faults, once each."""
        self.faults[end] = deque(faults)


class Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Log no requests."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        hub = self.server
        with hub.lock:
            hub.asked[path] += 1
            hub.tokens.append(self.headers.get("Authorization"))
            fault = next((queue.popleft() for end, queue in hub.faults.items() if queue and path.endswith(end)), None)
        name = path.rpartition(f"/resolve/{COMMIT}/")[2]
        model = next((model for model in hub.models if f"/{model}/" in path), None)
        files = hub.files if model is None else hub.models[model]
        content = files.get(name, b"")
        if fault is not None:
            return fault(self, content)
        api, revision = f"/api/datasets/{REPO}" if model is None else f"/api/models/{model}", path.rpartition("/")[2]
        if path == f"{api}/revision/{revision}" and revision in hub.revisions:
            return self.answer(json.dumps({"id": REPO, "sha": hub.revisions[revision]}).encode())
        if path == f"{api}/tree/{COMMIT}":
            return self.list_files(files)
        if "/resolve/" in path and hub.cdn:
            self.send_response(302)
            self.send_header("Location", f"{hub.cdn}{self.path}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if "/resolve/" in path and name in files:
            return self.give(content)
        what = "RevisionNotFound" if "/revision/" in path and f"/{REPO}/" in path else "RepoNotFound"
        self.answer(b"{}", 404, {"X-Error-Code": what})

    def list_files(self, files: dict[str, bytes]) -> None:
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        names = sorted(files)
        entries = [self.entry(name, files[name]) for name in names[start : start + PAGE]]
        rest = f"{self.server.url}{urlsplit(self.path).path}?recursive=True&cursor={start + PAGE}"
        link = {"Link": f'<{rest}>; rel="next"'} if start + PAGE < len(names) else {}
        self.answer(json.dumps(entries).encode(), 200, link)

    def entry(self, name: str, content: bytes) -> dict[str, object]:
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        found: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": blob}
        if name in self.server.lfs:
            found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return found

    def give(self, content: bytes, *, most: int | None = None, ignores_range: bool = False) -> None:
        """Send the content or the requested range; with ``most`` close the connection after so many bytes."""
        asked = self.headers.get("Range")
        with self.server.lock:
            self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not ignores_range else 0
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        self.wfile.write(body[:most])
        self.wfile.flush()
        if most is not None:
            self.close_connection = True
            self.connection.shutdown(2)

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def status(code: int, retry_after: str | None = None) -> Fault:
    """Answer with this HTTP status."""
    return lambda handler, _: handler.answer(b"", code, {"Retry-After": retry_after} if retry_after else {})


def cut(after: int) -> Fault:
    """Close the connection after so many bytes."""
    return lambda handler, content: handler.give(content, most=after)


def wrong(content: bytes) -> Fault:
    """Send other bytes."""
    return lambda handler, _: handler.give(content)


def whole(handler: Handler, content: bytes) -> None:
    """Send the whole content, whatever the requested range."""
    handler.give(content, ignores_range=True)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Start a hub with a small data set; environment variables name it."""
    files = {
        ".gitattributes": b"*.parquet filter=lfs\n",
        "README.md": b"# Letters\n",
        "data/a.jsonl": b'{"text": "a"}\n' * 40_000,
        "data/b.jsonl": b'{"text": "b"}\n' * 4000,
        "data/old/c.jsonl": b'{"text": "c"}\n',
    }
    with serving(HubServer(files)) as server:
        server.lfs = {"data/a.jsonl", "data/b.jsonl"}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
