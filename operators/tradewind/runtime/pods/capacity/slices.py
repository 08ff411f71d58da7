"""Which slices of a type there are, whole, and which of them nobody has taken.

A slice is whole when all its hosts are registered, and free when they answer, are not being drained, and have all their
chips left. Here is looked only; taking one is ``reservation``.
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
    known_nodes,
    live_nodes,
    unresponsive_nodes,
)
from tradewind.steps import Hosts, TpuSlice

# What one group of hosts is: a TPU slice, or a number of hosts with CPUs or GPUs. A group is had whole or not at all.
#
# Nothing in here talks to Ray.

_A_LITTLE: Final = 0.001  # of a resource that only says what a node is, as Ray itself asks for it


@dataclass(frozen=True)
class HostGroup:
    """The hosts that live and die together, and what the process on each of them takes."""

    name: str
    """What people read: ``v4-16``, or ``2-host GPU``."""
    hosts: int
    resources: Mapping[str, float] = field(hash=False)
    """Of one host, in Ray's words."""
    shape: SliceType | None = None
    """The slice type, if this is a TPU slice."""

    @classmethod
    def of(cls, wanted: TpuSlice | Hosts) -> HostGroup:
        """What a step's resources ask for."""
        if isinstance(wanted, TpuSlice):
            return cls.of_slice(wanted.slice_type)
        return cls.of_hosts(wanted.count, num_cpus=wanted.num_cpus, gpus=wanted.gpus, gpu_type=wanted.gpu_type)

    @classmethod
    def of_slice(cls, wanted: SliceType | str) -> HostGroup:
        """One slice of this type. Raises UnknownSliceTypeError."""
        shape = slice_type(wanted) if isinstance(wanted, str) else wanted
        return cls(shape.name, shape.hosts, {"TPU": shape.chips_per_host}, shape)

    @classmethod
    def of_hosts(cls, count: int, *, num_cpus: float = 1.0, gpus: int = 0, gpu_type: str | None = None) -> HostGroup:
        """``count`` different hosts, each with so many CPUs and GPUs (of this type) for the process."""
        if count < 1:
            raise ValueError(f"A group of {count} hosts: give a number from 1 up.")
        resources: dict[str, float] = {"CPU": num_cpus}
        if gpus:
            resources["GPU"] = gpus
        if gpu_type:
            resources[f"accelerator_type:{gpu_type}"] = _A_LITTLE
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
        """What worker 0 of a slice of this type has one of."""
        return head_resource(self.name)


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


def uniform_slices(slices: Sequence[Slice]) -> list[Slice]:
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
    silent = unresponsive_nodes(node for candidate in found for node in candidate.nodes)
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
