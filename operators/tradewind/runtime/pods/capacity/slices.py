"""Which slices of a type there are, whole, and which of them nobody has taken.

A slice is whole when all its hosts are registered, and free when they answer, are not being drained, and have all their
chips left. Here is looked only; taking one is ``reservation``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.runtime.pods.capacity.groups import HostGroup
from tradewind.runtime.pods.liveness import (
    Node,
    draining_nodes,
    free_resources,
    known_nodes,
    live_nodes,
    silent_nodes,
)


@dataclass(frozen=True)
class Slice:
    """A slice with all its hosts, in the order of their worker ids."""

    name: str
    nodes: tuple[Node, ...]


def complete_slices(nodes: Iterable[Node], group: HostGroup) -> list[Slice]:
    """The slices of the group's type whose hosts are all there, by name.

    How many that are follows from the slice's topology and the chips of its hosts: Google Kubernetes Engine cuts some
    types into smaller hosts than Compute Engine does, such as v5litepod-8 into two of four chips.
    """
    by_name: dict[str, dict[str, Node]] = defaultdict(dict)
    for node in nodes:
        if node.pod_type == group.name and node.slice_name:
            by_name[node.slice_name][node.worker_id or "0"] = node
    found = []
    for name, hosts in sorted(by_name.items()):
        nodes = hosts.values()
        count = next((count for node in nodes if (count := node.slice_hosts) is not None), group.hosts)
        wanted = [str(number) for number in range(count)]
        if sorted(hosts) == sorted(wanted):
            found.append(Slice(name, tuple(hosts[worker] for worker in wanted)))
    return found


def alike(slices: Sequence[Slice]) -> list[Slice]:
    """The slices with the same number of hosts, as a pod needs them; of several such numbers the most frequent."""
    counts = Counter(len(candidate.nodes) for candidate in slices)
    return [candidate for candidate in slices if len(candidate.nodes) == counts.most_common(1)[0][0]]


_TYPE: Final = "accelerator_type:"
"""What Ray calls the resource that says a node's type of GPU, without the type."""


def free_slices(group: HostGroup, avoided: Iterable[str] = (), suspects: Collection[str] = ()) -> list[Slice]:
    """The slices that could be taken now: complete, alive, not being drained, no host in ``avoided`` (node ids).

    Those in ``suspects`` (names) are left out.
    """
    bad, free = {*avoided, *draining_nodes()}, free_resources()
    found = [candidate for candidate in complete_slices(live_nodes(), group) if is_free(candidate, group, free)]
    found = [candidate for candidate in found if candidate.name not in suspects]
    found = [candidate for candidate in found if not any(node.id in bad for node in candidate.nodes)]
    silent = silent_nodes(node for candidate in found for node in candidate.nodes)
    return [candidate for candidate in found if not any(node.id in silent for node in candidate.nodes)]


def known_slices(group: HostGroup) -> set[str]:
    """The names of all slices of the group's type that the cluster has or had."""
    return {node.slice_name for node in known_nodes() if node.pod_type == group.name and node.slice_name}


def is_free(
    candidate: Slice, group: HostGroup, free: Mapping[str, Mapping[str, float]], *, with_head: bool = True
) -> bool:
    """Whether nobody has taken any of its hosts, nor, ``with_head``, its head resource."""
    first = candidate.nodes[0]
    has_head = with_head and group.head_resource in first.resources
    if has_head and free.get(first.id, {}).get(group.head_resource, 0) < 1:
        return False
    return all(free.get(node.id, {}).get("TPU", 0) >= chips_of(node, group) for node in candidate.nodes)


def chips_of(node: Node, group: HostGroup) -> float:
    """The chips that a process on this host takes: all of them."""
    return node.chips or group.resources["TPU"]


def live_hosts(group: HostGroup) -> Counter[str]:
    """How many live hosts there are of each kind that the group could ask for: slice types, GPUs, or any."""
    if group.is_tpu:
        return Counter(node.pod_type for node in live_nodes() if node.pod_type)
    if group.has_gpus:
        return Counter(_gpu_of(node) for node in live_nodes() if node.resources.get("GPU"))
    return Counter({"CPUs": len(live_nodes())})


def _gpu_of(node: Node) -> str:
    """``2 GPUs``, or ``2 GPUs (A100)`` where Ray knows the type."""
    types = [name.removeprefix(_TYPE) for name in node.resources if name.startswith(_TYPE)]
    return f"{node.resources['GPU']:.0f} GPUs" + (f" ({', '.join(types)})" if types else "")
