"""Google's Artifact Registry on this machine: repositories and their clean-up policies, over its REST protocol.

Point clients at it with ``TRADEWIND_ARTIFACT_REGISTRY_ENDPOINT``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer

_REPOSITORY: Final = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/:]+)")
_TAG: Final = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/]+/packages/[^/]+/tags/[^/:]+)")
_POLICY: Final = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/:]+):getIamPolicy")
_STATUSES: Final = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 503: "UNAVAILABLE"}
_CHANGEABLE: Final = {"cleanupPolicies", "cleanupPolicyDryRun", "description", "labels"}


class LocalArtifactRegistry(LoopbackServer):
    """The repositories of all projects and regions.

    Attributes:
        policies: Repository → the bindings of its own policy.
        tags: The tags that images have: ``projects/P/locations/R/repositories/N/packages/IMAGE/tags/TAG``.
        denied: Permissions that nobody has, such as ``artifactregistry.repositories.update``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.denied: set[str] = set()
        self.policies: dict[str, list[dict[str, Any]]] = {}
        self._repositories: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def put(self, name: str, **fields: Any) -> None:
        """Let there be ``projects/P/locations/R/repositories/N``."""
        with self._lock:
            self._repositories[name] = {"name": name, "format": "DOCKER", "mode": "STANDARD_REPOSITORY", **fields}

    def get(self, name: str) -> dict[str, Any]:
        """It as it is."""
        with self._lock:
            return dict(self._repositories[name])

    def answer(self, call: HttpRequest) -> Answer:
        if call.method == "GET" and (policy := _POLICY.fullmatch(call.path)):
            return _told("policy", {"version": 1, "bindings": self.policies.get(policy[1], [])})
        if call.method == "GET" and (tag := _TAG.fullmatch(call.path)):
            return self._tag(tag[1])
        found = _REPOSITORY.fullmatch(call.path)
        if found is None or call.method not in ("GET", "PATCH"):
            return self.refusal("unknown", 404, f"{call.method} {call.path} is not served here")
        kind = "get" if call.method == "GET" else "patch"
        permission = f"artifactregistry.repositories.{'get' if kind == 'get' else 'update'}"
        if permission in self.denied:
            return self.refusal(kind, 403, f"Permission '{permission}' denied on resource '{found[1]}'")
        with self._lock:
            repository = self._repositories.get(found[1])
            if repository is None:
                return self.refusal(kind, 404, f"Requested entity was not found: {found[1]}")
            if kind == "patch" and (wrong := self._patch(repository, call)):
                return self.refusal(kind, 400, wrong)
            return _told(kind, repository)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        error = {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}
        return _told(kind, {"error": error}, status)

    def _tag(self, name: str) -> Answer:
        if "artifactregistry.tags.get" in self.denied:
            return self.refusal("tag", 403, f"Permission 'artifactregistry.tags.get' denied on resource '{name}'")
        if name not in self.tags:
            return self.refusal("tag", 404, "Requested entity was not found.")
        return _told("tag", {"name": name})

    def _patch(self, repository: dict[str, Any], call: HttpRequest) -> str:
        """Change what the mask names; what is wrong with the request, if something is."""
        mask = [name for name in call.query.get("updateMask", "").split(",") if name]
        if unknown := [name for name in mask if name not in _CHANGEABLE]:
            return f"Invalid field mask: {unknown[0]}"
        body = json.loads(call.body)
        for name, policy in body.get("cleanupPolicies", {}).items():
            if policy.get("id") != name or policy.get("action") not in ("DELETE", "KEEP"):
                return f"Invalid cleanup policy: {name}"
        repository.update({name: body[name] for name in mask if name in body})
        return ""


def _told(kind: str, fields: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(kind, status, json.dumps(fields).encode(), {"Content-Type": "application/json; charset=UTF-8"})
