"""Google services on loopback, over their REST protocols: one server for all that a cluster needs, and single ones."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.support.compute import PREFIX, ComputeService, MachineBackend, RefusedRequestError, denied
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer, json_answer
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.hosts import SliceHosts
from tradewind.rehearsal.tpu.state import NodeEntry

_REPOSITORY: Final = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/:]+)")
_TAG: Final = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/]+/packages/[^/]+/tags/[^/:]+)")
_POLICY: Final = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/:]+):getIamPolicy")
_TPU: Final = re.compile(r"/v2(?:alpha1)?/projects/([^/]+)/locations/([^/]+)(/.*)")
_REGISTRY: Final = re.compile(r"/v1/projects/[^/]+/locations/[^/]+/repositories/.*")
_SECRETS: Final = re.compile(r"/v1/projects/[^/]+/secrets.*")
_PROJECT_POLICY: Final = re.compile(r"/v3/projects/([^/:]+):(getIamPolicy|testIamPermissions)")
_STATUSES: Final = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 503: "UNAVAILABLE"}
_CHANGEABLE: Final = {"cleanupPolicies", "cleanupPolicyDryRun", "description", "labels"}


class LocalArtifactRegistry(LoopbackServer):
    """Artifact Registry (``TRADEWIND_ARTIFACT_REGISTRY_ENDPOINT``): repositories of all projects and regions.

    ``policies`` are the bindings of each repository's own policy, ``tags`` the full names of images' tags.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.denied: set[str] = set()
        self.policies: dict[str, list[dict[str, Any]]] = {}
        self._repositories: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def put(self, name: str, **fields: Any) -> None:
        """Create or replace ``projects/P/locations/R/repositories/N``."""
        with self._lock:
            self._repositories[name] = {"name": name, "format": "DOCKER", "mode": "STANDARD_REPOSITORY", **fields}

    def get(self, name: str) -> dict[str, Any]:
        """Return the repository."""
        with self._lock:
            return dict(self._repositories[name])

    def answer(self, call: HttpRequest) -> Answer:
        if call.method == "GET" and (policy := _POLICY.fullmatch(call.path)):
            return json_answer("policy", {"version": 1, "bindings": self.policies.get(policy[1], [])})
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
            return json_answer(kind, repository)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        error = {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}
        return json_answer(kind, {"error": error}, status)

    def _tag(self, name: str) -> Answer:
        if "artifactregistry.tags.get" in self.denied:
            return self.refusal("tag", 403, f"Permission 'artifactregistry.tags.get' denied on resource '{name}'")
        if name not in self.tags:
            return self.refusal("tag", 404, "Requested entity was not found.")
        return json_answer("tag", {"name": name})

    def _patch(self, repository: dict[str, Any], call: HttpRequest) -> str:
        """Change the fields in the update mask; return an error message, or an empty text."""
        mask = [name for name in call.query.get("updateMask", "").split(",") if name]
        if unknown := [name for name in mask if name not in _CHANGEABLE]:
            return f"Invalid field mask: {unknown[0]}"
        body = json.loads(call.body)
        for name, policy in body.get("cleanupPolicies", {}).items():
            if policy.get("id") != name or policy.get("action") not in ("DELETE", "KEEP"):
                return f"Invalid cleanup policy: {name}"
        repository.update({name: body[name] for name in mask if name in body})
        return ""


class LocalGoogle(LoopbackServer):
    """One server for all services, for these projects and zones.

    Without ``machines`` and ``hosts``, instances and slices run nothing. The server calls ``seen`` with each request.
    """

    def __init__(
        self, *places: tuple[str, str], machines: MachineBackend | None = None, hosts: SliceHosts | None = None
    ) -> None:
        super().__init__()
        self.compute = ComputeService(machines)
        self.tpu = {place: LocalTpuCloud(hosts, project=place[0], zone=place[1]) for place in places}
        self.secrets = LocalSecretManager()
        self.registry = LocalArtifactRegistry()
        self.seen: Callable[[HttpRequest], None] = lambda call: None

    def answer(self, call: HttpRequest) -> Answer:
        self.seen(call)
        if call.path.startswith(PREFIX):
            return self.compute.answer(call)
        if found := _TPU.fullmatch(call.path):
            project, zone, rest = found.groups()
            if (project, zone) not in self.tpu:
                return denied("tpu.locations.get", f"projects/{project}/locations/{zone}").answer("unknown")
            path = f"/v2/projects/{project}/locations/{zone}{rest}"
            return self.tpu[project, zone].answer(HttpRequest(call.method, path, call.query, call.headers, call.body))
        if _REGISTRY.fullmatch(call.path):
            return self.registry.answer(call)
        if _SECRETS.fullmatch(call.path):
            return self.secrets.answer(call)
        return self.refusal("unknown", 404, f"{call.method} {call.path} is not served by the rehearsal")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return json_answer(kind, {"error": {"code": status, "message": message, "status": "UNAVAILABLE"}}, status)

    def slices(self) -> Mapping[str, NodeEntry]:
        """Return every slice, by its id."""
        states = [cloud.service.state for cloud in self.tpu.values()]
        return {entry.id: entry for state in states for entry in list(state.nodes.values())}

    def end_all(self) -> None:
        """Kill all machines and slices."""
        for cloud in self.tpu.values():
            cloud.service.lives.end_all()
        self.compute.end_all()


class LocalCompute(LoopbackServer):
    """Compute Engine alone (``TRADEWIND_COMPUTE_ENDPOINT``): tests add instances and ``denied`` permissions."""

    def __init__(self) -> None:
        super().__init__()
        self.service = ComputeService()
        self.denied = self.service.state.faults.denied

    def put(
        self,
        project: str,
        zone: str,
        name: str,
        *,
        labels: Mapping[str, str],
        internal_ip: str,
        external_ip: str | None = None,
        status: str = "RUNNING",
        host_keys: Mapping[str, str] | None = None,
    ) -> None:
        """Create or replace this instance, whose guest agent has published ``host_keys``, by key type."""
        access = [{"type": "ONE_TO_ONE_NAT", "natIP": external_ip}] if external_ip else []
        interface = {"networkIP": internal_ip, "accessConfigs": access}
        path = f"projects/{project}/zones/{zone}/instances/{name}"
        state = self.service.state
        with state.changed:
            state.resources.pop(path, None)
            state.guests[path] = dict(host_keys or {})
            state.add(path, {"labels": dict(labels), "status": status, "networkInterfaces": [interface]})

    def remove(self, project: str, zone: str, name: str) -> None:
        """Remove the instance."""
        state = self.service.state
        with state.changed:
            del state.resources[f"projects/{project}/zones/{zone}/instances/{name}"]

    def answer(self, call: HttpRequest) -> Answer:
        return self.service.answer(call)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return RefusedRequestError(status, "backendError", message).answer(kind)


class LocalResourceManager(LoopbackServer):
    """Resource Manager (``TRADEWIND_RESOURCE_MANAGER_ENDPOINT``): IAM policies of all projects, as ``bindings``.

    The caller lacks the permissions ``missing``, and those ``denied``, without which a call fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        self.denied: set[str] = set()
        self.bindings: dict[str, list[dict[str, Any]]] = {}

    def grant(self, project: str, role: str, account: str, condition: str | None = None) -> None:
        """Grant a service account a role in a project."""
        binding: dict[str, Any] = {"role": role, "members": [f"serviceAccount:{account}"]}
        if condition:
            binding["condition"] = {"title": "for a while", "expression": condition}
        self.bindings.setdefault(project, []).append(binding)

    def answer(self, call: HttpRequest) -> Answer:
        found = _PROJECT_POLICY.fullmatch(call.path)
        if found is None or call.method != "POST":
            return self.refusal("unknown", 404, f"{call.method} {call.path} is not served here")
        if found[2] == "testIamPermissions":
            requested = json.loads(call.body)["permissions"]
            return json_answer("test", {"permissions": [name for name in requested if name not in self.missing]})
        if "resourcemanager.projects.getIamPolicy" in self.denied:
            return self.refusal("policy", 403, "The caller does not have permission")
        return json_answer("policy", {"version": 1, "etag": "BwY=", "bindings": self.bindings.get(found[1], [])})

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return json_answer(kind, {"error": {"code": status, "message": message}}, status)
