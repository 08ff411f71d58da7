"""What there is in a zone, whose it is, and what state that makes a cluster be in.

A thing is a cluster's if its label names exactly that cluster. No name begins with another's here: ``a`` and ``a-b``
have nothing in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.fleet.cloud.heads import HEAD, RUNNING, TYPE_LABEL
from tradewind.fleet.clusters import CLUSTER_LABEL

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
