"""State of the simulated Cloud TPU: nodes, queued resources, operations, supply and faults, behind one lock.

Every reader and writer holds ``changed``, and notifies it after a change that other threads may wait for.

Google reports errors in two places. A refused call changes nothing. An accepted operation can fail later; its effect
may have happened all the same, so its error proves nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from google.cloud.tpu_v2 import types
from google.longrunning import operations_pb2  # type: ignore[import-untyped]
from google.protobuf import empty_pb2
from google.rpc import status_pb2  # type: ignore[import-untyped]

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.rehearsal.tpu.requests import (
    ProjectZone,
    RefusedCallError,
    already_exists,
    cidr_block,
    invalid,
    not_found,
)

# Any, because the type checker takes their members for numbers.
NodeState: Final[Any] = types.Node.State
QueueState: Final[Any] = types.QueuedResourceState.State
Initiator: Final[Any] = types.QueuedResourceState.StateInitiator

_WITHOUT_CHIPS: Final = frozenset({NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.STOPPED})
_API_VERSION: Final[Any] = types.Node.ApiVersion.V2
_CONFIG_TYPES: Final = {"v4": "V4", "v5litepod": "V5LITE_POD", "v5p": "V5P", "v6e": "V6E"}
_DEFAULT_PAGE: Final = 100
_MAX_PAGE: Final = 1000
Entry = TypeVar("Entry")


@dataclass
class _Refusals:
    """Refuse the next ``count`` calls of this name, or of any."""

    count: int
    call: str
    error: RefusedCallError


@dataclass
class OperationFault:
    """Fail the next ``count`` operations of this verb; with ``is_done``, they still take effect."""

    count: int
    verb: str
    error: RefusedCallError
    is_done: bool


class TpuFaults:
    """The pending faults, in the order of their injection."""

    def __init__(self) -> None:
        self._refusals: list[_Refusals] = []
        self._operations: list[OperationFault] = []

    def refuse(self, count: int, error: RefusedCallError, call: str) -> None:
        """Refuse ``count`` calls of a name, or of any without one. A count of 0 ends it."""
        self._refusals = [refusals for refusals in self._refusals if refusals.call != call] + [
            _Refusals(count, call, error)
        ]

    def fail_operations(self, fault: OperationFault) -> None:
        """Fail ``count`` operations of one verb. A count of 0 ends it."""
        self._operations = [other for other in self._operations if other.verb != fault.verb] + [fault]

    def refusal_of(self, call: str) -> RefusedCallError | None:
        """Return the pending error for this call, if any."""
        for refusals in self._refusals:
            if refusals.count > 0 and refusals.call in ("", call):
                refusals.count -= 1
                return refusals.error
        return None

    def of_operation(self, verb: str) -> OperationFault | None:
        """Return the pending fault for an operation that starts now, if any."""
        for fault in self._operations:
            if fault.count > 0 and fault.verb == verb:
                fault.count -= 1
                return fault
        return None


@dataclass
class NodeEntry:
    """A node, its slice type, and whether it holds chips."""

    node: types.Node
    shape: SliceType
    has_chips: bool = False
    life: threading.RLock = field(default_factory=threading.RLock)
    """Held by the thread that starts or stops its hosts; acquired before ``changed``, never after."""

    @property
    def id(self) -> str:
        """Last part of its name, which is also the slice's name in Ray."""
        return str(self.node.name).rpartition("/")[2]


@dataclass
class Supply:
    """Capacity of the zone.

    Attributes:
        is_out: The zone has no capacity at present.
        slow_s: Delay of a creation before anything starts.
        capacity: Slice type -> how many slices of it can exist at once. A preempted one does not count.
        quota: Slice type -> how many nodes of it the project may have. A preempted one counts until its deletion.
    """

    is_out: bool = False
    slow_s: float = 0.0
    capacity: dict[str, int] = field(default_factory=dict)
    quota: dict[str, int] = field(default_factory=dict)


class TpuState:
    """State of one project and zone."""

    def __init__(self, place: ProjectZone) -> None:
        self.place = place
        self.changed = threading.Condition(threading.RLock())
        self.supply = Supply()
        self.nodes: dict[str, NodeEntry] = {}
        self.queued: dict[str, types.QueuedResource] = {}
        self.operations: dict[str, operations_pb2.Operation] = {}
        self.faults = TpuFaults()
        self.is_closed = False
        self._doomed: dict[str, OperationFault] = {}
        self._ids = itertools.count(int(time.time() * 1000))
        self._blocks = itertools.count()

    # ---- nodes

    def add_node(self, name: str, requested: types.Node, shape: SliceType, queued_resource: str = "") -> NodeEntry:
        """Add a node in creation."""
        if name in self.nodes:
            raise already_exists(name)
        node: Any = types.Node(requested)
        node.name, node.id, node.state = name, next(self._ids), NodeState.CREATING
        node.accelerator_type, node.create_time = shape.name, datetime.now(UTC)
        node.accelerator_config.type_ = getattr(types.AcceleratorConfig.Type, _CONFIG_TYPES[shape.generation])
        node.accelerator_config.topology = shape.topology or ""
        node.queued_resource = queued_resource
        self._fill_in(node)
        self.nodes[name] = NodeEntry(node, shape)
        return self.nodes[name]

    def _fill_in(self, node: types.Node) -> None:
        """Fill in Google's default values, which it reports as if requested."""
        number, project = next(self._blocks), self.place.project
        node.cidr_block = cidr_block(number)
        node.api_version = _API_VERSION
        node.network_config.network = node.network_config.network or f"projects/{project}/global/networks/default"
        if not node.network_config.subnetwork:
            region = self.place.zone.rpartition("-")[0]
            node.network_config.subnetwork = f"projects/{project}/regions/{region}/subnetworks/default"
        if not node.service_account.email:
            scopes = ["https://www.googleapis.com/auth/cloud-platform"]
            node.service_account = types.ServiceAccount(email=f"compute@{project}.iam.example", scope=scopes)

    def node(self, name: str) -> NodeEntry:
        """Return the node of that full name."""
        if name not in self.nodes:
            raise not_found(name)
        return self.nodes[name]

    def nodes_of(self, queued_resource: str) -> list[NodeEntry]:
        """Return the nodes that a queued resource created."""
        return [entry for entry in self.nodes.values() if entry.node.queued_resource == queued_resource]

    def set_state(self, entry: NodeEntry, state: types.Node.State) -> None:
        """Change a node's state; a state without chips releases them."""
        entry.node.state = state
        if state in _WITHOUT_CHIPS:
            entry.has_chips = False
        self.changed.notify_all()

    def drop(self, entry: NodeEntry) -> None:
        """Remove the node."""
        del self.nodes[entry.node.name]
        self.changed.notify_all()

    def check_quota(self, shapes: Iterable[SliceType]) -> None:
        """Refuse more nodes than the project's quota."""
        new = [shape.name for shape in shapes]
        for name in sorted(set(new)):
            limit = self.supply.quota.get(name)
            if limit is not None and new.count(name) + self._count(name, only_with_chips=False) > limit:
                raise RefusedCallError(
                    "RESOURCE_EXHAUSTED",
                    f"Quota limit 'TPU {name} per project per zone' has been exceeded. Limit: {limit} in zone "
                    f"{self.place.zone}.",
                )

    def take_chips(self, nodes: Sequence[NodeEntry]) -> bool:
        """Allocate chips to all these nodes, or to none if there are too few."""
        names = [entry.shape.name for entry in nodes]
        if self.supply.is_out or any(names.count(name) > self._free(name) for name in set(names)):
            return False
        for entry in nodes:
            entry.has_chips = True
        return True

    def has_room(self, shapes: Sequence[SliceType]) -> bool:
        """Whether ``take_chips`` would find enough for these."""
        names = [shape.name for shape in shapes]
        return not self.supply.is_out and all(names.count(name) <= self._free(name) for name in set(names))

    def _free(self, slice_type: str) -> float:
        capacity = self.supply.capacity.get(slice_type)
        return float("inf") if capacity is None else capacity - self._count(slice_type, only_with_chips=True)

    def _count(self, slice_type: str, only_with_chips: bool) -> int:
        same = (entry for entry in self.nodes.values() if entry.shape.name == slice_type)
        return sum(1 for entry in same if entry.has_chips or not only_with_chips)

    # ---- queued resources

    def queued_resource(self, name: str) -> types.QueuedResource:
        """Return the queued resource of that full name."""
        if name not in self.queued:
            raise not_found(name)
        return self.queued[name]

    def set_queue_state(
        self,
        queued: types.QueuedResource,
        state: types.QueuedResourceState.State,
        initiator: types.QueuedResourceState.StateInitiator = Initiator.SERVICE,
    ) -> None:
        """Change a queued resource's state."""
        queued.state = types.QueuedResourceState(state=state, state_initiator=initiator)
        self.changed.notify_all()

    # ---- operations

    def begin(self, verb: str, target: str) -> operations_pb2.Operation:
        """Create a running operation."""
        name = f"{self.place.path}/operations/operation-{next(self._ids)}-{uuid.uuid4().hex[:12]}"
        operation = operations_pb2.Operation(name=name)
        metadata = types.OperationMetadata(create_time=datetime.now(UTC), verb=verb, target=target, api_version="v2")
        operation.metadata.Pack(types.OperationMetadata.pb(metadata))
        self.operations[name] = operation
        if (fault := self.faults.of_operation(verb)) is not None:
            self._doomed[name] = fault
        return operation

    def fails_undone(self, operation: operations_pb2.Operation) -> bool:
        """Whether the operation must fail without effect; if so, mark it failed."""
        fault = self._doomed.get(operation.name)
        if fault is None or fault.is_done:
            return False
        self.fail(operation, fault.error)
        return True

    def finish(self, operation: operations_pb2.Operation, result: types.Node | types.QueuedResource | None) -> None:
        """Finish an operation with a result; ``None`` is Google's Empty. A pending fault fails it instead."""
        if (fault := self._doomed.get(operation.name)) is not None:
            self.fail(operation, fault.error)
            return
        operation.response.Pack(empty_pb2.Empty() if result is None else type(result).pb(result))
        self._end(operation)

    def fail(self, operation: operations_pb2.Operation, refusal: RefusedCallError) -> None:
        """Finish an operation with an error."""
        operation.error.CopyFrom(status_pb2.Status(code=refusal.number, message=refusal.message))
        self._end(operation)

    def _end(self, operation: operations_pb2.Operation) -> None:
        metadata = types.OperationMetadata.pb()()
        operation.metadata.Unpack(metadata)
        metadata.end_time.GetCurrentTime()
        operation.metadata.Pack(metadata)
        operation.done = True
        self.changed.notify_all()


def page_of(entries: Mapping[str, Entry], page_size: int, page_token: str) -> tuple[list[Entry], str]:
    """Return one page in the order of names, and the next page's token: the last name of this one."""
    if page_size < 0:
        raise invalid("page_size must not be negative")
    after = [name for name in sorted(entries) if name > page_token]
    page = after[: min(page_size or _DEFAULT_PAGE, _MAX_PAGE)]
    return [entries[name] for name in page], page[-1] if len(page) < len(after) else ""


def copied(operation: operations_pb2.Operation) -> Any:
    """Return the operation's current state."""
    copy = operations_pb2.Operation()
    copy.CopyFrom(operation)
    return copy
