"""Local Google Secret Manager: the REST calls of Google's client that store and read secrets.

Point the client at it with ``TRADEWIND_SECRET_MANAGER_ENDPOINT``. It loses everything when it stops.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import google_crc32c

_VERSION = re.compile(r"/v1/(projects/[^/]+/secrets/[^/]+)/versions/([^/:]+):access")
_ADD = re.compile(r"/v1/(projects/[^/]+/secrets/[^/:]+):addVersion")
_CREATE = re.compile(r"/v1/(projects/[^/]+)/secrets")
_POLICY = re.compile(r"/v1/(projects/[^/]+/secrets/[^/:]+):getIamPolicy")
_VERSIONS = re.compile(r"/v1/(projects/[^/]+/secrets/[^/:]+)/versions")
_CHANGE = re.compile(r"/v1/(projects/[^/]+/secrets/[^/]+)/versions/([0-9]+):(enable|disable|destroy)")
_PERMISSIONS = {"access": "versions.access", "add": "versions.add", "create": "secrets.create"}
_PERMISSIONS |= {"list": "versions.list", "enable": "versions.enable", "disable": "versions.disable"}
_PERMISSIONS |= {"destroy": "versions.destroy"}
_STATUS = {400: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS"}
_STATUS[503] = "UNAVAILABLE"


class LocalSecretManager:
    """One server; it and its secrets exist from ``start`` to ``stop``.

    Attributes:
        denied: Secrets (``projects/P/secrets/S``) that no client may read.
        refused: Permissions that no client has, such as ``secretmanager.versions.add``.
        disabled: Versions (``projects/P/secrets/S/versions/V``) that are disabled.
        destroyed: Versions whose values were destroyed.
        damaged: Secrets with a wrong checksum.
        failures: How many of the next requests are answered with 503.
        policies: Secret → the bindings of its own policy.
        released: Set while answers are given; clear it to hold them back.
        accesses: The versions accessed, in order.
    """

    def __init__(self) -> None:
        self.denied: set[str] = set()
        self.refused: set[str] = set()
        self.disabled: set[str] = set()
        self.destroyed: set[str] = set()
        self.damaged: set[str] = set()
        self.policies: dict[str, list[dict[str, Any]]] = {}
        self.failures = 0
        self.released = threading.Event()
        self.released.set()
        self.accesses: list[str] = []
        self._secrets: dict[str, list[bytes]] = {}
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        """Value of ``TRADEWIND_SECRET_MANAGER_ENDPOINT``."""
        assert self._server is not None, "started first"
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Serve on a free loopback port."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def put(self, secret: str, value: str | bytes) -> str:
        """Add a version to ``projects/P/secrets/S``, creating the secret if needed; return its name."""
        data = value.encode() if isinstance(value, str) else value
        with self._lock:
            versions = self._secrets.setdefault(secret, [])
            versions.append(data)
            return f"{secret}/versions/{len(versions)}"

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of the answer to one request."""
        self.released.wait()
        if self.failures > 0:
            self.failures -= 1
            return _refusal(503, "try again")
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if method == "GET" and (found := _VERSION.fullmatch(path)):
            return self._refused("access", found[1]) or self._access(found[1], found[2])
        if method == "GET" and (found := _VERSIONS.fullmatch(path)):
            return self._refused("list", found[1]) or self._list(found[1], query)
        if method == "GET" and (found := _POLICY.fullmatch(path)):
            return 200, {"version": 1, "bindings": self.policies.get(found[1], [])}
        if method == "POST" and (found := _CHANGE.fullmatch(path)):
            return self._refused(found[3], found[1]) or self._change(found[1], int(found[2]), found[3])
        if method == "POST" and (found := _ADD.fullmatch(path)):
            return self._refused("add", found[1]) or self._add(found[1], json.loads(body))
        if method == "POST" and (found := _CREATE.fullmatch(path)):
            return self._refused("create", found[1]) or self._create(f"{found[1]}/secrets/{query['secretId'][0]}")
        return _refusal(404, f"{method} {path} is not served here")

    def state(self, version: str) -> str:
        """Return the state of ``projects/P/secrets/S/versions/V``."""
        if version in self.destroyed:
            return "DESTROYED"
        return "DISABLED" if version in self.disabled else "ENABLED"

    def _refused(self, call: str, resource: str) -> tuple[int, dict[str, Any]] | None:
        permission = f"secretmanager.{_PERMISSIONS[call]}"
        if permission not in self.refused:
            return None
        return _refusal(403, f"Permission '{permission}' denied for resource '{resource}' (or it may not exist).")

    def _list(self, secret: str, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            if secret not in self._secrets:
                return _refusal(404, f"Secret [{secret}] not found.")
            count = len(self._secrets[secret])
        names = [f"{secret}/versions/{number}" for number in range(count, 0, -1)]  # the newest first
        first, most = int(query.get("pageToken", ["0"])[0]), int(query.get("pageSize", ["100"])[0])
        page = [{"name": name, "state": self.state(name)} for name in names[first : first + most]]
        more = {"nextPageToken": str(first + most)} if first + most < count else {}
        return 200, {"versions": page, "totalSize": count, **more}

    def _change(self, secret: str, number: int, change: str) -> tuple[int, dict[str, Any]]:
        name = f"{secret}/versions/{number}"
        with self._lock:
            if not 1 <= number <= len(self._secrets.get(secret, [])):
                return _refusal(404, f"Secret Version [{name}] not found.")
            if name in self.destroyed:
                return _refusal(400, f"Secret Version [{name}] is in DESTROYED state.")
            if change == "destroy":
                self.destroyed.add(name)
            elif change == "disable":
                self.disabled.add(name)
            else:
                self.disabled.discard(name)
        return 200, {"name": name, "state": self.state(name)}

    def _access(self, secret: str, version: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.accesses.append(f"{secret}/versions/{version}")
            versions = list(self._secrets.get(secret, []))
        if secret in self.denied:
            return _refusal(403, f"Permission 'secretmanager.versions.access' denied for resource '{secret}'")
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 1 <= number <= len(versions):
            return _refusal(404, f"Secret Version [{secret}/versions/{version}] not found.")
        name = f"{secret}/versions/{number}"
        if (state := self.state(name)) != "ENABLED":
            return _refusal(400, f"Secret Version [{name}] is in {state} state.")
        data = versions[number - 1]
        checksum = google_crc32c.value(data) ^ (secret in self.damaged)
        encoded = base64.b64encode(data).decode()
        return 200, {"name": name, "payload": {"data": encoded, "dataCrc32c": str(checksum)}}

    def _add(self, secret: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if secret not in self._secrets:
            return _refusal(404, f"Secret [{secret}] not found.")
        return 200, {"name": self.put(secret, base64.b64decode(body["payload"]["data"])), "state": "ENABLED"}

    def _create(self, secret: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            if secret in self._secrets:
                return _refusal(409, f"Secret [{secret}] already exists.")
            self._secrets[secret] = []
        return 200, {"name": secret}


def _refusal(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"error": {"code": code, "message": message, "status": _STATUS[code]}}


def _handler_of(manager: LocalSecretManager) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, fields = manager.answer(method, self.path, body)
            text = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: ``accesses`` records the requests."""

    return Handler
