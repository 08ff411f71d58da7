"""Slices that people add to a cluster, remove from it and cut: never one of the autoscaler's, never one in use.

What a cut makes is written down before anything is deleted, where the repair of slices reads it: if nobody goes on with
a cut that was interrupted, upkeep makes the new slices.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.errors import QuotaError, StockOutError, TpuConflictError
from tradewind.cloud_tpu.repair.records import RECORDS_FOLDER, Deletion, SliceRecords
from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode, is_name
from tradewind.cloud_tpu.slice_types import SliceType, slice_type
from tradewind.fleet.clusters import CLUSTER_LABEL, Capacity, FleetCluster
from tradewind.fleet.errors import FleetError, meant
from tradewind.fleet.lifecycle.zone import in_fleet_words
from tradewind.fleet.marker import ClusterMarker, MarkerHolding, MarkerLostError
from tradewind.fleet.workers.bodies import manual_body, resized_body
from tradewind.fleet.workers.slice_cut import SliceCut
from tradewind.fleet.workers.usage import check_unused
from tradewind.ray_jobs.nodes.nodes import NodeFacts

RESIZE: Final = "resize"
_LOOK_S: Final = 5.0
_SHOWN: Final = 8


class WrongSliceError(FleetError):
    """There is no such slice, or it is none that this can be done to."""


class SliceNotReadyError(FleetError):
    """A slice was asked for, and is not there yet; nothing is lost."""


@dataclass(frozen=True)
class ManualSlice:
    """A slice that people added, and the queued resource that brings it, if one does."""

    name: str
    node: TpuNode | None
    queue: QueuedTpu | None

    @property
    def state(self) -> str:
        """In Google's words."""
        if self.node is not None:
            return self.node.state
        return f"queued, {self.queue.state}" if self.queue is not None else "not there"

    @property
    def unit(self) -> TpuNode | QueuedTpu:
        """What is deleted and created as one."""
        unit = self.queue or self.node
        assert unit is not None, "one of them was found"
        return unit

    @property
    def hosts_as(self) -> str:
        """The name that its hosts have in Ray: that of the node, also where people call it by the queued resource's."""
        if self.node is not None:
            return self.node.name
        return self.queue.nodes[0] if self.queue is not None and self.queue.nodes else self.name

    @property
    def kind(self) -> SliceType:
        """Its type. Raises ``UnknownSliceTypeError``."""
        return slice_type(self.node.slice_type if self.node else self._spec["acceleratorType"])

    @property
    def capacity(self) -> Capacity:
        """What it stands on."""
        if self.unit.is_reserved:
            return Capacity.RESERVED
        return Capacity.PREEMPTIBLE if self.queue is None else Capacity.BEST_EFFORT

    @property
    def _spec(self) -> Mapping[str, Any]:
        specs: Sequence[Mapping[str, Any]] = self.unit.body["tpu"]["nodeSpec"]
        spec: Mapping[str, Any] = specs[0].get("node") or {}
        return spec


class ManualSlices:
    """The slices of one cluster that people add.

    Args:
        script: What hosts of slices of a type run when they boot.
        nodes: What Ray says of its nodes; None if the cluster has no head, so that nothing runs.
        tell: Given a sentence for each thing that is done.
        clock: Seconds that only grow.

    Raises (every method):
        CloudError: Google Cloud refuses, or does not answer.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        api: TpuApi,
        records: SliceRecords,
        *,
        script: Callable[[SliceType], str],
        nodes: Callable[[], Iterable[NodeFacts] | None],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._records = records
        self._script = script
        self._nodes = nodes
        self._tell = tell
        self._clock = clock

    def check_kind(self, name: str) -> SliceType:
        """The slice type called ``name``.

        Raises:
            WrongSliceError: It is not of the cluster's generation.
            UnknownSliceTypeError: There is none.
        """
        kind, generation = slice_type(name), self._cluster.generation
        if not generation.has(kind):
            offered = ", ".join(one.name for one in generation.offered[:_SHOWN])
            raise WrongSliceError(
                f"Cluster {self._cluster.name} has slices of {generation.name} only, not {name}: {offered} and so on."
            )
        return kind

    def new_name(self, kind: SliceType) -> str:
        """A name for a slice of this kind that nothing has."""
        return f"{self._cluster.name}-{kind.name}-{secrets.token_hex(4)}"

    def add(self, name: str, kind: SliceType, capacity: Capacity) -> None:
        """Ask for a slice; one that is there already is gone on with.

        Raises:
            WrongSliceError: The name is none, or something else has it.
        """
        if not is_name(name):
            raise WrongSliceError(f"{name!r} is no name of a slice: lower-case letters, digits and hyphens, up to 63.")
        if (there := self._found(name)) is not None:
            self._check_ours(there)
            if there.kind != kind or there.capacity is not capacity:
                raise WrongSliceError(
                    f"There is a slice {name} already, of {there.kind.name}, {there.capacity.value}: take another "
                    "name, or remove it first."
                )
            self._tell(f"Slice {name} was asked for already: {there.state}.")
            return
        with in_fleet_words():
            self._api.create(name, manual_body(self._cluster, name, kind, capacity, self._script(kind)))
        self._tell(f"Asked for slice {name}: {kind.name}, {capacity.value}.")

    def wait(self, name: str, timeout_s: float) -> None:
        """Returns when Google says that the slice is READY.

        Raises:
            SliceNotReadyError: It is not after ``timeout_s``, or was refused.
        """
        deadline, told = self._clock() + timeout_s, ""
        while (there := self._found(name)) is not None and there.state != "READY":
            if there.state != told:
                self._tell(f"Slice {name}: {(told := there.state)}.")
            if there.queue is not None and there.queue.state == "FAILED":
                raise SliceNotReadyError(f"Slice {name} was refused: {there.queue.why or 'Google does not say why'}")
            if self._clock() >= deadline:
                raise SliceNotReadyError(
                    f"Slice {name}: {there.state} after {timeout_s:.0f} s. Google goes on with it: 'tradewind cluster "
                    f"status {self._cluster.name}' shows how far that is."
                )
            self._api.pause(_LOOK_S)
        if there is None:
            raise SliceNotReadyError(f"Slice {name} is gone: somebody has deleted it.")
        self._tell(f"Slice {name} is READY: its hosts join Ray by themselves.")

    def find(self, name: str) -> ManualSlice:
        """The slice called ``name``.

        Raises:
            WrongSliceError: There is none, it is none that people added to this cluster, or others came with it.
        """
        if (there := self._found(name)) is None:
            with in_fleet_words():
                names = [one.name for one in self._api.nodes() if one.labels.get(CLUSTER_LABEL) == self._cluster.name]
            raise WrongSliceError(f"Cluster {self._cluster.name} has no slice {name}: {meant(name, names)}")
        self._check_ours(there)
        if there.queue is not None and len(there.queue.nodes) != 1:
            raise WrongSliceError(
                f"Slice {name} came with others ({', '.join(there.queue.nodes)}) of {there.queue.name}, which goes "
                "whole or not at all: 'stop --include-reserved' deletes it with the cluster."
            )
        return there

    def is_awaited(self, name: str) -> bool:
        """Whether the slice is not there, and upkeep asks for it."""
        record = self._records.read().get(name)
        body = (record.body if record and record.is_wanted else None) or {}
        specs = (body.get("tpu") or {}).get("nodeSpec") or [{"node": body}]
        labels = (specs[0].get("node") or {}).get("labels") or {}
        return labels.get(CLUSTER_LABEL) == self._cluster.name and self._found(name) is None

    def give_up(self, name: str) -> None:
        """Have nobody ask any more for a slice that is not there."""
        self._records.forget(name, time.time())
        self._tell(f"Slice {name} is not asked for any more.")

    def remove(self, name: str, check: Callable[[], None]) -> None:
        """Delete a slice that nobody uses, and have nobody make it again.

        Args:
            check: Raises when nothing may be done any more.

        Raises:
            WrongSliceError: See ``find``.
            SliceInUseError: Somebody uses it, or nobody can say.
        """
        there = self.find(name)
        self._delete(there, check)
        for known in {name, there.unit.name}:
            self._records.forget(known, time.time())
        self._tell(f"Removed slice {name}.")

    def resize(self, name: str, kinds: Sequence[SliceType], marker: ClusterMarker) -> list[str]:
        """Put slices of these kinds in the place of one, or go on with that where it was interrupted; their names.

        Raises:
            WrongSliceError: It is none that can be cut so, or another one was being cut.
            SliceInUseError: Somebody uses it, or nobody can say. Nothing was changed.
            SliceNotReadyError: There is no room for a new one now; upkeep asks for it from now on.
            BadCutError: The marker does not say what was being cut. Nothing was changed.
            ClusterBusyError: Somebody else is changing the cluster.
        """
        with marker.take(RESIZE, "writing down", details={}) as held:
            cut = SliceCut.of(held.marker.details, self._cluster.name)
            if cut is None:
                try:
                    cut = self._planned(name, kinds)
                except FleetError:
                    held.finish()
                    raise
                held.advance("writing down", **cut.to_json())
            if (cut.name, cut.kinds) != (name, [kind.name for kind in kinds]):
                raise WrongSliceError(
                    f"Slice {cut.name} was being cut into {', '.join(cut.kinds)}: run that again first."
                )
            self._carry_out(cut, held)
            held.finish()
        return list(cut.bodies)

    def _planned(self, name: str, kinds: Sequence[SliceType]) -> SliceCut:
        old = self.find(name)
        chips = sum(kind.chips for kind in kinds)
        if chips > old.kind.chips:
            raise WrongSliceError(
                f"{', '.join(kind.name for kind in kinds)} have {chips} chips together, slice {name} has "
                f"{old.kind.chips}: add the rest with add-worker."
            )
        self._check_unused(old)
        bodies: dict[str, Mapping[str, Any]] = {}
        for kind in kinds:
            new = next(
                free for number in range(1, 1000)
                if (free := f"{name}-{number}") not in bodies and self._found(free) is None
            )  # fmt: skip
            made = manual_body(self._cluster, new, kind, old.capacity, self._script(kind))
            bodies[new] = resized_body(old.unit.body, made)
        return SliceCut(name, old.unit.identity, [kind.name for kind in kinds], bodies)

    def _carry_out(self, cut: SliceCut, held: MarkerHolding) -> None:
        wanted = {known for known, record in self._records.read().items() if record.is_wanted}
        missing = [new for new in cut.bodies if new not in wanted and self._found(new) is None]
        now = time.time()
        self._records.write_deletions([Deletion(new, "", now, cut.bodies[new], is_certain=True) for new in missing])
        held.advance("deleting")
        there = self._found(cut.name)
        if there is not None and there.unit.identity == cut.identity:
            try:
                self._delete(there, held.check)
            except MarkerLostError:
                raise
            except FleetError:
                if self._is_still(cut):
                    for new in cut.bodies:
                        self._records.forget(new, now)
                    held.finish()
                raise
            self._tell(f"Deleted slice {cut.name}.")
        held.advance("creating")
        for new, body in cut.bodies.items():
            held.check()
            self._create(new, body, held)

    def _is_still(self, cut: SliceCut) -> bool:
        """Whether the slice that could not be deleted is there all the same; not, if nobody can see that."""
        try:
            there = self._found(cut.name)
        except FleetError:
            return False
        return there is not None and there.unit.identity == cut.identity and "DELETING" not in there.state

    def _create(self, name: str, body: Mapping[str, Any], held: MarkerHolding) -> None:
        with in_fleet_words():
            try:
                self._api.create(name, body)
            except TpuConflictError:  # asked for before the interruption, or by upkeep
                return
            except (StockOutError, QuotaError) as error:
                held.finish()
                raise SliceNotReadyError(
                    f"There is no room for slice {name} now ({error}). It is written down: upkeep asks for it until "
                    "there is."
                ) from None
        self._tell(f"Asked for slice {name}.")

    def _delete(self, there: ManualSlice, check: Callable[[], None]) -> None:
        self._check_unused(there)
        with in_fleet_words(check):
            if there.queue is not None:
                self._api.delete_queued_resource(there.queue.name, there.queue.identity, check=check)
            elif there.node is not None:
                self._api.delete_node(there.name, there.node.identity, check=check)

    def _check_unused(self, there: ManualSlice) -> None:
        nodes = self._nodes()
        if nodes is not None:
            check_unused(nodes, there.hosts_as)

    def _found(self, name: str) -> ManualSlice | None:
        """A slice and its queued resource, either of which may have the name."""
        with in_fleet_words():
            node, queue = self._api.found(name, False), self._api.found(name, True)
            assert not isinstance(node, QueuedTpu) and not isinstance(queue, TpuNode)
            if queue is None and node is not None and node.queue is not None:
                other = self._api.found(node.queue, True)
                queue = other if isinstance(other, QueuedTpu) else None
            if queue is not None and node is None and len(queue.nodes) == 1 and queue.nodes[0] != name:
                found = self._api.found(queue.nodes[0], False)
                node = found if isinstance(found, TpuNode) else None
        return None if node is None and queue is None else ManualSlice(name, node, queue)

    def _check_ours(self, there: ManualSlice) -> None:
        labels = there.node.labels if there.node is not None else there.unit.labels
        owner = labels.get(CLUSTER_LABEL)
        if owner != self._cluster.name:
            whose = f"is of cluster {owner}" if owner else "is of no cluster"
            raise WrongSliceError(f"Slice {there.name} {whose}, not of {self._cluster.name}. Nothing was changed.")
        if there.node is not None and (there.node.is_of_autoscaler or there.node.is_head):
            raise WrongSliceError(
                f"Slice {there.name} was made by the autoscaler, which would make another one: change 'slices' of the "
                f"fleet file, and run 'tradewind cluster apply {self._cluster.name}'."
            )


def slice_records(cluster: FleetCluster) -> SliceRecords:
    """Those that upkeep reads."""
    return SliceRecords(f"gs://{cluster.bucket}/{RECORDS_FOLDER}/{cluster.project}/{cluster.zone}")
