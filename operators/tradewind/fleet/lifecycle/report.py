"""How a cluster is: what Google Cloud has of it, what Ray says, who changes it, and what belongs to no cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tradewind.cloud_tpu.resources import WITHOUT_MACHINES
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.lifecycle.inventory import CONFIG_LABEL, Inventory


@dataclass(frozen=True)
class RaySide:
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
    ray: RaySide
    marker: str = ""

    @staticmethod
    def of(
        cluster: FleetCluster, found: Inventory, config_hash: str, ray: RaySide, now: float, marker: str = ""
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
