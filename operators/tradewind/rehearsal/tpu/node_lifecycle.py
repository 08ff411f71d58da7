"""Lifecycles of nodes and queued resources of the simulated Cloud TPU, each in its own thread.

Only the thread that holds a node's ``life`` starts and stops its hosts, so no host outlives its node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.cloud.tpu_v2 import types
from google.longrunning import operations_pb2  # type: ignore[import-untyped]

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.rehearsal.tpu.hosts import HostsError, SliceHosts, SliceMetadata
from tradewind.rehearsal.tpu.requests import RefusedCallError, node_ids
from tradewind.rehearsal.tpu.state import Initiator, NodeEntry, NodeState, QueueState, TpuState

_HEALTHY: Final[Any] = types.Node.Health.HEALTHY
_RUNTIME_PORT: Final = 8470
_JOIN_S: Final = 90.0


class NodeLifecycle:
    """The lifecycles of all nodes and queued resources of one project and zone."""

    def __init__(self, state: TpuState, hosts: SliceHosts) -> None:
        self._state = state
        self._hosts = hosts
        self._threads: list[threading.Thread] = []

    def begin(self, life: Callable[..., None], *about: Any) -> None:
        """Run one of the lifecycle methods below in its own thread."""
        thread = threading.Thread(target=life, args=about, daemon=True, name=f"tpu-{life.__name__}")
        self._threads = [known for known in self._threads if known.is_alive()] + [thread]
        thread.start()

    def end_all(self) -> None:
        """Stop all lifecycles and hosts."""
        with self._state.changed:
            self._state.is_closed = True
            self._state.changed.notify_all()
            entries = list(self._state.nodes.values())
        for thread in self._threads:
            thread.join(_JOIN_S)
        for entry in entries:
            with entry.life:
                self._hosts.kill(entry.id)

    # ---- nodes

    def create(self, entry: NodeEntry, operation: operations_pb2.Operation) -> None:
        """Create a single node, or fail the operation for lack of capacity."""
        state = self._state
        with state.changed:
            self._wait(lambda: entry.node.state != NodeState.CREATING, state.supply.slow_s)
            if entry.node.state == NodeState.CREATING and state.fails_undone(operation):
                state.drop(entry)
                return
            if entry.node.state == NodeState.CREATING and not state.take_chips([entry]):
                state.drop(entry)
                state.fail(operation, self._stock_out(entry.shape))
                return
        problem = self._bring_up(entry, NodeState.CREATING)
        with state.changed:
            if problem or entry.node.state != NodeState.READY:
                gone = RefusedCallError("ABORTED", f"Node {entry.id} was deleted while it was being created")
                state.fail(operation, problem or gone)
            else:
                state.finish(operation, entry.node)

    def delete(self, entry: NodeEntry, operation: operations_pb2.Operation) -> None:
        """Delete a node; the queued resource that created it is suspended."""
        self._end(entry)
        with self._state.changed:
            self._state.finish(operation, None)
            owner = self._state.queued.get(entry.node.queued_resource)
            if owner is not None and owner.state.state in (QueueState.ACTIVE, QueueState.PROVISIONING):
                self._state.set_queue_state(owner, QueueState.SUSPENDED, Initiator.USER)

    def stop(self, entry: NodeEntry, operation: operations_pb2.Operation) -> None:
        """Shut down a node's host; the node stays."""
        with entry.life:
            self._hosts.kill(entry.id)
            with self._state.changed:
                self._state.set_state(entry, NodeState.STOPPED)
                self._state.finish(operation, entry.node)

    def start(self, entry: NodeEntry, operation: operations_pb2.Operation) -> None:
        """Restart a stopped node, if there is capacity."""
        state = self._state
        with state.changed:
            if not state.take_chips([entry]):
                state.set_state(entry, NodeState.STOPPED)
                state.fail(operation, self._stock_out(entry.shape))
                return
        problem = self._bring_up(entry, NodeState.STARTING)
        with state.changed:
            if problem:
                state.fail(operation, problem)
            else:
                state.finish(operation, entry.node)

    def preempt(self, entry: NodeEntry, notice_s: float) -> None:
        """Notify the hosts of a preemption, and kill them after ``notice_s``."""
        state = self._state
        self._hosts.notice(entry.id)
        with state.changed:
            self._wait(lambda: entry.node.state != NodeState.READY, notice_s)
            owner = state.queued.get(entry.node.queued_resource)
            if owner is not None and owner.state.state == QueueState.ACTIVE:
                state.set_queue_state(owner, QueueState.SUSPENDING)
        with entry.life:
            with state.changed:
                if entry.node.state != NodeState.READY or state.is_closed:
                    return
            self._hosts.kill(entry.id)
            with state.changed:
                if entry.node.state == NodeState.READY:
                    state.set_state(entry, NodeState.PREEMPTED)
        with state.changed:
            siblings = state.nodes_of(entry.node.queued_resource) if owner is not None else []
            if owner is not None and all(sibling.node.state == NodeState.PREEMPTED for sibling in siblings):
                state.set_queue_state(owner, QueueState.SUSPENDED)

    def repair(self, entry: NodeEntry, repair_s: float) -> None:
        """Kill the hosts, keep the node REPAIRING for a while, and restart it with new hosts."""
        with entry.life:
            self._hosts.kill(entry.id)
        with self._state.changed:
            self._wait(lambda: entry.node.state != NodeState.REPAIRING, repair_s)
        self._bring_up(entry, NodeState.REPAIRING)

    # ---- queued resources

    def provision(self, queued: types.QueuedResource, shapes: Sequence[SliceType]) -> None:
        """Let a queued resource wait for capacity for all its nodes, and then create them."""
        state = self._state

        def is_waiting() -> bool:
            return queued.state.state in (QueueState.ACCEPTED, QueueState.WAITING_FOR_RESOURCES)

        with state.changed:
            self._wait(lambda: not is_waiting(), state.supply.slow_s)
            while is_waiting() and not state.is_closed and not state.has_room(shapes):
                if queued.state.state == QueueState.ACCEPTED:
                    state.set_queue_state(queued, QueueState.WAITING_FOR_RESOURCES)
                state.changed.wait()
            if state.is_closed or not is_waiting():
                return
            state.set_queue_state(queued, QueueState.PROVISIONING)
            nodes = self._add_nodes(queued, shapes)
        starts = [threading.Thread(target=self._bring_up, args=(entry, NodeState.CREATING)) for entry in nodes]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        with state.changed:
            if queued.state.state == QueueState.PROVISIONING:
                ready = nodes and all(entry.node.state == NodeState.READY for entry in nodes)
                state.set_queue_state(queued, QueueState.ACTIVE if ready else QueueState.FAILED)

    def delete_queued(self, queued: types.QueuedResource, operation: operations_pb2.Operation) -> None:
        """Delete a queued resource with all nodes that it created."""
        with self._state.changed:
            nodes = self._state.nodes_of(queued.name)
        for entry in nodes:
            self._end(entry)
        with self._state.changed:
            self._state.queued.pop(queued.name, None)
            self._state.finish(operation, None)

    # ---- shared helpers

    def _wait(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait this long, or until the wait is pointless; the caller holds ``changed``."""
        self._state.changed.wait_for(lambda: self._state.is_closed or is_over(), timeout=seconds)

    def _bring_up(self, entry: NodeEntry, expected: types.Node.State) -> RefusedCallError | None:
        """Start the hosts of a node still in the state ``expected``; return the error if they did not start."""
        state = self._state
        with entry.life:
            with state.changed:
                if entry.node.state != expected or state.is_closed:
                    return None
                metadata = _facts(entry)
            try:
                addresses = self._hosts.start(metadata)
            except HostsError as error:
                return self._give_up(entry, expected, str(error))
            with state.changed:
                entry.node.network_endpoints = [
                    types.NetworkEndpoint(ip_address=address, port=_RUNTIME_PORT) for address in addresses
                ]
                if entry.node.state == expected:
                    entry.node.health = _HEALTHY
                    state.set_state(entry, NodeState.READY)
        return None

    def _give_up(self, entry: NodeEntry, expected: types.Node.State, why: str) -> RefusedCallError:
        with self._state.changed:
            entry.node.health_description = why
            if entry.node.state == expected == NodeState.CREATING:
                self._state.drop(entry)
            elif entry.node.state == expected:
                self._state.set_state(entry, NodeState.UNKNOWN)
        return RefusedCallError("INTERNAL", f"Node {entry.id} did not start: {why}")

    def _end(self, entry: NodeEntry) -> None:
        """Kill a node's hosts and remove it."""
        with entry.life:
            self._hosts.kill(entry.id)
            with self._state.changed:
                if entry.node.name in self._state.nodes:
                    self._state.drop(entry)

    def _add_nodes(self, queued: types.QueuedResource, shapes: Sequence[SliceType]) -> list[NodeEntry]:
        state = self._state
        nodes: list[NodeEntry] = []
        rest = iter(shapes)
        try:
            for spec in queued.tpu.node_spec:
                for node_id in node_ids(spec):
                    name = state.place.name("nodes", node_id)
                    nodes.append(state.add_node(name, spec.node, next(rest), queued.name))
        except RefusedCallError:  # a node of that name was created meanwhile
            for entry in nodes:
                state.drop(entry)
            return []
        for entry in nodes:
            entry.node.multislice_node = len(nodes) > 1
        state.take_chips(nodes)
        return nodes

    def _stock_out(self, shape: SliceType) -> RefusedCallError:
        return RefusedCallError(
            "RESOURCE_EXHAUSTED",
            f'There is no more capacity in the zone "{self._state.place.zone}"; you can try in another zone where Cloud'
            f" TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [{shape.name}]",
        )


def _facts(entry: NodeEntry) -> SliceMetadata:
    node = entry.node
    scheduling = node.scheduling_config
    return SliceMetadata(
        entry.id, entry.shape, dict(node.labels), dict(node.metadata), scheduling.preemptible or scheduling.spot
    )
