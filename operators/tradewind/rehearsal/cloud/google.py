"""Those of Google's services that a cluster's life needs, at one address.

Several projects and zones have their own slices; machines and disks are told apart by their paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.cloud.services.artifact_registry import LocalArtifactRegistry
from tradewind.rehearsal.compute.machines import Machines
from tradewind.rehearsal.compute.refusals import denied, told
from tradewind.rehearsal.compute.service import PREFIX, ComputeService
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.hosts import SliceHosts
from tradewind.rehearsal.tpu.state import HeldNode

_TPU: Final = re.compile(r"/v2(?:alpha1)?/projects/([^/]+)/locations/([^/]+)(/.*)")
_REGISTRY: Final = re.compile(r"/v1/projects/[^/]+/locations/[^/]+/repositories/.*")
_SECRETS: Final = re.compile(r"/v1/projects/[^/]+/secrets.*")


class LocalGoogle(LoopbackServer):
    """One server for all of them.

    Args:
        places: The projects and zones that there are.
        machines: What instances consist of; nothing by default.
        hosts: What slices consist of; nothing by default.

    Attributes:
        compute: Compute Engine.
        tpu: Cloud TPU, by project and zone.
        secrets: Secret Manager.
        registry: Artifact Registry.
        seen: Called with each request before it is answered.
    """

    def __init__(
        self, *places: tuple[str, str], machines: Machines | None = None, hosts: SliceHosts | None = None
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
            status, fields = self.secrets.answer(call.method, f"{call.path}?{urlencode(call.query)}", call.body)
            return told("secrets", fields, status)
        return self.refusal("unknown", 404, f"{call.method} {call.path} is not served by the rehearsal")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        fields = {"error": {"code": status, "message": message, "status": "UNAVAILABLE"}}
        return Answer(kind, status, json.dumps(fields).encode(), {"Content-Type": "application/json"})

    def slices(self) -> Mapping[str, HeldNode]:
        """Every slice, by its id."""
        states = [cloud.service.state for cloud in self.tpu.values()]
        return {held.id: held for state in states for held in list(state.nodes.values())}

    def end_all(self) -> None:
        """No machine and no slice is left."""
        for cloud in self.tpu.values():
            cloud.service.lives.end_all()
        self.compute.end_all()
