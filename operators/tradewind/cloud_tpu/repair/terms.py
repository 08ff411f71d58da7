"""The words of a repair: what was seen, whose it is, how a slice is, and what is to be done about it."""

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
    """How a slice is."""

    WORKS = "works"
    """Google calls it READY and all of its hosts are registered with Ray."""
    GRACE = "wait"
    """It does not work, but may by itself: look again."""
    DEAD = "dead"
    """It will not work again by itself."""


class Action(Enum):
    """What is to be done about a slice."""

    NOTHING = "nothing"
    REPLACE = "delete and create again"
    DELETE = "delete"
    """Ray's autoscaler makes another one by itself, but never deletes this one."""
    CREATE = "create"


@dataclass(frozen=True)
class RepairSettings:
    """How long a repair waits, and how much it does at once.

    Attributes:
        transition_grace_s: How long a node may be CREATING, REPAIRING, REIMAGING, RESTARTING, STARTING or STOPPING.
        start_grace_s: How long after its creation a node may take until all of its hosts are registered with Ray.
        host_grace_s: How long a host of a READY node may be away from Ray after that. While Ray knows no host of any
            slice, as after the loss of its head, ``start_grace_s`` counts instead.
        max_deletes_per_pass: How many nodes and queued resources are deleted in one pass at most. Neither limit is
            meant for what Google itself calls PREEMPTED or TERMINATED: there is nothing left to be lost.
        max_deletes_per_hour: How many in an hour; more slices than that die only together with something larger.
        stock_out_pause_s: How long to wait after the first refusal of a creation; doubled each time.
        max_stock_out_pause_s: The longest such wait.
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
        expected: Slices, or queued resources, that should be there, by name; and what creates each, where that is
            known beforehand: the body of a create call.
        labels: A node with all of these labels belongs to the cluster, too.
    """

    expected: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def has(self, names: Iterable[str], labels: Mapping[str, str]) -> bool:
        """Whether something with one of these names, or with these labels, belongs to the cluster."""
        return any(name in self.expected for name in names) or (
            bool(self.labels) and self.labels.items() <= labels.items()
        )


@dataclass(frozen=True)
class Snapshot:
    """What Google and Ray say at one moment.

    Attributes:
        nodes: Every node of the zone.
        queues: Every queued resource of the zone.
        hosts: Slice name → how many of its hosts are registered with Ray and alive; None while Ray does not answer.
        records: Slice name → what earlier passes wrote down.
        now: When that was, in seconds since the epoch.
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
    """What is the matter with one node, or with one queued resource and its nodes.

    Attributes:
        name: Its name.
        verdict: How it is.
        reason: Why, in words.
        action: What is to be done now.
        slices: The names of its slices.
        slice_type: Their type, where it is known.
        hosts: Registered hosts and hosts, such as ``1/2``.
        trouble: In one word, what is being waited for; empty if it works.
        needs_person: Whether nothing that this module does will bring it back.
        is_certain: Whether Google itself calls it gone, so that no limit is meant for its deletion.
        is_queue: Whether it is a queued resource.
        identity: Of what was judged.
        body: What creates it again, if that is known.
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
        """How many of its hosts were registered with Ray; 0 if Ray did not say."""
        alive = self.hosts.partition("/")[0]
        return int(alive) if alive.isdecimal() else 0

    @property
    def is_deletion(self) -> bool:
        """Whether the action deletes something."""
        return self.action in (Action.REPLACE, Action.DELETE)


# What one pass of a repair found and did, as values and as a table.


@dataclass(frozen=True)
class RepairReport:
    """What one pass found and did.

    Attributes:
        findings: Every slice of the cluster, as it was found.
        done: What was done about some of them, in words, by name.
        is_dry: Whether nothing was to be done.
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
        """What no pass will bring back."""
        return [finding for finding in self.findings if finding.needs_person]

    @property
    def is_over(self) -> bool:
        """Whether further passes would not change anything."""
        return self.is_dry or all(
            finding.verdict is SliceHealth.WORKS or finding.needs_person for finding in self.findings
        )

    def rows(self) -> list[dict[str, str]]:
        """The table as JSON: slice, type, hosts, verdict, reason, done."""
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
        """The same to be read."""
        if not self.findings:
            return "There is no slice to look after."
        heads = ("slice", "type", "hosts", "verdict")
        rows = [
            [*(row[head] for head in heads), " → ".join(filter(None, (row["reason"], row["done"])))]
            for row in self.rows()
        ]
        return "\n".join(format_columns([[*heads, "reason → done"], *rows]))
