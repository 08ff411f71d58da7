"""Corrections of Ray's virtual machines and slices, and the representative host of each slice.

Lists have all pages, and a node that vanishes meanwhile is gone. A slice that Google repairs is not dead: Ray would
make another one, and then have both. Manual slices are not the autoscaler's.

Ray's autoscaler has one line for a slice, with its last use and whether Ray has it, and finds the line by the address
that the provider gives for the slice. Ray's own provider gives that of host 0, so that a slice seems idle or healthy
whenever host 0 does. Here it is the address of the host whose use or loss decides about the whole slice.
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
        """Google takes all labels at once, and Ray gives it those of its last list: what others wrote since goes."""
        return dict(super().set_labels(self.get_instance(node["name"]), labels, wait_for_operation))

    def delete_dead(self, node_type: str) -> None:
        """Delete the workers of this type that Google has taken: they use quota until then.

        A slice of a queued resource is left to the user who requested that.
        """
        dead = {
            TAG_RAY_CLUSTER_NAME: self.cluster_name,
            TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
            TAG_RAY_USER_NODE_TYPE: node_type,
        }
        for fields in self._all():
            is_ours = dead.items() <= fields.get("labels", {}).items()
            if is_ours and fields.get("state") in _DEAD and not fields.get("queuedResource"):
                try:
                    self.delete_instance(fields["name"], wait_for_operation=False)
                except HttpError as error:
                    only_not_found(error)

    def _all(self) -> Iterator[dict[str, Any]]:
        """Every slice of the zone, over all pages."""
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
_TOGETHER_S: Final = 5.0
"""Hosts that were used within so short a time were used by the same work, as those of a pod."""


def idle_seconds() -> dict[str, float]:
    """Address of each living Ray node → for how many seconds nothing has used it.

    Only for the process of Ray's first autoscaler, whose own client asks the head's GCS.

    Raises:
        RayError: GCS does not answer.
        FleetError: This is another process.
    """
    client = internal_kv_get_gcs_client()
    if client is None:
        raise FleetError("Only Ray's first autoscaler may ask which hosts work.")
    return idle_of(get_cluster_resource_state(client).node_states)


def idle_of(nodes: Iterable[NodeState]) -> dict[str, float]:
    """The same, of the nodes as GCS describes them, among which dead ones stay for long."""
    idle: dict[str, float] = {}
    for node in nodes:
        if node.status != NodeStatus.DEAD:
            address = node.node_ip_address
            idle[address] = min(idle.get(address, math.inf), node.idle_duration_ms / 1000)
    return idle


def representative(
    addresses: Sequence[str], idle_s: Mapping[str, float], lost: Collection[str], idle_timeout_s: float
) -> str:
    """The address, of a slice's hosts in their order, by which the autoscaler is to judge the slice.

    - While any host is in use, or was within ``idle_timeout_s``: the one that was used last, so that the slice is not
      deleted or restarted under it. Host 0, which alone has the resource of a whole slice, if it was used with it.
    - Else a host that is lost, so that the autoscaler restarts Ray on the slice as it does when host 0 is.
    - Else host 0.

    Args:
        idle_s: Address of each living host → for how long it is unused.
        lost: Addresses of hosts that Ray has not had for too long.
    """
    first = addresses[0]
    used = [address for address in addresses if idle_s.get(address, math.inf) < idle_timeout_s]
    if not used:
        return next((address for address in addresses if address in lost), first)
    last = min(used, key=idle_s.__getitem__)
    return first if first in used and idle_s[first] <= idle_s[last] + _TOGETHER_S else last


@dataclass(frozen=True)
class UsageSnapshot:
    """What was seen at a time.

    Attributes:
        at: Seconds of the clock.
        idle_s: Address of each living host → for how many seconds it is unused.
        slice_idle_s: Name of each slice → for how many all of its living hosts are; infinite if none lives.
    """

    at: float
    idle_s: Mapping[str, float]
    slice_idle_s: Mapping[str, float]


class Representatives:
    """The representatives of a cluster's slices, chosen anew in each round of the autoscaler.

    Args:
        ask: For ``idle_seconds``.
        idle_timeout_s: After how long without use the autoscaler deletes a slice.
        lost_after_s: For how long Ray may not have a host of a slice that is READY, until it counts as lost.
        clock: Seconds that only grow.
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
        """Look at all hosts, and choose; whether the autoscaler may delete something now.

        It may not while GCS does not answer. Nor in a round in which a slice was taken into use that was idle for so
        long that it may be deleted: the autoscaler has read just before this who is idle, and may not have seen that.

        Args:
            slices: Name of each slice that is READY → the addresses of its hosts, in their order.
        """
        try:
            idle_s = self._ask()
        except (RayError, FleetError, OSError) as error:
            _LOG.warning("Nothing is deleted or made now, since GCS does not say which hosts work: %s", error)
            return False
        look = UsageSnapshot(self._clock(), idle_s, {name: _least(hosts, idle_s) for name, hosts in slices.items()})
        before, self._last = self._last, look
        lost = self._lost(look, slices)
        self._chosen = {
            name: representative(hosts, idle_s, lost, self._idle_timeout_s) for name, hosts in slices.items() if hosts
        }
        if before is not None and (woken := newly_used_slices(before, look, self._idle_timeout_s)):
            _LOG.info("Nothing is deleted or made now, since %s was just taken into use.", ", ".join(woken))
            return False
        return True

    def _lost(self, look: UsageSnapshot, slices: Mapping[str, Sequence[str]]) -> set[str]:
        missing = {address for hosts in slices.values() for address in hosts} - look.idle_s.keys()
        self._missing_since = {address: self._missing_since.get(address, look.at) for address in missing}
        return {name for name, since in self._missing_since.items() if look.at - since >= self._lost_after_s}


def newly_used_slices(before: UsageSnapshot, now: UsageSnapshot, idle_timeout_s: float) -> list[str]:
    """Slices that were taken into use since ``before``, and would be idle for ``idle_timeout_s`` by now otherwise."""
    passed_s = now.at - before.at
    return [
        name
        for name, idle_s in now.slice_idle_s.items()
        if idle_s < passed_s and idle_timeout_s <= before.slice_idle_s.get(name, 0.0) + passed_s < math.inf
    ]


def _least(hosts: Sequence[str], idle_s: Mapping[str, float]) -> float:
    return min((idle_s[address] for address in hosts if address in idle_s), default=math.inf)
