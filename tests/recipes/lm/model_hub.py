"""Loopback hub with one model, for Levanter's clients of the Hugging Face API."""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
MODEL = "people/tiny"


class LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Log no requests."""

    def send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class ModelHub(LoopbackServer):
    """Server of the model ``MODEL``.

    Attributes:
        branches: Branch name → its files: name → content.
        tokens: ``Authorization`` header of each request.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.branches: dict[str, dict[str, bytes]] = {"main": {}}
        self.tokens: set[str | None] = set()


class Handler(QuietHandler):
    server: ModelHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        self.server.tokens.add(self.headers.get("Authorization"))
        repository, _, rest = path.removeprefix("api/models/").partition(MODEL)
        if repository or (rest and not rest.startswith("/")) or MODEL not in path:
            return self.send(b"", 404, {"X-Error-Code": "RepoNotFound"})
        what, revision, *name = (rest or "/revision/main")[1:].split("/", 2)
        files = self.server.branches.get("main" if revision == COMMIT else revision)
        if files is None:
            return self.send(b"", 404, {"X-Error-Code": "RevisionNotFound"})
        if what == "revision":
            siblings = [{"rfilename": file} for file in sorted(files)]
            return self.send(json.dumps({"id": MODEL, "sha": COMMIT, "siblings": siblings}).encode())
        if what == "tree":
            found = [{"type": "file", "path": each, "size": len(files[each]), "oid": ""} for each in sorted(files)]
            return self.send(json.dumps(found).encode())
        content = files.get("/".join(name))
        if what != "resolve" or content is None:
            return self.send(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        asked = self.headers.get("Range")
        if asked is None:
            return self.send(content, 200, headers)
        start, _, last = asked.removeprefix("bytes=").partition("-")
        part = content[int(start) : int(last) + 1]
        self.send(part, 206, headers | {"Content-Range": f"bytes {start}-{last}/{len(content)}"})
