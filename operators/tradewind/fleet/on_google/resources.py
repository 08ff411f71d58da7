"""Ray's lists of virtual machines and slices, mended: all pages of them, and what vanishes in between is gone.

To Ray, a slice that Google repairs is dead, so that it makes another one, and then has both. Slices that people added
are none of the autoscaler's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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

from tradewind.fleet.cloud.google_api import own_connection

_FIRST_POLL_S: Final = 0.25
_LONGEST_POLL_S: Final = 5.0
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
        """Have the workers of this type deleted that Google has taken: they go on using the quota until then.

        What a queued resource brought is left to whoever asked for that.
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
    """What ``look`` finds once it is over; Ray looks every five seconds, and goes on as if it were over at last."""
    deadline, pause = time.monotonic() + _OPERATION_S, _FIRST_POLL_S
    while not is_over(found := look()):
        if time.monotonic() > deadline:
            raise NodeLaunchException("TIMEOUT", f"{name} is not over after {_OPERATION_S:.0f} s", None)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_S)
    return found


def only_not_found(error: Any) -> None:
    """Raise an error of Google's client, unless it says that there is no such thing."""
    if error.resp.status != _NOT_FOUND:
        raise error
