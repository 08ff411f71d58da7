"""Inventory of a zone, the clusters that own its resources, and their states and reports.

A resource belongs to the cluster that its label names exactly: ``a`` and ``a-b`` have nothing in common.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from tradewind.cloud_tpu.api import MAX_CONCURRENT_CALLS, TpuApi
from tradewind.cloud_tpu.errors import TpuApiError, TpuDeniedError, TpuUnreachableError
from tradewind.cloud_tpu.resources import WITHOUT_MACHINES, QueuedTpu, TpuNode
from tradewind.fleet.cloud.google_api import (
    CloudConflictError,
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudUnreachableError,
    execute_request,
    google_api,
    list_all,
    readable_answer,
)
from tradewind.fleet.cloud.heads import HEAD, RUNNING, TYPE_LABEL
from tradewind.fleet.clusters import CLUSTER_LABEL, Fleet, FleetCluster
from tradewind.ray_jobs.nodes import NodeInfo, hosts_alive

CONFIG_LABEL: Final = "tradewind-config"
"""The label with the hash of the file that a node was made from."""
LAUNCH_LABEL: Final = "ray-launch-config"
"""Ray's label with the hash of a node's request; Ray relaunches nodes with another hash."""
NODE_TYPE_LABEL: Final = "ray-user-node-type"
STATUS_LABEL: Final = "ray-node-status"
"""Ray's label with the progress of a node's setup."""
SET_UP: Final = "up-to-date"
NOT_SET_UP: Final = "uninitialized"
"""Ray's autoscaler runs all commands again on such a node."""
READY: Final = "READY"
_COMING: Final = frozenset({"PROVISIONING", "STAGING", RUNNING})
_OF_A_TPU: Final = "tpu_cores"
"""The label of the instances of TPU VMs, which are deleted with those."""
_FIRST_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 5.0
_OPERATION_TIMEOUT_S: Final = 15 * 60.0
_SHOWN_RESOURCES: Final = ("TPU", "CPU")
_DISK_GB: Final = 200
_DISK_TYPE: Final = "pd-balanced"


@dataclass(frozen=True)
class VirtualMachine:
    """One instance of Compute Engine.

    Attributes:
        status: ``RUNNING``, ``TERMINATED`` and so on.
        created_at: In seconds since the epoch; None if Google does not say.
    """

    name: str
    status: str
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float | None = None

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> VirtualMachine:
        """Parse an instance of the API."""
        created = fields.get("creationTimestamp")
        return VirtualMachine(
            str(fields["name"]),
            str(fields.get("status", "")),
            fields.get("labels") or {},
            datetime.fromisoformat(created).timestamp() if created else None,
        )

    @property
    def is_head(self) -> bool:
        """Whether a Ray cluster has its head on it."""
        return self.labels.get(TYPE_LABEL) == HEAD

    @property
    def is_coming(self) -> bool:
        """Whether it runs or starts."""
        return self.status in _COMING


class ClusterState(Enum):
    """State of a cluster, from its inventory."""

    ABSENT = "there is nothing of it"
    HEADLESS = "it has slices and no head"
    HALF_MADE = "its head is there, and was never set up to the end"
    UP = "its head was set up"
    DOUBLE = "it has more than one head"


@dataclass(frozen=True)
class Inventory:
    """Resources of one zone, or of one cluster in it."""

    machines: Sequence[VirtualMachine] = ()
    slices: Sequence[TpuNode] = ()
    queues: Sequence[QueuedTpu] = ()

    def of(self, cluster: str) -> Inventory:
        """Return the resources of ``cluster``."""
        slices = [one for one in self.slices if one.labels.get(CLUSTER_LABEL) == cluster]
        return Inventory(
            [one for one in self.machines if one.labels.get(CLUSTER_LABEL) == cluster and _OF_A_TPU not in one.labels],
            slices,
            [one for one in self.queues if self._owner_of(one) == cluster],
        )

    def clusters(self) -> list[str]:
        """Return the names of all clusters with a resource."""
        names = {one.labels.get(CLUSTER_LABEL) for one in self.machines}
        names |= {one.labels.get(CLUSTER_LABEL) for one in self.slices}
        names |= {self._owner_of(one) for one in self.queues}
        return sorted(name for name in names if name is not None)

    @property
    def count(self) -> int:
        """Number of resources."""
        return len(self.machines) + len(self.slices) + len(self.queues)

    @property
    def heads(self) -> list[VirtualMachine]:
        """The heads that run or start."""
        return [one for one in self.machines if one.is_head and one.is_coming]

    @property
    def dead_heads(self) -> list[VirtualMachine]:
        """The other heads: Ray ignores them, but they keep the state disk attached."""
        return [one for one in self.machines if one.is_head and not one.is_coming]

    @property
    def state(self) -> ClusterState:
        """State of a cluster with these resources."""
        match self.heads:
            case []:
                return ClusterState.HEADLESS if self.count else ClusterState.ABSENT
            case [head]:
                return ClusterState.UP if head.labels.get(STATUS_LABEL) == SET_UP else ClusterState.HALF_MADE
        return ClusterState.DOUBLE

    def _owner_of(self, queue: QueuedTpu) -> str | None:
        """Return the only cluster that the labels of a queued resource and its slices name."""
        labels = {one.labels.get(CLUSTER_LABEL) for one in self.slices if one.queue == queue.name}
        if CLUSTER_LABEL in queue.labels:
            labels.add(queue.labels[CLUSTER_LABEL])
        return labels.pop() if len(labels) == 1 else None


@dataclass(frozen=True)
class OrphanCluster:
    """Resources in a zone of a cluster that is not in the fleet file."""

    cluster: str
    project: str
    zone: str
    names: Sequence[str]


def orphan_clusters(fleet: Fleet, project: str, zone: str, found: Inventory) -> Iterator[OrphanCluster]:
    """Yield the clusters with resources in a zone that are not in the fleet file."""
    known = {one.name for one in fleet.clusters.values() if (one.project, one.zone) == (project, zone)}
    for name in found.clusters():
        if name not in known:
            left = found.of(name)
            names = [one.name for one in left.machines] + [one.name for one in left.slices]
            yield OrphanCluster(name, project, zone, names + [one.name for one in left.queues])


@dataclass(frozen=True)
class RayStatus:
    """State of Ray, as the head reports it.

    Attributes:
        version: Ray's version; None if the head does not answer.
        hosts: Slice → number of its hosts in Ray.
        used: Resource → amount in use, and total.
        why: Why the head does not answer.
    """

    version: str | None = None
    hosts: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    why: str = ""

    @staticmethod
    def of(nodes: Sequence[NodeInfo], version: str | None) -> RayStatus:
        """Return the state of Ray with these nodes; its resources are TPU and CPU."""
        alive = [node for node in nodes if node.is_alive]
        used: dict[str, tuple[float, float]] = {}
        for name in _SHOWN_RESOURCES:
            total = sum(float(node.total.get(name, 0)) for node in alive)
            free = sum(float((node.free or node.total).get(name, 0)) for node in alive)
            if total:
                used[name] = (total - free, total)
        return RayStatus(version, hosts_alive(nodes), used)


@dataclass(frozen=True)
class NodeLine:
    """One machine, slice or queued resource.

    Attributes:
        kind: ``head``, a slice type, or another kind.
        age_s: Time since its creation; None if unknown.
        in_ray: Number of its hosts in Ray; None if that is unknown, or does not apply.
        is_current: Whether it was made from the current file; None if it has no label.
    """

    kind: str
    name: str
    state: str
    age_s: float | None
    hosts: int | None = None
    in_ray: int | None = None
    is_reserved: bool = False
    is_current: bool | None = None


@dataclass(frozen=True)
class ClusterReport:
    """Status of one cluster: its resources, Ray and its lock."""

    cluster: FleetCluster
    state: str
    lines: Sequence[NodeLine]
    ray: RayStatus
    marker: str = ""

    @staticmethod
    def of(
        cluster: FleetCluster, found: Inventory, config_hash: str | None, ray: RayStatus, now: float, marker: str = ""
    ) -> ClusterReport:
        """Return the report of the resources ``found`` at ``now``; the hash of the file is None if it is unknown."""

        def age(created_at: float | None) -> float | None:
            return None if created_at is None else max(0.0, now - created_at)

        def is_current(labels: Mapping[str, str]) -> bool | None:
            is_known = config_hash is not None and CONFIG_LABEL in labels
            return labels[CONFIG_LABEL] == config_hash if is_known else None

        lines = [
            NodeLine(
                "head" if one.is_head else "machine", one.name, one.status, age(one.created_at),
                is_current=is_current(one.labels),
            )
            for one in found.machines
        ]  # fmt: skip
        lines += [
            NodeLine(
                one.slice_type, one.name, one.state, age(one.created_at), one.hosts,
                None if ray.version is None else ray.hosts.get(one.name, 0), one.is_reserved or one.queue is not None,
                is_current(one.labels),
            )
            for one in found.slices
        ]  # fmt: skip
        lines += [
            NodeLine("queued resource", one.name, one.state, age(one.created_at), is_reserved=one.is_reserved)
            for one in found.queues
        ]
        return ClusterReport(cluster, found.state.value, lines, ray, marker)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return kind and state → number of resources."""
        return Counter((line.kind, line.state) for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "name": self.cluster.name, "project": self.cluster.project, "zone": self.cluster.zone, "state": self.state,
            "image": self.cluster.full_image, "marker": self.marker or None, "ray_version": self.ray.version,
            "head_does_not_answer": self.ray.why or None,
            "used": {name: {"used": used, "total": total} for name, (used, total) in self.ray.used.items()},
            "nodes": [vars(line) for line in self.lines],
        }  # fmt: skip

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the lines as cells of a table."""
        for line in self.lines:
            in_ray = "" if line.in_ray is None else f"{line.in_ray}/{line.hosts or '?'}"
            notes = ["reserved"] if line.is_reserved else []
            notes += ["Ray has not noticed yet"] if line.in_ray and line.state in WITHOUT_MACHINES else []
            notes += ["of an earlier file"] if line.is_current is False else []
            yield line.kind, line.name, line.state, _age(line.age_s), in_ray, ", ".join(notes)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


class CloudZone:
    """A zone of a project.

    Args:
        compute: The client of Compute Engine; default: one of this machine's credentials.
        tpu: That of Cloud TPU.
        sleep: Waits.

    Raises (every method):
        CloudError: Google Cloud refuses, or does not answer.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        *,
        compute: Any = None,
        tpu: TpuApi | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.project = project
        self.zone = zone
        self._compute = compute or google_api("compute")
        self._sleep = sleep
        self._nodes: Any = None
        self._check: Callable[[], None] = lambda: None
        with translated_tpu_errors():
            self._tpu = tpu or TpuApi(project, zone, poll_s=2.0)

    def under(self, check: Callable[[], None]) -> CloudZone:
        """Return the same zone, which calls ``check`` before each change."""
        other = copy.copy(self)
        other._check = check
        return other

    def inventory(self) -> Inventory:
        """List all resources of clusters in the zone, and all its TPU resources."""
        listed = self._compute.instances().list
        query = {"project": self.project, "zone": self.zone, "filter": f"labels.{CLUSTER_LABEL}:*"}
        what = f"The machines of {self}"
        with readable_answer(what):
            machines = [VirtualMachine.from_json(one) for one in list_all(listed, what, "items", **query)]
        with translated_tpu_errors():
            return Inventory(machines, self._tpu.nodes(), self._tpu.queued_resources())

    def delete_machines(self, machines: Sequence[VirtualMachine]) -> None:
        """Delete machines; return when all are gone."""
        instances = self._compute.instances()
        begun = []
        for machine in machines:
            what = f"Deleting {machine.name} in {self}"
            try:
                request = instances.delete(project=self.project, zone=self.zone, instance=machine.name)
                begun.append((what, self._changed(request, what)))
            except CloudNotFoundError:
                continue
        for what, operation in begun:
            self._wait_for(operation, what)

    def delete_slices(
        self, slices: Sequence[TpuNode], queues: Sequence[QueuedTpu], gone: Callable[[str], None]
    ) -> None:
        """Delete slices and queued resources; call ``gone`` with each name, and return when all are gone."""

        def delete(one: TpuNode | QueuedTpu) -> None:
            is_queue = isinstance(one, QueuedTpu)
            delete_one = self._tpu.delete_queued_resource if is_queue else self._tpu.delete_node
            delete_one(one.name, one.identity, check=self._check)
            gone(one.name)

        with translated_tpu_errors(self._check), ThreadPoolExecutor(MAX_CONCURRENT_CALLS) as pool:
            list(pool.map(delete, [*slices, *queues]))

    def make_disk(self, cluster: FleetCluster) -> bool:
        """Create the state disk of ``cluster`` if it is missing; return whether it was."""
        disks, what = self._compute.disks(), f"Making disk {cluster.state_disk} in {self}"
        place = {"project": self.project, "zone": self.zone}
        try:
            execute_request(disks.get(**place, disk=cluster.state_disk), f"Disk {cluster.state_disk} in {self}")
            return False
        except CloudNotFoundError:
            pass
        body = {
            "name": cluster.state_disk, "sizeGb": str(_DISK_GB), "labels": {CLUSTER_LABEL: cluster.name},
            "type": f"projects/{self.project}/zones/{self.zone}/diskTypes/{_DISK_TYPE}",
        }  # fmt: skip
        try:
            self._wait_for(self._changed(disks.insert(**place, body=body), what), what)
        except CloudConflictError:
            return False
        return True

    def delete_disk(self, name: str) -> None:
        """Delete a disk; return when it is gone."""
        what = f"Deleting disk {name} in {self}"
        try:
            request = self._compute.disks().delete(project=self.project, zone=self.zone, disk=name)
            self._wait_for(self._changed(request, what), what)
        except CloudNotFoundError:
            return

    def label_machine(self, name: str, labels: Mapping[str, str]) -> None:
        """Add ``labels`` to those of a machine."""
        instances, what = self._compute.instances(), f"Labelling {name} in {self}"
        place = {"project": self.project, "zone": self.zone, "instance": name}
        current = execute_request(instances.get(**place), what)
        with readable_answer(what):
            body = {"labels": {**current.get("labels", {}), **labels}, "labelFingerprint": current["labelFingerprint"]}
        self._wait_for(self._changed(instances.setLabels(**place, body=body), what), what)

    def label_slice(self, one: TpuNode, labels: Mapping[str, str]) -> None:
        """Add ``labels`` to a slice's current ones; does nothing if it is gone or another slice has its name.

        Google's API replaces all labels, without a condition, so this reads them just before.
        """
        self._nodes = self._nodes or google_api("tpu").projects().locations().nodes()
        name = f"projects/{self.project}/locations/{self.zone}/nodes/{one.name}"
        what = f"Labelling {one.name} in {self}"
        with suppress(CloudNotFoundError), readable_answer(what):
            current = TpuNode.from_json(execute_request(self._nodes.get(name=name), what))
            if current.identity == one.identity:
                body = {"labels": {**current.labels, **labels}}
                self._changed(self._nodes.patch(name=name, updateMask="labels", body=body), what)

    def __str__(self) -> str:
        return f"{self.project}, {self.zone}"

    def _changed(self, request: Any, what: str) -> Mapping[str, Any]:
        self._check()
        return execute_request(request, what, is_write=True)

    def _wait_for(self, operation: Mapping[str, Any], what: str) -> None:
        operations, place = self._compute.zoneOperations(), {"project": self.project, "zone": self.zone}
        deadline, pause = time.monotonic() + _OPERATION_TIMEOUT_S, _FIRST_PAUSE_S
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                minutes = _OPERATION_TIMEOUT_S / 60
                raise CloudUnreachableError(f"{what}: not done after {minutes:.0f} min. Check it in Google Cloud.")
            self._sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)
            with readable_answer(what):
                request = operations.get(operation=operation["name"], **place)
            operation = execute_request(request, what)
        with readable_answer(what):
            if error := operation.get("error"):
                raise CloudError(f"{what}: {error['errors'][0]['message']}")


@contextmanager
def translated_tpu_errors(check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Translate errors of the Cloud TPU API to errors of the fleet; ``check`` may raise their cause first."""
    try:
        yield
    except TpuDeniedError as error:
        raise CloudDeniedError(str(error)) from None
    except TpuUnreachableError as error:
        raise CloudUnreachableError(str(error)) from None
    except TpuApiError as error:
        check()
        raise CloudError(str(error)) from None
