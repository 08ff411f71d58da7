"""What there is in a zone, whose it is, and what state that makes a cluster be in.

A thing is a cluster's if its label names exactly that cluster. No name begins with another's here: ``a`` and ``a-b``
have nothing in common.
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
)
from tradewind.fleet.cloud.heads import HEAD, RUNNING, TYPE_LABEL
from tradewind.fleet.clusters import CLUSTER_LABEL, FleetCluster

CONFIG_LABEL: Final = "tradewind-config"
"""The label with the hash of the file that a node was made from."""
LAUNCH_LABEL: Final = "ray-launch-config"
"""Ray's label with the hash of what a node was asked for: of another one, Ray makes the node anew."""
NODE_TYPE_LABEL: Final = "ray-user-node-type"
STATUS_LABEL: Final = "ray-node-status"
"""Ray's label that says how far a node is set up."""
SET_UP: Final = "up-to-date"
NOT_SET_UP: Final = "uninitialized"
"""Of such a node, Ray's autoscaler runs all commands again."""
READY: Final = "READY"
_COMING: Final = frozenset({"PROVISIONING", "STAGING", RUNNING})
_OF_A_TPU: Final = "tpu_cores"
"""The label of the instances that stand behind TPU VMs, which go with those."""


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
        """The instance that the API describes."""
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
        """Whether it runs, or will."""
        return self.status in _COMING


class ClusterState(Enum):
    """What state a cluster is in, by what there is of it."""

    ABSENT = "there is nothing of it"
    HEADLESS = "it has slices and no head"
    HALF_MADE = "its head is there, and was never set up to the end"
    UP = "its head was set up"
    DOUBLE = "it has more than one head"


@dataclass(frozen=True)
class Inventory:
    """What there is in one zone, or of one cluster in it."""

    machines: Sequence[VirtualMachine] = ()
    slices: Sequence[TpuNode] = ()
    queues: Sequence[QueuedTpu] = ()

    def of(self, cluster: str) -> Inventory:
        """What of it belongs to ``cluster``."""
        slices = [one for one in self.slices if one.labels.get(CLUSTER_LABEL) == cluster]
        return Inventory(
            [one for one in self.machines if one.labels.get(CLUSTER_LABEL) == cluster and _OF_A_TPU not in one.labels],
            slices,
            [one for one in self.queues if self._owner_of(one) == cluster],
        )

    def clusters(self) -> list[str]:
        """The names of all clusters that something is labelled with."""
        names = {one.labels.get(CLUSTER_LABEL) for one in self.machines}
        names |= {one.labels.get(CLUSTER_LABEL) for one in self.slices}
        names |= {self._owner_of(one) for one in self.queues}
        return sorted(name for name in names if name is not None)

    @property
    def count(self) -> int:
        """How many things there are."""
        return len(self.machines) + len(self.slices) + len(self.queues)

    @property
    def heads(self) -> list[VirtualMachine]:
        """The heads that run, or will."""
        return [one for one in self.machines if one.is_head and one.is_coming]

    @property
    def dead_heads(self) -> list[VirtualMachine]:
        """Those that do not: to Ray they are not there, but they hold on to the state disk."""
        return [one for one in self.machines if one.is_head and not one.is_coming]

    @property
    def state(self) -> ClusterState:
        """What state this makes a cluster be in."""
        match self.heads:
            case []:
                return ClusterState.HEADLESS if self.count else ClusterState.ABSENT
            case [head]:
                return ClusterState.UP if head.labels.get(STATUS_LABEL) == SET_UP else ClusterState.HALF_MADE
        return ClusterState.DOUBLE

    def _owner_of(self, queue: QueuedTpu) -> str | None:
        """The one cluster that a queued resource and all of the slices that it brought are labelled with."""
        labels = {one.labels.get(CLUSTER_LABEL) for one in self.slices if one.queue == queue.name}
        if CLUSTER_LABEL in queue.labels:
            labels.add(queue.labels[CLUSTER_LABEL])
        return labels.pop() if len(labels) == 1 else None


# How a cluster is: what Google Cloud has of it, what Ray says, who changes it, and what belongs to no cluster.


@dataclass(frozen=True)
class RayStatus:
    """What the head says.

    Attributes:
        version: Of Ray; None if the head does not answer.
        hosts: Slice → how many of its hosts are in Ray.
        used: Resource → how much of it is in use, and how much there is.
        why: Why the head does not answer.
    """

    version: str | None = None
    hosts: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class NodeLine:
    """One machine, slice or queued resource.

    Attributes:
        kind: ``head``, a slice type, or what else it is.
        age_s: How long ago it was created; None if that is not told.
        in_ray: How many of its hosts are in Ray; None if that is not known, or does not matter.
        is_current: Whether it was made from the file as it is now; None if it does not say.
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
    """How one cluster is."""

    cluster: FleetCluster
    state: str
    lines: Sequence[NodeLine]
    ray: RayStatus
    marker: str = ""

    @staticmethod
    def of(
        cluster: FleetCluster, found: Inventory, config_hash: str, ray: RayStatus, now: float, marker: str = ""
    ) -> ClusterReport:
        """From what was ``found`` of it at ``now``."""

        def age(created_at: float | None) -> float | None:
            return None if created_at is None else max(0.0, now - created_at)

        def is_current(labels: Mapping[str, str]) -> bool | None:
            return labels[CONFIG_LABEL] == config_hash if CONFIG_LABEL in labels else None

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
        """Kind and state → how many there are."""
        return Counter((line.kind, line.state) for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "name": self.cluster.name, "project": self.cluster.project, "zone": self.cluster.zone, "state": self.state,
            "image": self.cluster.full_image, "marker": self.marker or None, "ray_version": self.ray.version,
            "head_does_not_answer": self.ray.why or None,
            "used": {name: {"used": used, "total": total} for name, (used, total) in self.ray.used.items()},
            "nodes": [vars(line) for line in self.lines],
        }  # fmt: skip

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The lines as cells of a table."""
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


# One zone of a project, as far as clusters live in it: what there is, and how it goes away.

_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
_OPERATION_S: Final = 15 * 60.0
_DISK_GB: Final = 200
_DISK_TYPE: Final = "pd-balanced"


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
        """The same zone, of which nothing is changed any more once ``check`` raises; it is asked before each change."""
        other = copy.copy(self)
        other._check = check
        return other

    def inventory(self) -> Inventory:
        """Everything in it that Ray, or somebody for Ray, has made."""
        listed = self._compute.instances().list
        query = {"project": self.project, "zone": self.zone, "filter": f"labels.{CLUSTER_LABEL}:*"}
        machines = [
            VirtualMachine.from_json(one) for one in list_all(listed, f"The machines of {self}", "items", **query)
        ]
        with translated_tpu_errors():
            return Inventory(machines, self._tpu.nodes(), self._tpu.queued_resources())

    def delete_machines(self, machines: Sequence[VirtualMachine]) -> None:
        """Returns when all of them are gone."""
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
        """Returns when all of them are gone, each of which is told to ``gone``."""

        def delete(one: TpuNode | QueuedTpu) -> None:
            is_queue = isinstance(one, QueuedTpu)
            delete_one = self._tpu.delete_queued_resource if is_queue else self._tpu.delete_node
            delete_one(one.name, one.identity, check=self._check)
            gone(one.name)

        with translated_tpu_errors(self._check), ThreadPoolExecutor(MAX_CONCURRENT_CALLS) as pool:
            list(pool.map(delete, [*slices, *queues]))

    def make_disk(self, cluster: FleetCluster) -> bool:
        """Have the state disk of ``cluster``; whether it had to be made."""
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
        """Returns when it is gone."""
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
        there = execute_request(instances.get(**place), what)
        body = {"labels": {**there.get("labels", {}), **labels}, "labelFingerprint": there["labelFingerprint"]}
        self._wait_for(self._changed(instances.setLabels(**place, body=body), what), what)

    def label_slice(self, one: TpuNode, labels: Mapping[str, str]) -> None:
        """Add ``labels`` to those that a slice has by now; nothing if it is gone, or another one has its name.

        Google takes all labels of a slice at once, and knows no condition for that, so they are read just before.
        """
        self._nodes = self._nodes or google_api("tpu").projects().locations().nodes()
        name = f"projects/{self.project}/locations/{self.zone}/nodes/{one.name}"
        what = f"Labelling {one.name} in {self}"
        with suppress(CloudNotFoundError):
            there = TpuNode.from_json(execute_request(self._nodes.get(name=name), what))
            if there.identity == one.identity:
                body = {"labels": {**there.labels, **labels}}
                self._changed(self._nodes.patch(name=name, updateMask="labels", body=body), what)

    def __str__(self) -> str:
        return f"{self.project}, {self.zone}"

    def _changed(self, request: Any, what: str) -> Mapping[str, Any]:
        self._check()
        return execute_request(request, what, is_write=True)

    def _wait_for(self, operation: Mapping[str, Any], what: str) -> None:
        operations, place = self._compute.zoneOperations(), {"project": self.project, "zone": self.zone}
        deadline, pause = time.monotonic() + _OPERATION_S, _FIRST_PAUSE_S
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                raise CloudUnreachableError(f"{what}: it is not done after {_OPERATION_S / 60:.0f} min: look at it.")
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            operation = execute_request(operations.get(operation=operation["name"], **place), what)
        if error := operation.get("error"):
            raise CloudError(f"{what}: {error['errors'][0]['message']}")


@contextmanager
def translated_tpu_errors(check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The errors of the Cloud TPU API as errors of the fleet; before that what ``check`` raises, which may be why."""
    try:
        yield
    except TpuDeniedError as error:
        raise CloudDeniedError(str(error)) from None
    except TpuUnreachableError as error:
        raise CloudUnreachableError(str(error)) from None
    except TpuApiError as error:
        check()
        raise CloudError(str(error)) from None
