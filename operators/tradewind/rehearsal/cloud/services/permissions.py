"""Google's Resource Manager on this machine: who has which role in a project, over its REST protocol.

Point clients at it with ``TRADEWIND_RESOURCE_MANAGER_ENDPOINT``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer

_CALL: Final = re.compile(r"/v3/projects/([^/:]+):(getIamPolicy|testIamPermissions)")


class LocalResourceManager(LoopbackServer):
    """The policies of all projects.

    Attributes:
        missing: Permissions that whoever asks has not; all others it has.
        denied: Permissions without which a call is refused, such as ``resourcemanager.projects.getIamPolicy``.
        bindings: Project → the bindings of its policy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        self.denied: set[str] = set()
        self.bindings: dict[str, list[dict[str, Any]]] = {}

    def grant(self, project: str, role: str, account: str, condition: str | None = None) -> None:
        """Let a service account have a role in a project."""
        binding: dict[str, Any] = {"role": role, "members": [f"serviceAccount:{account}"]}
        if condition:
            binding["condition"] = {"title": "for a while", "expression": condition}
        self.bindings.setdefault(project, []).append(binding)

    def answer(self, call: HttpRequest) -> Answer:
        found = _CALL.fullmatch(call.path)
        if found is None or call.method != "POST":
            return self.refusal("unknown", 404, f"{call.method} {call.path} is not served here")
        if found[2] == "testIamPermissions":
            asked = json.loads(call.body)["permissions"]
            return _told("test", {"permissions": [name for name in asked if name not in self.missing]})
        if "resourcemanager.projects.getIamPolicy" in self.denied:
            return self.refusal("policy", 403, "The caller does not have permission")
        return _told("policy", {"version": 1, "etag": "BwY=", "bindings": self.bindings.get(found[1], [])})

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return _told(kind, {"error": {"code": status, "message": message}}, status)


def _told(kind: str, fields: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(kind, status, json.dumps(fields).encode(), {"Content-Type": "application/json; charset=UTF-8"})
