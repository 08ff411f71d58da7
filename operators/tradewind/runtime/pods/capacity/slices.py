"""Groups of hosts, and the complete and the free slices of a type.

A group is a TPU slice, or a number of hosts with CPUs or GPUs; a pod gets all its hosts or none. A slice is complete
when all its hosts are registered, and free when they answer, are not being drained, and have all their chips left. This
module only reads; ``reservation`` reserves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tradewind.cloud_tpu.slice_types import SliceType, head_resource, slice_type
from tradewind.runtime.pods.nodes import (
    Node,
    draining_nodes,
    free_resources,
    live_nodes,
    unresponsive_nodes,
)
from tradewind.steps import Hosts, TpuSlice

_MARKER_AMOUNT: Final = 0.001  # of a resource that only marks a node's type, as Ray itself requests it
_TYPE: Final = "accelerator_type:"
"""Prefix of the Ray resource that marks a node's type of GPU."""


@dataclass(frozen=True)
class HostGroup:
    """Hosts that fail together, and the resources of the process on each of them."""

    name: str
    """For users: ``v4-16``, or ``2-host GPU``."""
    hosts: int
    resources: Mapping[str, float] = field(hash=False)
    """Ray resources of one host."""
    shape: SliceType | None = None
    """The slice type, if this is a TPU slice."""

    @classmethod
    def of(cls, wanted: TpuSlice | Hosts) -> HostGroup:
        """Return the group that a step's resources request."""
        if isinstance(wanted, TpuSlice):
            return cls.of_slice(wanted.slice_type)
        return cls.of_hosts(wanted.count, num_cpus=wanted.num_cpus, gpus=wanted.gpus, gpu_type=wanted.gpu_type)

    @classmethod
    def of_slice(cls, wanted: SliceType | str) -> HostGroup:
        """Return one slice of this type. Raises UnknownSliceTypeError."""
        shape = slice_type(wanted) if isinstance(wanted, str) else wanted
        return cls(shape.name, shape.hosts, {"TPU": shape.chips_per_host}, shape)

    @classmethod
    def of_hosts(cls, count: int, *, num_cpus: float = 1.0, gpus: int = 0, gpu_type: str | None = None) -> HostGroup:
        """Return ``count`` different hosts, each with these CPUs and GPUs for the process."""
        resources: dict[str, float] = {"CPU": num_cpus}
        if gpus:
            resources["GPU"] = gpus
        if gpu_type:
            resources[f"{_TYPE}{gpu_type}"] = _MARKER_AMOUNT
        return cls(f"{count}-host {gpu_type or ('GPU' if gpus else 'CPU')}", count, resources)

    @property
    def is_tpu(self) -> bool:
        return self.shape is not None

    @property
    def has_gpus(self) -> bool:
        return "GPU" in self.resources

    @property
    def has_accelerators(self) -> bool:
        return self.is_tpu or self.has_gpus

    @property
    def head_resource(self) -> str:
        """The resource of which worker 0 of a slice of this type has one."""
        return head_resource(self.name)


@dataclass(frozen=True)
class Slice:
    """A slice with all its hosts, in the order of their worker ids."""

    name: str
    nodes: tuple[Node, ...]


def complete_slices(nodes: Iterable[Node], group: HostGroup) -> list[Slice]:
    """Return the slices of the group's type whose hosts are all registered, by name.

    The number of hosts follows from the slice's topology and the chips of its hosts: Google Kubernetes Engine cuts some
    types into smaller hosts than Compute Engine does, for example v5litepod-8 into two of four chips.
    """
    by_name: dict[str, dict[str, Node]] = defaultdict(dict)
    for node in nodes:
        if node.pod_type == group.name and node.slice_name:
            by_name[node.slice_name][node.worker_id or "0"] = node
    slices = []
    for name, hosts in sorted(by_name.items()):
        nodes = hosts.values()
        count = next((count for node in nodes if (count := node.slice_hosts) is not None), group.hosts)
        wanted = [str(number) for number in range(count)]
        if sorted(hosts) == sorted(wanted):
            slices.append(Slice(name, tuple(hosts[worker] for worker in wanted)))
    return slices


def uniform_slices(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices with the most frequent number of hosts: a pod needs slices of one size."""
    counts = Counter(len(candidate.nodes) for candidate in slices)
    return [candidate for candidate in slices if len(candidate.nodes) == counts.most_common(1)[0][0]]


def free_slices(group: HostGroup, avoided: Iterable[str] = (), blocked: Collection[str] = ()) -> list[Slice]:
    """Return the slices that could be reserved now: complete, alive and not being drained.

    Slices with a host in ``avoided`` (node ids) and those in ``blocked`` (names) are left out.
    """
    bad, free = {*avoided, *draining_nodes()}, free_resources()
    slices = [each for each in complete_slices(live_nodes(), group) if is_free(each, group, free)]
    slices = [each for each in slices if each.name not in blocked]
    slices = [each for each in slices if not any(node.id in bad for node in each.nodes)]
    unresponsive = unresponsive_nodes(node for each in slices for node in each.nodes)
    return [each for each in slices if not any(node.id in unresponsive for node in each.nodes)]


def known_slices(group: HostGroup) -> set[str]:
    """Return the names of all slices of the group's type that the cluster has or had."""
    nodes = live_nodes(with_dead=True)
    return {node.slice_name for node in nodes if node.pod_type == group.name and node.slice_name}


def is_free(
    candidate: Slice, group: HostGroup, free: Mapping[str, Mapping[str, float]], *, with_head: bool = True
) -> bool:
    """Whether all chips of the slice are free, and ``with_head`` also its head resource."""
    first = candidate.nodes[0]
    has_head = with_head and group.head_resource in first.resources
    if has_head and free.get(first.id, {}).get(group.head_resource, 0) < 1:
        return False
    return all(free.get(node.id, {}).get("TPU", 0) >= chips_of(node, group) for node in candidate.nodes)


def chips_of(node: Node, group: HostGroup) -> float:
    """Return the chips that a process on this host takes: all of them."""
    return node.chips or group.resources["TPU"]


def live_hosts(group: HostGroup) -> Counter[str]:
    """Count the live hosts of each kind that the group could request: slice types, GPUs, or any."""
    if group.is_tpu:
        return Counter(node.pod_type for node in live_nodes() if node.pod_type)
    if group.has_gpus:
        return Counter(_gpu_of(node) for node in live_nodes() if node.resources.get("GPU"))
    return Counter({"CPUs": len(live_nodes())})


def _gpu_of(node: Node) -> str:
    """Return ``2 GPUs``, or ``2 GPUs (A100)`` if Ray knows the type."""
    types = [name.removeprefix(_TYPE) for name in node.resources if name.startswith(_TYPE)]
    return f"{node.resources['GPU']:.0f} GPUs" + (f" ({', '.join(types)})" if types else "")
