"""Corrections of Ray's virtual machines and slices, and the representative host of each slice.

Lists have all pages, and a node that vanishes meanwhile is gone. A slice that Google repairs is not dead: Ray would
create another one, and then have both. Manual slices are not the autoscaler's.

Ray's autoscaler has one entry for a slice, with its last use and whether it is in Ray, and finds the entry by the
address that the provider returns for the slice. Ray's own provider returns that of host 0, so a slice seems idle or
healthy whenever host 0 does. Here it is the address of the host whose use or loss decides about the whole slice.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from googleapiclient.errors import HttpError  # type: ignore[import-untyped]
from ray.autoscaler._private.gcp.node import GCPTPU, GCPCompute, GCPComputeNode, GCPTPUNode
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import (
    NODE_KIND_UNMANAGED,
    NODE_KIND_WORKER,
    TAG_RAY_CLUSTER_NAME,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
)
from ray.autoscaler.v2.sdk import get_cluster_resource_state
from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus  # type: ignore[attr-defined]
from ray.exceptions import RayError
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from tradewind.fleet.cloud.google_api import own_connection
from tradewind.fleet.errors import FleetError

_FIRST_POLL_S: Final = 0.25
_MAX_POLL_S: Final = 5.0
_OPERATION_S: Final = 15 * 60.0
_PAGE: Final = 500
_DEAD: Final = frozenset({"PREEMPTED", "TERMINATED"})
_NOT_FOUND: Final = 404


class Head(GCPComputeNode):
    """A virtual machine."""


class SliceNode(GCPTPUNode):
    """A slice; one that Google repairs or restarts is not lost."""

    NON_TERMINATED_STATUSES = GCPTPUNode.NON_TERMINATED_STATUSES | {"REPAIRING", "REIMAGING"}


class VirtualMachines(GCPCompute):
    """The virtual machines of a cluster."""

    def get_new_authorized_http(self, http: Any) -> Any:
        return own_connection(http)

    def wait_for_operation(self, operation: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            place = {"project": self.project_id, "zone": self.availability_zone}
            return dict(self.resource.zoneOperations().get(operation=operation["name"], **place).execute())

        ended = _wait(look, lambda found: found["status"] == "DONE", operation["name"])
        if error := ended.get("error"):
            first = error["errors"][0]
            raise NodeLaunchException(first["code"], first["message"], None)
        return ended

    def get_instance(self, node_id: str) -> GCPComputeNode:
        try:
            return super().get_instance(node_id)
        except HttpError as error:
            only_not_found(error)
        return Head({"name": node_id, "status": "TERMINATED", "labels": {}}, self)


class Slices(GCPTPU):
    """The slices of a cluster."""

    def get_new_authorized_http(self, http: Any) -> Any:
        return own_connection(http)

    def wait_for_operation(self, operation: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        operations = self.resource.projects().locations().operations()

        def look() -> dict[str, Any]:
            return dict(operations.get(name=operation["name"]).execute())

        ended = _wait(look, lambda found: bool(found.get("done")), operation["name"])
        if error := ended.get("error"):
            raise NodeLaunchException(str(error.get("code", "")), str(error.get("message", "")), None)
        return ended

    def list_instances(self, label_filters: dict[str, str] | None = None, is_terminated: bool = False) -> list[Any]:
        wanted = {**(label_filters or {}), TAG_RAY_CLUSTER_NAME: self.cluster_name}
        nodes = (SliceNode(fields, self) for fields in self._all())
        return [
            node
            for node in nodes
            if not node.is_terminated()
            and wanted.items() <= node.get_labels().items()
            and node.get_labels().get(TAG_RAY_NODE_KIND) != NODE_KIND_UNMANAGED
        ]

    def get_instance(self, node_id: str) -> SliceNode:
        try:
            return SliceNode(super().get_instance(node_id).data, self)
        except HttpError as error:
            only_not_found(error)
        return SliceNode({"name": node_id, "state": "TERMINATED", "labels": {}}, self)

    def set_labels(self, node: Any, labels: dict[str, str], wait_for_operation: bool = True) -> dict[str, Any]:
        """Set labels over the current ones: Ray sends all labels of its last list, and would undo later changes."""
        return dict(super().set_labels(self.get_instance(node["name"]), labels, wait_for_operation))

    def delete_dead(self, node_type: str) -> None:
        """Delete the workers of this type that Google has taken, which still use quota.

        A slice of a queued resource is left to the user who requested that.
        """
        dead = {
            TAG_RAY_CLUSTER_NAME: self.cluster_name,
            TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
            TAG_RAY_USER_NODE_TYPE: node_type,
        }
        for fields in self._all():
            is_own = dead.items() <= fields.get("labels", {}).items()
            if is_own and fields.get("state") in _DEAD and not fields.get("queuedResource"):
                try:
                    self.delete_instance(fields["name"], wait_for_operation=False)
                except HttpError as error:
                    only_not_found(error)

    def _all(self) -> Iterator[dict[str, Any]]:
        """Yield the slices of the zone, from all pages."""
        nodes = self.resource.projects().locations().nodes()
        request = nodes.list(parent=self.path, pageSize=_PAGE)
        while request is not None:
            answer = request.execute()
            yield from answer.get("nodes", [])
            request = nodes.list_next(request, answer)


def _wait(look: Callable[[], dict[str, Any]], is_over: Callable[[dict[str, Any]], bool], name: str) -> dict[str, Any]:
    """Poll with ``look`` until the operation is over; Ray polls every 5 s, and at last continues as if it were over."""
    deadline, pause = time.monotonic() + _OPERATION_S, _FIRST_POLL_S
    while not is_over(found := look()):
        if time.monotonic() > deadline:
            raise NodeLaunchException("TIMEOUT", f"{name} is not over after {_OPERATION_S:.0f} s", None)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_POLL_S)
    return found


def only_not_found(error: Any) -> None:
    """Raise an error of Google's client, unless it says that there is no such thing."""
    if error.resp.status != _NOT_FOUND:
        raise error


_LOG: Final = logging.getLogger(__name__)
_SAME_WORK_S: Final = 5.0
"""Hosts whose last use differs by less ran the same work, for example a pod."""


def idle_seconds() -> dict[str, float]:
    """Return address of each living Ray node → its idle time in seconds.

    This works only in the process of Ray's first autoscaler, whose own client reads the head's GCS.

    Raises:
        RayError: GCS does not answer.
        FleetError: This is another process.
    """
    client = internal_kv_get_gcs_client()
    if client is None:
        raise FleetError("Only Ray's first autoscaler may ask which hosts work.")
    return idle_of(get_cluster_resource_state(client).node_states)


def idle_of(nodes: Iterable[NodeState]) -> dict[str, float]:
    """Return the same for nodes from the GCS, which lists dead ones for a long time."""
    idle: dict[str, float] = {}
    for node in nodes:
        if node.status != NodeStatus.DEAD:
            address = node.node_ip_address
            idle[address] = min(idle.get(address, math.inf), node.idle_duration_ms / 1000)
    return idle


def representative(
    addresses: Sequence[str], idle_s: Mapping[str, float], lost: Collection[str], idle_timeout_s: float
) -> str:
    """Return the address, of a slice's hosts in their order, by which the autoscaler judges the slice.

    - While any host is in use, or was within ``idle_timeout_s``: the host that was used last, so that the slice is not
      deleted or restarted during its work. Host 0, which alone has the resource of a whole slice, if both were used by
      the same work.
    - Else a lost host, so that the autoscaler restarts Ray on the slice, as it does when host 0 is lost.
    - Else host 0.

    Args:
        idle_s: Address of each living host → its idle time.
        lost: Addresses of hosts that Ray has lacked for too long.
    """
    first = addresses[0]
    used = [address for address in addresses if idle_s.get(address, math.inf) < idle_timeout_s]
    if not used:
        return next((address for address in addresses if address in lost), first)
    last = min(used, key=idle_s.__getitem__)
    return first if first in used and idle_s[first] <= idle_s[last] + _SAME_WORK_S else last


@dataclass(frozen=True)
class UsageSnapshot:
    """Use of all hosts at one time.

    Attributes:
        at: Time of the clock, in seconds.
        idle_s: Address of each living host → its idle time in seconds.
        slice_idle_s: Name of each slice → minimum of its living hosts; infinite if none lives.
    """

    at: float
    idle_s: Mapping[str, float]
    slice_idle_s: Mapping[str, float]


class Representatives:
    """Representative hosts of a cluster's slices, chosen in each round of the autoscaler.

    Args:
        ask: Returns ``idle_seconds``.
        idle_timeout_s: Idle time after which the autoscaler deletes a slice.
        lost_after_s: Time after which a host of a READY slice that is not in Ray counts as lost.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Mapping[str, float]],
        *,
        idle_timeout_s: float,
        lost_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._idle_timeout_s = idle_timeout_s
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._missing_since: dict[str, float] = {}
        self._chosen: dict[str, str] = {}
        self._last: UsageSnapshot | None = None

    def of(self, name: str) -> str | None:
        """Return the representative's address; None if none was chosen, as on the machine that runs ``ray up``."""
        return self._chosen.get(name)

    def choose(self, slices: Mapping[str, Sequence[str]]) -> bool:
        """Choose the representatives, and return whether the autoscaler may act in this round.

        It may not while GCS does not answer. Nor may it if a slice is used again that was idle long enough for its
        deletion: the autoscaler read the idle times just before, and may have missed that.

        Args:
            slices: Name of each slice that is READY → the addresses of its hosts, in their order.
        """
        try:
            idle_s = self._ask()
        except (RayError, FleetError, OSError) as error:
            _LOG.warning(
                "No node is created or deleted now: GCS did not return the idle times: %s",
                error,
            )
            return False
        slice_idle_s = {
            name: min((idle_s[address] for address in hosts if address in idle_s), default=math.inf)
            for name, hosts in slices.items()
        }
        now = UsageSnapshot(self._clock(), idle_s, slice_idle_s)
        before, self._last = self._last, now
        lost = self._lost(now, slices)
        self._chosen = {
            name: representative(hosts, idle_s, lost, self._idle_timeout_s) for name, hosts in slices.items() if hosts
        }
        if before is not None and (again := newly_used_slices(before, now, self._idle_timeout_s)):
            _LOG.info(
                "No node is created or deleted now: slices %s are in use again.",
                ", ".join(again),
            )
            return False
        return True

    def _lost(self, now: UsageSnapshot, slices: Mapping[str, Sequence[str]]) -> set[str]:
        missing = {address for hosts in slices.values() for address in hosts} - now.idle_s.keys()
        self._missing_since = {address: self._missing_since.get(address, now.at) for address in missing}
        return {name for name, since in self._missing_since.items() if now.at - since >= self._lost_after_s}


def newly_used_slices(before: UsageSnapshot, now: UsageSnapshot, idle_timeout_s: float) -> list[str]:
    """Return the slices used since ``before`` that would otherwise be idle for ``idle_timeout_s`` by now."""
    passed_s = now.at - before.at
    return [
        name
        for name, idle_s in now.slice_idle_s.items()
        if idle_s < passed_s and idle_timeout_s <= before.slice_idle_s.get(name, 0.0) + passed_s < math.inf
    ]
