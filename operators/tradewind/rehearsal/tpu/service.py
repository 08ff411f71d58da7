"""Calls of the Cloud TPU API v2, one method each, for every transport: checked, logged, done at once.

Slow work (``node_lifecycle``) continues after the answer, and an operation reports its progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from google.cloud.tpu_v2 import types
from google.longrunning import operations_pb2  # type: ignore[import-untyped]

from tradewind.rehearsal.tpu.hosts import SliceHosts
from tradewind.rehearsal.tpu.node_lifecycle import NodeLifecycle
from tradewind.rehearsal.tpu.requests import (
    ProjectZone,
    RefusedCallError,
    already_exists,
    code_of,
    invalid,
    node_ids,
    not_found,
    shape_of,
)
from tradewind.rehearsal.tpu.state import Initiator, NodeState, OperationFault, QueueState, TpuState, copied, page_of

REQUESTS: Final[dict[str, Any]] = {
    "ListNodes": types.ListNodesRequest,
    "GetNode": types.GetNodeRequest,
    "GetGuestAttributes": types.GetGuestAttributesRequest,
    "CreateNode": types.CreateNodeRequest,
    "DeleteNode": types.DeleteNodeRequest,
    "StopNode": types.StopNodeRequest,
    "StartNode": types.StartNodeRequest,
    "UpdateNode": types.UpdateNodeRequest,
    "ListQueuedResources": types.ListQueuedResourcesRequest,
    "GetQueuedResource": types.GetQueuedResourceRequest,
    "CreateQueuedResource": types.CreateQueuedResourceRequest,
    "DeleteQueuedResource": types.DeleteQueuedResourceRequest,
}
"""The served calls of ``google.cloud.tpu.v2.Tpu``, with their request types."""

WRITES: Final = frozenset(name for name in REQUESTS if not name.startswith(("Get", "List")))
"""Calls that change state."""

GET_OPERATION: Final = "GetOperation"
_UPDATABLE: Final = ("description", "labels", "metadata", "tags")
_REMOVABLE: Final = frozenset(
    {QueueState.ACCEPTED, QueueState.WAITING_FOR_RESOURCES, QueueState.SUSPENDED, QueueState.FAILED}
)


@dataclass(frozen=True)
class LoggedCall:
    """One call and its answer: OK, or the name of an error."""

    at: float
    transport: str
    call: str
    about: str
    answer: str


class TpuService:
    """One project in one zone; ``hosts`` starts and stops its nodes' hosts."""

    def __init__(self, hosts: SliceHosts, place: ProjectZone) -> None:
        self.state = TpuState(place)
        self.lives = NodeLifecycle(self.state, hosts)
        self._hosts = hosts
        self._place = place
        self._log: list[LoggedCall] = []
        self._calls: dict[str, Callable[[Any], Any]] = {
            "ListNodes": self._list_nodes,
            "GetNode": self._get_node,
            "GetGuestAttributes": self._get_guest_attributes,
            "CreateNode": self._create_node,
            "DeleteNode": self._delete_node,
            "StopNode": self._stop_node,
            "StartNode": self._start_node,
            "UpdateNode": self._update_node,
            "ListQueuedResources": self._list_queued,
            "GetQueuedResource": self._get_queued,
            "CreateQueuedResource": self._create_queued,
            "DeleteQueuedResource": self._delete_queued,
            GET_OPERATION: self._get_operation,
        }

    def call(self, name: str, request: Any, transport: str) -> Any:
        """Answer one call.

        Raises:
            RefusedCallError: The call is refused.
        """
        with self.state.changed:
            answer = "OK"
            try:
                if (error := self.state.faults.refusal_of(name)) is not None:
                    raise error
                return self._calls[name](request)
            except RefusedCallError as error:
                answer = error.code
                raise
            finally:
                self._log.append(LoggedCall(time.time(), transport, name, _about(request), answer))

    def fail_next(self, count: int, status: int) -> None:
        """Answer ``count`` calls with this HTTP status, or its gRPC counterpart, without effect."""
        error = RefusedCallError(code_of(status), "The service is flaky at present: try again", status)
        with self.state.changed:
            self.state.faults.refuse(count, error, call="")

    def refuse_next(self, count: int, code: str, message: str, call: str = "") -> None:
        """Refuse ``count`` calls of this name, or of any, with this code and message, without effect."""
        with self.state.changed:
            self.state.faults.refuse(count, RefusedCallError(code, message), call)

    def fail_operations(self, count: int, verb: str, code: str, message: str, *, is_done: bool = False) -> None:
        """Accept ``count`` calls of ``verb`` (``create`` or ``delete``), and fail their operations.

        With ``is_done``, the operations take effect all the same.
        """
        fault = OperationFault(count, verb, RefusedCallError(code, message), is_done)
        with self.state.changed:
            self.state.faults.fail_operations(fault)

    def log(self) -> list[dict[str, Any]]:
        """Return every call, in order."""
        with self.state.changed:
            return [asdict(request) for request in self._log]

    # ---- nodes

    def _list_nodes(self, request: types.ListNodesRequest) -> types.ListNodesResponse:
        self._place.check(request.parent, may_be_any=True)
        page, token = page_of(self.state.nodes, request.page_size, request.page_token)
        return types.ListNodesResponse(nodes=[types.Node(entry.node) for entry in page], next_page_token=token)

    def _get_node(self, request: types.GetNodeRequest) -> types.Node:
        self._place.check(request.name)
        return types.Node(self.state.node(request.name).node)

    def _get_guest_attributes(self, request: types.GetGuestAttributesRequest) -> types.GetGuestAttributesResponse:
        """Return the hosts' guest attributes: the requested ones, in that order, or all."""
        self._place.check(request.name)
        entry = self.state.node(request.name)
        keys = self._hosts.host_keys(entry.id)
        workers = [int(worker) for worker in request.worker_ids] or range(len(entry.node.network_endpoints))
        attributes = []
        for worker in workers:
            entries = [
                types.GuestAttributesEntry(namespace="hostkeys", key=kind, value=key)
                for kind, key in (keys[worker] if worker < len(keys) else {}).items()
            ]
            value = types.GuestAttributesValue(items=entries)
            attributes.append(types.GuestAttributes(query_path=request.query_path, query_value=value))
        return types.GetGuestAttributesResponse(guest_attributes=attributes)

    def _create_node(self, request: types.CreateNodeRequest) -> operations_pb2.Operation:
        self._place.check(request.parent)
        name, shape = self._place.name("nodes", request.node_id), shape_of(request.node)
        if name not in self.state.nodes:
            self.state.check_quota([shape])
        entry = self.state.add_node(name, request.node, shape)
        operation = self.state.begin("create", name)
        self.lives.begin(self.lives.create, entry, operation)
        return copied(operation)

    def _delete_node(self, request: types.DeleteNodeRequest) -> operations_pb2.Operation:
        self._place.check(request.name)
        entry = self.state.node(request.name)
        if entry.node.state == NodeState.DELETING:
            raise RefusedCallError("FAILED_PRECONDITION", f"Node {entry.id} is being deleted already")
        operation = self.state.begin("delete", request.name)
        if self.state.fails_undone(operation):
            return copied(operation)
        self.state.set_state(entry, NodeState.DELETING)
        self.lives.begin(self.lives.delete, entry, operation)
        return copied(operation)

    def _stop_node(self, request: types.StopNodeRequest) -> operations_pb2.Operation:
        return self._move(request.name, "stop", NodeState.READY, NodeState.STOPPING)

    def _start_node(self, request: types.StartNodeRequest) -> operations_pb2.Operation:
        return self._move(request.name, "start", NodeState.STOPPED, NodeState.STARTING)

    def _move(
        self, name: str, verb: str, expected: types.Node.State, moving: types.Node.State
    ) -> operations_pb2.Operation:
        self._place.check(name)
        entry = self.state.node(name)
        if entry.shape.is_multi_host:
            raise RefusedCallError("FAILED_PRECONDITION", f"{verb} is not supported for slices of several hosts")
        if entry.node.state != expected:
            state = entry.node.state.name
            raise RefusedCallError("FAILED_PRECONDITION", f"Node {entry.id} is {state}: cannot {verb} it")
        self.state.set_state(entry, moving)
        operation = self.state.begin(verb, name)
        self.lives.begin(getattr(self.lives, verb), entry, operation)
        return copied(operation)

    def _update_node(self, request: types.UpdateNodeRequest) -> operations_pb2.Operation:
        self._place.check(request.node.name)
        entry = self.state.node(request.node.name)
        paths = list(request.update_mask.paths)
        if not paths or set(paths) - set(_UPDATABLE):
            raise invalid(f"update_mask may name {', '.join(_UPDATABLE)}, and must name one")
        for path in paths:
            setattr(entry.node, path, getattr(request.node, path))
        operation = self.state.begin("update", entry.node.name)
        self.state.finish(operation, entry.node)
        return copied(operation)

    # ---- queued resources

    def _list_queued(self, request: types.ListQueuedResourcesRequest) -> types.ListQueuedResourcesResponse:
        self._place.check(request.parent, may_be_any=True)
        page, token = page_of(self.state.queued, request.page_size, request.page_token)
        copies = [types.QueuedResource(queued) for queued in page]
        return types.ListQueuedResourcesResponse(queued_resources=copies, next_page_token=token)

    def _get_queued(self, request: types.GetQueuedResourceRequest) -> types.QueuedResource:
        self._place.check(request.name)
        return types.QueuedResource(self.state.queued_resource(request.name))

    def _create_queued(self, request: types.CreateQueuedResourceRequest) -> operations_pb2.Operation:
        self._place.check(request.parent)
        name = self._place.name("queuedResources", request.queued_resource_id)
        if name in self.state.queued:
            raise already_exists(name)
        specs = request.queued_resource.tpu.node_spec
        if not specs:
            raise invalid("queued_resource.tpu.node_spec is required")
        wanted = [(node_id, shape_of(spec.node)) for spec in specs for node_id in node_ids(spec)]
        for node_id, _ in wanted:
            if (node := self._place.name("nodes", node_id)) in self.state.nodes:
                raise already_exists(node)
        shapes = [shape for _, shape in wanted]
        self.state.check_quota(shapes)
        operation = self.state.begin("create", name)
        if self.state.fails_undone(operation):
            return copied(operation)
        queued = types.QueuedResource(request.queued_resource)
        queued.name = name
        queued.create_time = datetime.now(UTC)  # type: ignore[assignment]  # the client turns it into a timestamp
        self.state.queued[name] = queued
        self.state.set_queue_state(queued, QueueState.ACCEPTED, Initiator.USER)
        self.state.finish(operation, queued)  # acceptance only; it becomes ACTIVE later
        self.lives.begin(self.lives.provision, queued, shapes)
        return copied(operation)

    def _delete_queued(self, request: types.DeleteQueuedResourceRequest) -> operations_pb2.Operation:
        self._place.check(request.name)
        queued = self.state.queued_resource(request.name)
        if queued.state.state == QueueState.DELETING:
            raise RefusedCallError("FAILED_PRECONDITION", f"Queued resource {queued.name} is being deleted already")
        if queued.state.state not in _REMOVABLE and not request.force:
            raise RefusedCallError(
                "FAILED_PRECONDITION",
                f"Queued resource {queued.name} is {queued.state.state.name}: delete it with force",
            )
        operation = self.state.begin("delete", request.name)
        if self.state.fails_undone(operation):
            return copied(operation)
        self.state.set_queue_state(queued, QueueState.DELETING, Initiator.USER)
        for entry in self.state.nodes_of(queued.name):
            self.state.set_state(entry, NodeState.DELETING)
        self.lives.begin(self.lives.delete_queued, queued, operation)
        return copied(operation)

    def _get_operation(self, request: operations_pb2.GetOperationRequest) -> operations_pb2.Operation:
        self._place.check(request.name)
        if request.name not in self.state.operations:
            raise not_found(request.name)
        return copied(self.state.operations[request.name])


def _about(request: Any) -> str:
    """Return the resource that a request names, or its project and zone."""
    for field, collection in (("node_id", "nodes"), ("queued_resource_id", "queuedResources")):
        if hasattr(request, field):
            return f"{request.parent}/{collection}/{getattr(request, field)}"
    about = request.node if hasattr(request, "node") else request
    return str(about.name if hasattr(about, "name") else about.parent)
