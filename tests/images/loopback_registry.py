"""Debian's ``docker-registry`` and Artifact Registry's API on loopback, for the real Buildah and the real gcloud."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

from tradewind.rehearsal.local.processes import free_port

SALT = "$2b$05$abcdefghijklmnopqrstuu"


@contextmanager
def docker_registry(folder: Path, user: str, password: str) -> Iterator[str]:
    """Run a registry that requires this user; yield its address. Its certificate is ``registry.pem``."""
    certificate, key = folder / "registry.pem", folder / "registry.key"
    subject = ["-subj", "/CN=loopback", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", key, "-out", certificate]
    make_key = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *subject]
    subprocess.run(make_key, check=True, capture_output=True)
    address = f"127.0.0.1:{free_port()}"
    encrypt = ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", password, SALT]
    entry = subprocess.run(encrypt, capture_output=True, text=True, check=True)
    (folder / "htpasswd").write_text(f"{user}:{entry.stdout}\n")
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address, "tls": {"certificate": str(certificate), "key": str(key)}},
        "auth": {"htpasswd": {"realm": "loopback", "path": str(folder / "htpasswd")}},
    }
    (folder / "registry.json").write_text(json.dumps(config))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "registry.json"], stdout=log, stderr=log)
        try:
            _wait_for_registry(process, f"https://{address}/v2/", certificate)
            yield address
        finally:
            process.terminate()
            process.wait()


def _wait_for_registry(process: subprocess.Popen[bytes], url: str, certificate: Path) -> None:
    while process.poll() is None:
        try:
            requests.get(url, timeout=5, verify=str(certificate))
        except requests.ConnectionError:
            continue
        return
    raise AssertionError("docker-registry ended at once")


class ArtifactRegistry(ThreadingHTTPServer):
    """The part of ``artifactregistry.googleapis.com/v1`` that finds and creates repositories."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Any] = {}
        self.created: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ArtifactRegistry

    def do_GET(self) -> None:
        name = self.path.removeprefix("/v1/").partition("?")[0]
        if "/operations/" in name:
            created = self.server.repositories[self.server.created[-1]]
            self._answer(200, {"name": name, "done": True, "response": {"@type": "type.googleapis.com/x", **created}})
        elif name in self.server.repositories:
            self._answer(200, self.server.repositories[name])
        else:
            error = {"code": 404, "message": "Requested entity was not found.", "status": "NOT_FOUND"}
            self._answer(404, {"error": error})

    def do_POST(self) -> None:
        parent, _, query = self.path.removeprefix("/v1/").partition("?")
        identifier = dict(pair.split("=") for pair in query.split("&"))["repositoryId"]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = f"{parent}/{identifier}"
        self.server.repositories[name] = {"name": name, "format": body["format"]}
        self.server.created.append(name)
        self._answer(200, {"name": f"{parent.rpartition('/')[0]}/operations/1", "done": False})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
