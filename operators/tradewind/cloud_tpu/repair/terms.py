"""Types of a repair: snapshot, scope, health and action of slices, and the report of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from tradewind.cloud_tpu.repair.records import SliceRecord
from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.text import format_columns


class SliceHealth(Enum):
    """Health of a slice."""

    WORKS = "works"
    """Google reports it READY, and all of its hosts are registered with Ray."""
    GRACE = "wait"
    """It does not work, but may recover by itself: check again."""
    DEAD = "dead"
    """It will not recover by itself."""


class Action(Enum):
    """What to do about a slice."""

    NOTHING = "nothing"
    REPLACE = "delete and create again"
    DELETE = "delete"
    """Ray's autoscaler creates another one by itself, but never deletes this one."""
    CREATE = "create"


@dataclass(frozen=True)
class RepairSettings:
    """Waits and limits of a repair.

    Attributes:
        transition_grace_s: How long a node may be CREATING, REPAIRING, REIMAGING, RESTARTING, STARTING or STOPPING.
        start_grace_s: How long after its creation a node may take until all of its hosts are registered with Ray.
        host_grace_s: How long a host of a READY node may be away from Ray after that. While Ray knows no host of any
            slice, as after the loss of its head, ``start_grace_s`` counts instead.
        max_deletes_per_pass: Maximum number of nodes and queued resources deleted in one pass. Neither limit applies to
            resources that Google itself reports as PREEMPTED or TERMINATED: nothing is left to be lost.
        max_deletes_per_hour: Maximum number per hour; more slices than that die only together with something larger.
        stock_out_pause_s: Wait after the first refusal of a creation; doubled each time.
        max_stock_out_pause_s: Maximum wait.
    """

    transition_grace_s: float = 30 * 60.0
    start_grace_s: float = 20 * 60.0
    host_grace_s: float = 3 * 60.0
    max_deletes_per_pass: int = 4
    max_deletes_per_hour: int = 20
    stock_out_pause_s: float = 60.0
    max_stock_out_pause_s: float = 15 * 60.0


@dataclass(frozen=True)
class Scope:
    """Which slices belong to the cluster.

    Attributes:
        expected: Expected slices, or queued resources, by name, each with the body of its create call, if known
            beforehand.
        labels: A node with all of these labels belongs to the cluster, too.
    """

    expected: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def has(self, names: Iterable[str], labels: Mapping[str, str]) -> bool:
        """Return whether something with one of these names, or with these labels, belongs to the cluster."""
        return any(name in self.expected for name in names) or (
            bool(self.labels) and self.labels.items() <= labels.items()
        )


@dataclass(frozen=True)
class Snapshot:
    """Reports of Google and Ray at one moment.

    Attributes:
        nodes: Every node of the zone.
        queues: Every queued resource of the zone.
        hosts: Slice name → number of its live hosts registered with Ray; None while Ray does not answer.
        records: Slice name → record of earlier passes.
        now: Time of the snapshot, in seconds since the epoch.
    """

    nodes: Sequence[TpuNode]
    queues: Sequence[QueuedTpu]
    hosts: Mapping[str, int] | None
    records: Mapping[str, SliceRecord]
    now: float

    @cached_property
    def nodes_by_name(self) -> dict[str, TpuNode]:
        """The nodes, by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def queues_by_name(self) -> dict[str, QueuedTpu]:
        """The queued resources, by name."""
        return {queue.name: queue for queue in self.queues}


@dataclass(frozen=True)
class Finding:
    """State of one node, or of one queued resource with its nodes, and its action.

    Attributes:
        name: Its name.
        verdict: Its health.
        reason: Reason, in words.
        action: What to do now.
        slices: The names of its slices.
        slice_type: Their type, if known.
        hosts: Registered hosts and hosts, such as ``1/2``.
        trouble: In one word, what it waits for; empty if it works.
        needs_person: Whether only a user can bring it back.
        is_certain: Whether Google itself reports it gone, so that no limit applies to its deletion.
        is_queue: Whether it is a queued resource.
        identity: Identity of the judged one.
        body: Body that recreates it, if known.
    """

    name: str
    verdict: SliceHealth
    reason: str
    action: Action = Action.NOTHING
    slices: tuple[str, ...] = ()
    slice_type: str = ""
    hosts: str = ""
    trouble: str = ""
    needs_person: bool = False
    is_certain: bool = False
    is_queue: bool = False
    identity: str = ""
    body: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def hosts_alive(self) -> int:
        """Number of its hosts that were registered with Ray; 0 if Ray did not answer."""
        alive = self.hosts.partition("/")[0]
        return int(alive) if alive.isdecimal() else 0

    @property
    def is_deletion(self) -> bool:
        """Whether the action deletes something."""
        return self.action in (Action.REPLACE, Action.DELETE)


@dataclass(frozen=True)
class RepairReport:
    """Findings and actions of one pass.

    Attributes:
        findings: Every slice of the cluster.
        done: Results of actions in words, by name.
        is_dry: Whether the pass only reports.
    """

    findings: Sequence[Finding]
    done: Mapping[str, str] = field(default_factory=dict)
    is_dry: bool = False

    @property
    def is_well(self) -> bool:
        """Whether every slice worked when the pass began."""
        return all(finding.verdict is SliceHealth.WORKS for finding in self.findings)

    @property
    def needs_attention(self) -> list[Finding]:
        """Slices that no pass will bring back."""
        return [finding for finding in self.findings if finding.needs_person]

    @property
    def is_over(self) -> bool:
        """Whether further passes would not change anything."""
        return self.is_dry or all(
            finding.verdict is SliceHealth.WORKS or finding.needs_person for finding in self.findings
        )

    def rows(self) -> list[dict[str, str]]:
        """Return the table as JSON: slice, type, hosts, verdict, reason, done."""
        return [
            {
                "slice": finding.name,
                "type": finding.slice_type,
                "hosts": finding.hosts,
                "verdict": finding.verdict.value,
                "reason": finding.reason,
                "done": self.done.get(finding.name, ""),
            }
            for finding in self.findings
        ]

    def table(self) -> str:
        """Return the table as text."""
        if not self.findings:
            return "The cluster has no slices."
        heads = ("slice", "type", "hosts", "verdict")
        rows = [
            [*(row[head] for head in heads), " → ".join(filter(None, (row["reason"], row["done"])))]
            for row in self.rows()
        ]
        return "\n".join(format_columns([[*heads, "reason → done"], *rows]))
