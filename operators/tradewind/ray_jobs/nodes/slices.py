"""The TPU slices of a cluster as Ray sees them: which hosts are there, and whether they are free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tradewind.cloud_tpu.ray_labels import POD_TYPE_LABEL, SLICE_NAME_LABEL, WORKER_ID_LABEL
from tradewind.ray_jobs.nodes.nodes import NodeFacts


@dataclass(frozen=True)
class RegisteredSlice:
    """One slice of which Ray knows at least one live host.

    Attributes:
        name: Its name.
        slice_type: Its type, such as ``v4-16``.
        hosts: How many of its hosts are alive.
        is_free: Whether all chips of these hosts are unused; None where Ray does not tell.
    """

    name: str
    slice_type: str
    hosts: int
    is_free: bool | None


def registered_slices(nodes: Iterable[NodeFacts]) -> list[RegisteredSlice]:
    """The slices with live hosts, by name."""
    by_name: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in nodes:
        if node.is_alive and (name := node.labels.get(SLICE_NAME_LABEL)):
            by_name[name].append(node)
    return [_slice(name, by_name[name]) for name in sorted(by_name)]


def hosts_alive(nodes: Iterable[NodeFacts]) -> dict[str, int]:
    """Slice name → how many of its hosts are alive."""
    return {known.name: known.hosts for known in registered_slices(nodes)}


def _slice(name: str, nodes: list[NodeFacts]) -> RegisteredSlice:
    """A host that came back is there twice until Ray has noticed that it had been away: it counts once."""
    hosts = {node.labels.get(WORKER_ID_LABEL) or node.node_id for node in nodes}
    chips = [None if node.free is None else node.free.get("TPU") == node.total.get("TPU") for node in nodes]
    is_free = False if False in chips else None if None in chips else True
    return RegisteredSlice(name, nodes[0].labels.get(POD_TYPE_LABEL, ""), len(hosts), is_free)
