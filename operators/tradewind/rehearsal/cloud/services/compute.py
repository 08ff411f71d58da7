"""Google's Compute Engine at an address of its own, with instances that tests put there.

Point clients at it with ``TRADEWIND_COMPUTE_ENDPOINT``.
"""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer
from tradewind.rehearsal.compute.refusals import RefusedRequestError
from tradewind.rehearsal.compute.service import ComputeService


class LocalCompute(LoopbackServer):
    """The instances of all projects and zones.

    Attributes:
        service: The API.
        denied: Permissions that nobody has, such as ``compute.instances.list``.
    """

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
        """Let there be this instance; ``host_keys`` are what its guest agent wrote down, by their types."""
        access = [{"type": "ONE_TO_ONE_NAT", "natIP": external_ip}] if external_ip else []
        interface = {"networkIP": internal_ip, "accessConfigs": access}
        path = f"projects/{project}/zones/{zone}/instances/{name}"
        state = self.service.state
        with state.changed:
            state.resources.pop(path, None)
            state.guests[path] = dict(host_keys or {})
            state.add(path, {"labels": dict(labels), "status": status, "networkInterfaces": [interface]})

    def remove(self, project: str, zone: str, name: str) -> None:
        """Let it be gone."""
        state = self.service.state
        with state.changed:
            del state.resources[f"projects/{project}/zones/{zone}/instances/{name}"]

    def answer(self, call: HttpRequest) -> Answer:
        return self.service.answer(call)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return RefusedRequestError(status, "backendError", message).answer(kind)
