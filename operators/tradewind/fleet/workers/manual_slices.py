"""Manual slices: users add them to a cluster, remove them and cut them, unless they are in use.

They have the cluster's label, and none that the autoscaler takes for its own. A cut records the new slices in the
slice repair's records before it deletes the old one: if no command resumes an interrupted cut, upkeep makes them.

Any writer of the bucket can write the cluster's lock, so a cut that it describes is checked: the new slices must be of
this cluster and named after the old one. Their service account is not checked, since a user may have chosen another
(see ``docs/security.md``).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.errors import QuotaError, StockOutError, TpuConflictError
from tradewind.cloud_tpu.repair.records import RECORDS_FOLDER, Deletion, SliceRecords
from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode, is_name, is_queue_body
from tradewind.cloud_tpu.slice_types import SLICE_NAME_LABEL, SliceType, slice_type
from tradewind.fleet.cloud.heads import TYPE_LABEL
from tradewind.fleet.clusters import CLUSTER_LABEL, Capacity, FleetCluster
from tradewind.fleet.errors import FleetError, nearest_names_hint
from tradewind.fleet.lifecycle.inventory import translated_tpu_errors
from tradewind.fleet.lock import ClusterLock, HeldClusterLock, MarkerLostError
from tradewind.ray_jobs.nodes import NodeInfo

UNMANAGED: Final = "unmanaged"
"""Ray's type of nodes that its autoscaler leaves alone."""
RESIZE: Final = "resize"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_POLL_S: Final = 5.0
_MAX_SHOWN: Final = 8
_MAX_TEXT_CHARS: Final = 1000
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,2}")
_FIELDS: Final = frozenset({"slice", "identity", "kinds", "bodies"})
_ALWAYS_IN_USE: Final = frozenset({"memory", "object_store_memory"})
"""Resources that an idle host uses too."""


def manual_body(
    cluster: FleetCluster, name: str, kind: SliceType, capacity: Capacity, start_script: str
) -> dict[str, Any]:
    """Return the body of a create call: of a TPU VM if it is preemptible, else of a queued resource."""
    node = {
        "acceleratorType": kind.name,
        "runtimeVersion": cluster.generation.runtime_version,
        "labels": {CLUSTER_LABEL: cluster.name, TYPE_LABEL: UNMANAGED},
        "schedulingConfig": {capacity.scheduling_field: True},
        "serviceAccount": {"email": cluster.worker_service_account, "scope": [_SCOPE]},
        "networkConfig": {"enableExternalIps": True},
        "metadata": {"startup-script": start_script, "enable-guest-attributes": "TRUE"},
    }
    match capacity:
        case Capacity.PREEMPTIBLE:
            return node
        case Capacity.RESERVED:
            tier: dict[str, Any] = {"guaranteed": {}}
        case Capacity.BEST_EFFORT:
            tier = {"spot": {}}
    return {**tier, "tpu": {"nodeSpec": [{"nodeId": name, "node": node}]}}


def resized_body(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``new`` with the reservation, network and account of ``old``, which a user may have chosen."""
    kept = ("schedulingConfig", "serviceAccount", "networkConfig", "tags")
    is_queue = is_queue_body(old)
    node, before = _node(new), _node(old)
    node = {**node, **{key: before[key] for key in kept if key in before}}
    if not is_queue:
        return node
    name = (new["tpu"]["nodeSpec"][0] if is_queue_body(new) else {}).get("nodeId")
    rest = {key: value for key, value in old.items() if key != "tpu"}
    return {**rest, "tpu": {"nodeSpec": [{"nodeId": name, "node": node}]}}


def _node(body: Mapping[str, Any]) -> dict[str, Any]:
    return dict(body["tpu"]["nodeSpec"][0].get("node") or {}) if is_queue_body(body) else dict(body)


@dataclass(frozen=True)
class SliceCut:
    """A cut of one slice into others, as the cluster's lock stores it.

    Attributes:
        name: The slice that is cut.
        identity: Its identity, among slices of that name.
        kinds: The types of the new slices.
        bodies: Name of each new slice → body of its create call.
    """

    name: str
    identity: str
    kinds: list[str]
    bodies: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"slice": self.name, "identity": self.identity, "kinds": self.kinds, "bodies": dict(self.bodies)}

    @staticmethod
    def of(details: Mapping[str, Any], cluster: str) -> SliceCut | None:
        """Parse the cut in the lock of ``cluster``; None if it has none yet.

        Raises:
            FleetError: It is no cut of this cluster.
        """
        if not _FIELDS & details.keys():
            return None
        cut = SliceCut(*(details.get(field) for field in ("slice", "identity", "kinds", "bodies")))  # type: ignore[arg-type]
        if cut._is_ours(cluster):
            return cut
        raise FleetError(
            f"Cluster {cluster}: its lock does not say which slice was being cut into what. Ask the user who began, "
            "end the operation with 'tradewind cluster stop', or correct the lock. Nothing was changed."
        )

    def _is_ours(self, cluster: str) -> bool:
        """Whether the fields, which may have any type, are those of a cut of ``cluster``."""
        texts = [self.name, self.identity, *(self.kinds if isinstance(self.kinds, list) else [None])]
        return (
            all(isinstance(text, str) and len(text) < _MAX_TEXT_CHARS for text in texts)
            and is_name(self.name)
            and isinstance(self.bodies, dict)
            and len(self.kinds) == len(self.bodies)  # so at most 999
            and all(_is_part(self.name, new, body, cluster) for new, body in self.bodies.items())
        )


def _is_part(name: str, new: str, body: Any, cluster: str) -> bool:
    """Whether ``new`` is the name of a part of the slice ``name``, and ``body`` creates a slice of ``cluster``."""
    number = new.removeprefix(f"{name}-")
    if number == new or not _NUMBER.fullmatch(number) or not isinstance(body, dict):
        return False
    try:
        node = body["tpu"]["nodeSpec"][0]["node"] if is_queue_body(body) else body
        return bool(node["labels"][CLUSTER_LABEL] == cluster)
    except (LookupError, TypeError):
        return False


def check_unused(nodes: Iterable[NodeInfo], name: str) -> None:
    """Check that no task or actor holds resources on a host of the slice ``name``.

    Raises:
        FleetError: One does, or Ray does not report it.
    """
    hosts = [node for node in nodes if node.is_alive and node.labels.get(SLICE_NAME_LABEL) == name]
    if unknown := [host.ip for host in hosts if host.free is None]:
        raise FleetError(
            f"Slice {name}: Ray does not report what is in use on {', '.join(unknown)}. Try again in a minute. Nothing "
            "was changed."
        )
    taken = [
        f"{host.total[what] - (host.free or {}).get(what, 0):g} {what} on {host.ip}"
        for host in hosts
        for what in sorted(host.total)
        if what not in _ALWAYS_IN_USE and (host.free or {}).get(what, 0) < host.total[what]
    ]
    if taken:
        raise FleetError(
            f"Slice {name} is in use ({', '.join(taken)}): stop what runs there first. Nothing was changed."
        )


@dataclass(frozen=True)
class ManualSlice:
    """A slice that a user added, and the queued resource that provides it, if one does."""

    name: str
    node: TpuNode | None
    queue: QueuedTpu | None

    @property
    def state(self) -> str:
        """Google's name of its state."""
        if self.node is not None:
            return self.node.state
        return f"queued, {self.queue.state}" if self.queue is not None else "not there"

    @property
    def unit(self) -> TpuNode | QueuedTpu:
        """The resource to delete or create."""
        unit = self.queue or self.node
        assert unit is not None, "one of them was found"
        return unit

    @property
    def hosts_as(self) -> str:
        """The name that its hosts have in Ray: the node's, even if users know it by its queued resource's."""
        if self.node is not None:
            return self.node.name
        return self.queue.nodes[0] if self.queue is not None and self.queue.nodes else self.name

    @property
    def kind(self) -> SliceType:
        """Its type. Raises ``UnknownSliceTypeError``."""
        return slice_type(self.node.slice_type if self.node else self._spec["acceleratorType"])

    @property
    def capacity(self) -> Capacity:
        """The kind of capacity that it uses."""
        if self.unit.is_reserved:
            return Capacity.RESERVED
        return Capacity.PREEMPTIBLE if self.queue is None else Capacity.BEST_EFFORT

    @property
    def _spec(self) -> Mapping[str, Any]:
        specs: Sequence[Mapping[str, Any]] = self.unit.body["tpu"]["nodeSpec"]
        spec: Mapping[str, Any] = specs[0].get("node") or {}
        return spec


class ManualSlices:
    """The manual slices of one cluster.

    Args:
        script: Returns the boot script for hosts of a slice type.
        nodes: Returns Ray's nodes; None if the cluster has no head, so that nothing runs.
        tell: Called with a sentence for each action.
        clock: A monotonic clock, in seconds.

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
        nodes: Callable[[], Iterable[NodeInfo] | None],
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
        """Return the slice type ``name``.

        Raises:
            FleetError: It is not of the cluster's generation.
            UnknownSliceTypeError: No slice type has this name.
        """
        kind, generation = slice_type(name), self._cluster.generation
        if not generation.has(kind):
            offered = ", ".join(one.name for one in generation.offered[:_MAX_SHOWN])
            raise FleetError(
                f"Cluster {self._cluster.name} has slices of {generation.name} only, not {name}: {offered} and so on."
            )
        return kind

    def new_name(self, kind: SliceType) -> str:
        """Return an unused name for a slice of this kind."""
        return f"{self._cluster.name}-{kind.name}-{secrets.token_hex(4)}"

    def add(self, name: str, kind: SliceType, capacity: Capacity) -> None:
        """Request a slice; does nothing if an earlier call requested it.

        Raises:
            FleetError: The name is invalid, or another resource has it.
        """
        if not is_name(name):
            raise FleetError(f"{name!r} is no name of a slice: use lower-case letters, digits and hyphens, up to 63.")
        if (current := self._get(name)) is not None:
            self._check_own(current)
            if current.kind != kind or current.capacity is not capacity:
                raise FleetError(
                    f"There is a slice {name} already, of {current.kind.name}, {current.capacity.value}: take another "
                    "name, or remove it first."
                )
            self._tell(f"Slice {name} was requested already: {current.state}.")
            return
        with translated_tpu_errors():
            self._api.create(name, manual_body(self._cluster, name, kind, capacity, self._script(kind)))
        self._tell(f"Requested slice {name}: {kind.name}, {capacity.value}.")

    def wait(self, name: str, timeout_s: float) -> None:
        """Wait until Google reports the slice as READY.

        Raises:
            FleetError: It is not after ``timeout_s``, or Google refused it.
        """
        deadline, reported = self._clock() + timeout_s, ""
        while (current := self._get(name)) is not None and current.state != "READY":
            if current.state != reported:
                self._tell(f"Slice {name}: {(reported := current.state)}.")
            if current.queue is not None and current.queue.state == "FAILED":
                raise FleetError(f"Slice {name} was refused: {current.queue.why or 'Google does not say why'}")
            if self._clock() >= deadline:
                raise FleetError(
                    f"Slice {name}: {current.state} after {timeout_s:.0f} s. Google continues: 'tradewind cluster "
                    f"status {self._cluster.name}' shows the progress."
                )
            self._api.pause(_POLL_S)
        if current is None:
            raise FleetError(f"Slice {name} is gone: another user or process deleted it.")
        self._tell(f"Slice {name} is READY: its hosts join Ray by themselves.")

    def find(self, name: str) -> ManualSlice:
        """Return the manual slice ``name``.

        Raises:
            FleetError: It does not exist, is no manual slice of this cluster, or shares its queued resource.
        """
        if (current := self._get(name)) is None:
            with translated_tpu_errors():
                names = [one.name for one in self._api.nodes() if one.labels.get(CLUSTER_LABEL) == self._cluster.name]
            raise FleetError(f"Cluster {self._cluster.name} has no slice {name}: {nearest_names_hint(name, names)}")
        self._check_own(current)
        if current.queue is not None and len(current.queue.nodes) != 1:
            raise FleetError(
                f"Slice {name} came with others ({', '.join(current.queue.nodes)}) of {current.queue.name}, which goes "
                "whole or not at all: 'stop --include-reserved' deletes it with the cluster."
            )
        return current

    def is_awaited(self, name: str) -> bool:
        """Whether the slice does not exist and upkeep requests it."""
        record = self._records.read().get(name)
        body = (record.body if record and record.is_wanted else None) or {}
        specs = (body.get("tpu") or {}).get("nodeSpec") or [{"node": body}]
        labels = (specs[0].get("node") or {}).get("labels") or {}
        return labels.get(CLUSTER_LABEL) == self._cluster.name and self._get(name) is None

    def give_up(self, name: str) -> None:
        """Stop the upkeep's requests for a slice that does not exist."""
        self._records.forget(name, time.time())
        self._tell(f"Slice {name} is no longer requested.")

    def remove(self, name: str, check: Callable[[], None]) -> None:
        """Delete an unused slice, and stop the upkeep's requests for it.

        Args:
            check: Raises when the lock is lost.

        Raises:
            FleetError: See ``find``.
            FleetError: The slice is in use, or that is unknown.
        """
        current = self.find(name)
        self._delete(current, check)
        for known in {name, current.unit.name}:
            self._records.forget(known, time.time())
        self._tell(f"Removed slice {name}.")

    def resize(self, name: str, kinds: Sequence[SliceType], marker: ClusterLock) -> list[str]:
        """Replace a slice by slices of these kinds, or resume an interrupted cut; return the new names.

        Raises:
            FleetError: The slice cannot be cut so, or a cut of another one was interrupted.
            FleetError: The slice is in use, or that is unknown. Nothing was changed.
            FleetError: There is no capacity for a new slice now; upkeep requests it from now on.
            FleetError: The lock does not say which slice was being cut. Nothing was changed.
            ClusterBusyError: Another command is changing the cluster.
        """
        with marker.take(RESIZE, "writing down", details={}) as held:
            cut = SliceCut.of(held.marker.details, self._cluster.name)
            if cut is None:
                try:
                    cut = self._plan(name, kinds)
                except FleetError:
                    held.finish()
                    raise
                held.advance("writing down", **cut.to_json())
            if (cut.name, cut.kinds) != (name, [kind.name for kind in kinds]):
                raise FleetError(f"Slice {cut.name} was being cut into {', '.join(cut.kinds)}: run that again first.")
            self._carry_out(cut, held)
            held.finish()
        return list(cut.bodies)

    def _plan(self, name: str, kinds: Sequence[SliceType]) -> SliceCut:
        old = self.find(name)
        chips = sum(kind.chips for kind in kinds)
        if chips > old.kind.chips:
            raise FleetError(
                f"{', '.join(kind.name for kind in kinds)} have {chips} chips together, slice {name} has "
                f"{old.kind.chips}: add the rest with add-worker."
            )
        self._check_unused(old)
        bodies: dict[str, Mapping[str, Any]] = {}
        for kind in kinds:
            new = next(
                free for number in range(1, 1000)
                if (free := f"{name}-{number}") not in bodies and self._get(free) is None
            )  # fmt: skip
            made = manual_body(self._cluster, new, kind, old.capacity, self._script(kind))
            bodies[new] = resized_body(old.unit.body, made)
        return SliceCut(name, old.unit.identity, [kind.name for kind in kinds], bodies)

    def _carry_out(self, cut: SliceCut, held: HeldClusterLock) -> None:
        wanted = {known for known, record in self._records.read().items() if record.is_wanted}
        missing = [new for new in cut.bodies if new not in wanted and self._get(new) is None]
        now = time.time()
        self._records.write_deletions([Deletion(new, "", now, cut.bodies[new], is_certain=True) for new in missing])
        held.advance("deleting")
        current = self._get(cut.name)
        if current is not None and current.unit.identity == cut.identity:
            try:
                self._delete(current, held.check)
            except MarkerLostError:
                raise
            except FleetError:
                if self._still_exists(cut):
                    for new in cut.bodies:
                        self._records.forget(new, now)
                    held.finish()
                raise
            self._tell(f"Deleted slice {cut.name}.")
        held.advance("creating")
        for new, body in cut.bodies.items():
            held.check()
            self._create(new, body, held)

    def _still_exists(self, cut: SliceCut) -> bool:
        """Whether the slice still exists after its deletion failed; False if that is unknown."""
        try:
            current = self._get(cut.name)
        except FleetError:
            return False
        return current is not None and current.unit.identity == cut.identity and "DELETING" not in current.state

    def _create(self, name: str, body: Mapping[str, Any], held: HeldClusterLock) -> None:
        with translated_tpu_errors():
            try:
                self._api.create(name, body)
            except TpuConflictError:  # requested before the interruption, or by upkeep
                return
            except (StockOutError, QuotaError) as error:
                held.finish()
                raise FleetError(
                    f"There is no capacity for slice {name} now ({error}). Upkeep requests it until there is."
                ) from None
        self._tell(f"Requested slice {name}.")

    def _delete(self, current: ManualSlice, check: Callable[[], None]) -> None:
        self._check_unused(current)
        with translated_tpu_errors(check):
            if current.queue is not None:
                self._api.delete_queued_resource(current.queue.name, current.queue.identity, check=check)
            elif current.node is not None:
                self._api.delete_node(current.name, current.node.identity, check=check)

    def _check_unused(self, current: ManualSlice) -> None:
        nodes = self._nodes()
        if nodes is not None:
            check_unused(nodes, current.hosts_as)

    def _get(self, name: str) -> ManualSlice | None:
        """Return a slice and its queued resource, either of which may have the name."""
        with translated_tpu_errors():
            node, queue = self._api.find(name, False), self._api.find(name, True)
            assert not isinstance(node, QueuedTpu) and not isinstance(queue, TpuNode)
            if queue is None and node is not None and node.queue is not None:
                other = self._api.find(node.queue, True)
                queue = other if isinstance(other, QueuedTpu) else None
            if queue is not None and node is None and len(queue.nodes) == 1 and queue.nodes[0] != name:
                found = self._api.find(queue.nodes[0], False)
                node = found if isinstance(found, TpuNode) else None
        return None if node is None and queue is None else ManualSlice(name, node, queue)

    def _check_own(self, current: ManualSlice) -> None:
        labels = current.node.labels if current.node is not None else current.unit.labels
        owner = labels.get(CLUSTER_LABEL)
        if owner != self._cluster.name:
            whose = f"is of cluster {owner}" if owner else "is of no cluster"
            raise FleetError(f"Slice {current.name} {whose}, not of {self._cluster.name}. Nothing was changed.")
        if current.node is not None and (current.node.is_of_autoscaler or current.node.is_head):
            raise FleetError(
                f"Slice {current.name} was made by the autoscaler, which would recreate it: change 'slices' of the "
                f"fleet file, and run 'tradewind cluster apply {self._cluster.name}'."
            )


def slice_records(cluster: FleetCluster) -> SliceRecords:
    """Return the records that upkeep reads."""
    return SliceRecords(f"gs://{cluster.bucket}/{RECORDS_FOLDER}/{cluster.project}/{cluster.zone}")
