"""Local Google Secret Manager: the REST calls of Google's client that store and read secrets.

Point the client at it with ``TRADEWIND_SECRET_MANAGER_ENDPOINT``.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import google_crc32c

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer, RefusedError, json_answer

_SECRET: Final = r"/v1/(projects/[^/]+/secrets/[^/:]+)"
_STATUS: Final = {
    400: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    503: "UNAVAILABLE",
}


class LocalSecretManager(LoopbackServer):
    """The server; the kinds of requests are access, list, policy, add, create, enable, disable and destroy.

    Attributes:
        denied: Secrets (``projects/P/secrets/S``) that no client may read.
        refused: Permissions that no client has, such as ``secretmanager.versions.add``.
        disabled: Versions (``projects/P/secrets/S/versions/V``) that are disabled.
        destroyed: Versions whose values were destroyed.
        damaged: Secrets with a wrong checksum.
        policies: Secret → the bindings of its own policy.
        released: Set while answers are given; clear it to hold them back.
        accesses: The versions accessed, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[str] = set()
        self.refused: set[str] = set()
        self.disabled: set[str] = set()
        self.destroyed: set[str] = set()
        self.damaged: set[str] = set()
        self.policies: dict[str, list[dict[str, Any]]] = {}
        self.released = threading.Event()
        self.released.set()
        self.accesses: list[str] = []
        self._secrets: dict[str, list[bytes]] = {}
        self._created: dict[str, datetime] = {}
        self._lock = threading.Lock()
        routes: list[tuple[str, str, str, Callable[..., dict[str, Any]]]] = [
            ("GET", _SECRET + r"/versions/([^/:]+):access", "access", self._access),
            ("GET", _SECRET + r"/versions", "list", self._list),
            ("GET", _SECRET + r":getIamPolicy", "policy", self._policy),
            ("POST", _SECRET + r"/versions/([0-9]+):enable", "enable", self._change),
            ("POST", _SECRET + r"/versions/([0-9]+):disable", "disable", self._change),
            ("POST", _SECRET + r"/versions/([0-9]+):destroy", "destroy", self._change),
            ("POST", _SECRET + r":addVersion", "add", self._add),
            ("POST", r"/v1/(projects/[^/]+)/secrets", "create", self._create),
        ]
        self._routes = [(method, re.compile(path), kind, serve) for method, path, kind, serve in routes]

    @property
    def endpoint(self) -> str:
        """Value of ``TRADEWIND_SECRET_MANAGER_ENDPOINT``."""
        return self.url

    def put(self, secret: str, value: str | bytes) -> str:
        """Add a version to ``projects/P/secrets/S``, creating the secret if needed; return its name."""
        data = value.encode() if isinstance(value, str) else value
        with self._lock:
            versions = self._secrets.setdefault(secret, [])
            versions.append(data)
            name = f"{secret}/versions/{len(versions)}"
            self._created[name] = datetime.now(UTC)
            return name

    def answer(self, call: HttpRequest) -> Answer:
        self.released.wait()
        for method, path, kind, serve in self._routes:
            if method == call.method and (matched := path.fullmatch(call.path)):
                permission = f"secretmanager.{'secrets' if kind == 'create' else 'versions'}.{kind}"
                try:
                    if permission in self.refused:
                        raise _denied(permission, matched[1], " (or it may not exist).")
                    return json_answer(kind, serve(call, *matched.groups()))
                except RefusedError as error:
                    return self.refusal(kind, error.status, str(error))
        return self.refusal("unknown", 404, f"{call.method} {call.path} is not served here")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        error = {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN")}
        return json_answer(kind, {"error": error}, status)

    def state(self, version: str) -> str:
        """Return the state of ``projects/P/secrets/S/versions/V``."""
        if version in self.destroyed:
            return "DESTROYED"
        return "DISABLED" if version in self.disabled else "ENABLED"

    def _policy(self, call: HttpRequest, secret: str) -> dict[str, Any]:
        return {"version": 1, "bindings": self.policies.get(secret, [])}

    def _list(self, call: HttpRequest, secret: str) -> dict[str, Any]:
        count = len(self._versions(secret))
        names = [f"{secret}/versions/{number}" for number in range(count, 0, -1)]  # the newest first
        first, size = int(call.query.get("pageToken", "0")), int(call.query.get("pageSize", "100"))
        page = [
            {"name": name, "state": self.state(name), "createTime": f"{self._created[name]:%Y-%m-%dT%H:%M:%S.%fZ}"}
            for name in names[first : first + size]
        ]
        more = {"nextPageToken": str(first + size)} if first + size < count else {}
        return {"versions": page, "totalSize": count, **more}

    def _change(self, call: HttpRequest, secret: str, number: str) -> dict[str, Any]:
        name = f"{secret}/versions/{number}"
        if not 1 <= int(number) <= len(self._secrets.get(secret, [])):
            raise RefusedError(404, f"Secret Version [{name}] not found.")
        if name in self.destroyed:
            raise RefusedError(400, f"Secret Version [{name}] is in DESTROYED state.")
        match call.path.rpartition(":")[2]:
            case "destroy":
                self.destroyed.add(name)
            case "disable":
                self.disabled.add(name)
            case _:
                self.disabled.discard(name)
        return {"name": name, "state": self.state(name)}

    def _access(self, call: HttpRequest, secret: str, version: str) -> dict[str, Any]:
        self.accesses.append(f"{secret}/versions/{version}")
        versions = self._secrets.get(secret, [])
        if secret in self.denied:
            raise _denied("secretmanager.versions.access", secret)
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 1 <= number <= len(versions):
            raise RefusedError(404, f"Secret Version [{secret}/versions/{version}] not found.")
        name = f"{secret}/versions/{number}"
        if (state := self.state(name)) != "ENABLED":
            raise RefusedError(400, f"Secret Version [{name}] is in {state} state.")
        data = versions[number - 1]
        checksum = google_crc32c.value(data) ^ (secret in self.damaged)
        return {"name": name, "payload": {"data": base64.b64encode(data).decode(), "dataCrc32c": str(checksum)}}

    def _add(self, call: HttpRequest, secret: str) -> dict[str, Any]:
        self._versions(secret)
        value = base64.b64decode(json.loads(call.body)["payload"]["data"])
        return {"name": self.put(secret, value), "state": "ENABLED"}

    def _create(self, call: HttpRequest, project: str) -> dict[str, Any]:
        secret = f"{project}/secrets/{call.query['secretId']}"
        with self._lock:
            if secret in self._secrets:
                raise RefusedError(409, f"Secret [{secret}] already exists.")
            self._secrets[secret] = []
        return {"name": secret}

    def _versions(self, secret: str) -> list[bytes]:
        if secret not in self._secrets:
            raise RefusedError(404, f"Secret [{secret}] not found.")
        return self._secrets[secret]


def _denied(permission: str, resource: str, more: str = "") -> RefusedError:
    return RefusedError(403, f"Permission '{permission}' denied for resource '{resource}'{more}")
