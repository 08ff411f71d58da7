"""Hosts are reserved all at once or not at all, in placement groups whose every bundle names the slice that it means.

A slice counts as free when all its hosts are registered, answer, are not being drained, and nobody has taken any of
them; it is then taken by one placement group, so that two drivers can never hold half of what the other one needs.
Each bundle carries the slice's name, its pod type and the worker's id as label selectors: a request for a v4-8 host
cannot land on a v4-16 one. The bundle of worker 0 holds the slice's head resource, by which other programs, those that
use ``ray.util.tpu`` too, see that the slice is taken.

While nothing is free, a placement group asks for head resources only. It tells Ray's autoscaler what is wanted, and
holds the place in the queue; when it lands, the rest of those slices is taken by name, or they are given back.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.runtime.pods.environment import (
    NODE_ID_LABEL,
    POD_TYPE_LABEL,
    SLICE_NAME_LABEL,
    WORKER_ID_LABEL,
    waiting_text,
)
from tradewind.runtime.pods.groups import HostGroup
from tradewind.runtime.pods.liveness import (
    Node,
    draining_nodes,
    free_resources,
    is_autoscaled,
    known_nodes,
    live_nodes,
    silent_nodes,
)
from tradewind.runtime.pods.placements import Placements
from tradewind.runtime.pods.suspects import ELSEWHERE_SECONDS, Elsewhere, elsewhere

_SAY_EVERY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.2
"""How often to look in the first few seconds: a slice that is just being given back is free in a moment."""
_LAND_SECONDS: Final = 3.0
_COMPLETE_SECONDS: Final = 120.0
"""How long a slice whose first host is ours may take until its other hosts are there."""


class NoFreeSliceError(RuntimeError):
    """Not enough hosts became free within the time that was given."""


@dataclass(frozen=True)
class Seat:
    """One reserved host."""

    node: Node
    slice_id: int
    host: int
    """Its rank within its slice."""
    placement: Any
    bundle: int


class Reservation:
    """The hosts of one attempt, in the order of their ranks."""

    def __init__(self, seats: Sequence[Seat], num_slices: int, placements: Sequence[Any]) -> None:
        self.seats = tuple(seats)
        self.num_slices = num_slices
        self._placements = list(placements)

    @property
    def slice_names(self) -> list[str]:
        """The TPU slices in it."""
        names = [one.node.slice_name for one in self.seats if one.host == 0]
        return [name for name in names if name]

    def release(self) -> None:
        """Give everything back; does nothing the second time."""
        while self._placements:
            _remove(self._placements.pop())


@dataclass(frozen=True)
class Slice:
    """A slice with all its hosts, in the order of their worker ids."""

    name: str
    nodes: tuple[Node, ...]


def complete_slices(nodes: Iterable[Node], group: HostGroup) -> list[Slice]:
    """The slices of the group's type whose hosts are all there, by name."""
    by_name: dict[str, dict[str, Node]] = defaultdict(dict)
    for node in nodes:
        if node.pod_type == group.name and node.slice_name:
            by_name[node.slice_name][node.worker_id or "0"] = node
    wanted = [str(number) for number in range(group.hosts)]
    return [
        Slice(name, tuple(hosts[one] for one in wanted))
        for name, hosts in sorted(by_name.items())
        if sorted(hosts) == sorted(wanted)
    ]


def free_slices(group: HostGroup, avoided: Iterable[str] = (), suspects: Collection[str] = ()) -> list[Slice]:
    """The slices that could be taken now: complete, alive, not being drained, no host in ``avoided`` (node ids).

    Those in ``suspects`` (names) are left out.
    """
    bad, free = {*avoided, *draining_nodes()}, free_resources()
    found = [one for one in complete_slices(live_nodes(), group) if _is_free(one, group, free)]
    found = [one for one in found if one.name not in suspects]
    found = [one for one in found if not any(node.id in bad for node in one.nodes)]
    silent = silent_nodes(node for one in found for node in one.nodes)
    return [one for one in found if not any(node.id in silent for node in one.nodes)]


def known_slices(group: HostGroup) -> set[str]:
    """The names of all slices of the group's type that the cluster has or had."""
    return {one.slice_name for one in known_nodes() if one.pod_type == group.name and one.slice_name}


def _is_free(one: Slice, group: HostGroup, free: Mapping[str, Mapping[str, float]]) -> bool:
    first = one.nodes[0]
    if group.head_resource in first.resources and free.get(first.id, {}).get(group.head_resource, 0) < 1:
        return False
    return all(free.get(node.id, {}).get("TPU", 0) >= group.resources["TPU"] for node in one.nodes)


class Reserving:
    """Takes as many groups as ``pick`` wants of those that are free; ``run`` waits until there are enough.

    ``avoided`` are ids of nodes that are not used at all, and ``suspects`` names of slices that are used when no other
    has come for ``elsewhere_s``, or none can come.
    """

    def __init__(
        self,
        group: HostGroup,
        pick: Callable[[int], int | None],
        smallest: int,
        largest: int,
        *,
        placements: Placements,
        avoided: Iterable[str] = (),
        suspects: Iterable[str] = (),
        elsewhere_s: float = ELSEWHERE_SECONDS,
        preferred: Iterable[str] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._group = group
        self._pick = pick
        self._smallest = smallest
        self._largest = largest
        self._placements = placements
        self._avoided = set(avoided)
        self._suspects = set(suspects)
        self._elsewhere_s = elsewhere_s
        self._unfinished: set[str] = set()
        """Slices whose other hosts did not come while we held the first one; once they are whole they count again."""
        self._preferred = set(preferred)
        self._say = say
        self._demand: _Demand | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End a ``run`` in another thread: it gives back what it holds and returns None."""
        self._stopped.set()

    def run(self, timeout_s: float | None = None) -> Reservation | None:
        """The reservation; None after ``stop``. Raises NoFreeSliceError after ``timeout_s``."""
        began = time.monotonic()
        say_at = _LAND_SECONDS
        if timeout_s is not None:
            self._elsewhere_s = min(self._elsewhere_s, timeout_s / 2)
        try:
            while not self._stopped.is_set():
                waited = time.monotonic() - began
                taken = self._try(waited, hurry=waited >= _LAND_SECONDS or self._smallest == self._largest)
                if taken is not None and self._stopped.is_set():
                    taken.release()
                elif taken is not None:
                    return taken
                if timeout_s is not None and waited >= timeout_s:
                    raise NoFreeSliceError(self._in_vain(timeout_s))
                if waited >= say_at:
                    say_at = waited + _SAY_EVERY_SECONDS
                    self._say(waiting_text(self._wanted(), waited, live_hosts()))
                self._stopped.wait(_SOON_SECONDS if waited < _LAND_SECONDS else _LOOK_SECONDS)
            return None
        finally:
            self._drop_demand()

    def _in_vain(self, timeout_s: float) -> str:
        return f"No {self._wanted()} was free within {timeout_s:.0f} s."

    def _wanted(self) -> str:
        if not self._group.is_tpu:
            return f"{self._group.name} group"
        return f"{self._group.name} slice" + (f" ({self._smallest} at once)" if self._smallest > 1 else "")

    def _try(self, waited: float, *, hurry: bool) -> Reservation | None:
        """Without ``hurry`` only the largest size will do: slices that were just given back take a moment."""
        if not self._group.is_tpu:
            return self._try_hosts()
        if self._demand is not None and self._demand.has_landed():
            return self._complete(self._demand)
        free = free_slices(self._group, self._avoided, self._suspects)
        size = self._pick(len(free))
        if not hurry and size != self._largest:
            return None
        if size is None and self._suspects and not self._another_may_come(waited):
            self._forgive()
            return None
        if size is None:
            self._demand = self._demand or _Demand(self._placements, self._group, self._smallest, self._bad_slices())
            return None
        self._drop_demand()
        random.shuffle(free)  # two drivers that look at the same moment rather not take the same one first
        free.sort(key=lambda one: one.name not in self._preferred)
        return self._take(free[:size])

    def _another_may_come(self, waited: float) -> bool:
        if waited >= self._elsewhere_s:
            return False
        known, may_grow = known_slices(self._group), is_autoscaled()
        found = elsewhere(self._suspects, own=(), free=(), known=known, smallest=self._smallest, may_grow=may_grow)
        return found is not Elsewhere.NOWHERE

    def _forgive(self) -> None:
        """Take suspected slices too from now on."""
        self._say(f"no other {self._wanted()} came: {', '.join(sorted(self._suspects))} may be taken again")
        self._suspects.clear()
        self._drop_demand()

    def _take(self, slices: Sequence[Slice], besides: Sequence[Any] = ()) -> Reservation | None:
        """All hosts of these slices, in one placement group; None if somebody else was quicker."""
        bundles = [self._bundle(node, with_head=not besides) for one in slices for node in one.nodes]
        selectors = [_only(node) for one in slices for node in one.nodes]
        placement = self._placements.make(bundles, selectors)
        if not placement.wait(_LAND_SECONDS):
            _remove(placement)
            return None
        nodes = [node for one in slices for node in one.nodes]
        return Reservation(self._seats(nodes, placement), len(slices), [placement, *besides])

    def _bundle(self, node: Node, *, with_head: bool) -> dict[str, float]:
        bundle = dict(self._group.resources)
        if with_head and self._group.head_resource in node.resources:
            bundle[self._group.head_resource] = 1
        return bundle

    def _seats(self, nodes: Sequence[Node], placement: Any) -> list[Seat]:
        hosts = self._group.hosts
        return [Seat(node, at // hosts, at % hosts, placement, at) for at, node in enumerate(nodes)]

    def _complete(self, demand: _Demand) -> Reservation | None:
        """Take the rest of the slices whose heads we hold, or give them back."""
        heads, nodes = set(demand.node_ids()), live_nodes()
        ours = [one for one in complete_slices(nodes, self._group) if one.nodes[0].id in heads]
        hosts = [node for one in ours for node in one.nodes]
        self._avoided |= silent_nodes(hosts)
        if any(one.id in self._avoided | set(draining_nodes()) for one in hosts):
            self._drop_demand()
            return None
        if len(ours) < len(heads):
            if demand.age() > _COMPLETE_SECONDS:
                whole = {one.name for one in ours}
                self._unfinished |= {one.slice_name for one in nodes if one.id in heads and one.slice_name} - whole
                self._drop_demand()
            return None
        taken = self._take(ours, besides=[demand.placement])
        self._demand = None
        if taken is None:
            _remove(demand.placement)
        return taken

    def _bad_slices(self) -> set[str]:
        """The slices that a demand must not land on."""
        bad = {*self._avoided, *draining_nodes()}
        return (
            self._unfinished
            | self._suspects
            | {one.slice_name for one in live_nodes() if one.slice_name and one.id in bad}
        )

    def _drop_demand(self) -> None:
        if self._demand is not None:
            _remove(self._demand.placement)
            self._demand = None

    def _try_hosts(self) -> Reservation | None:
        """Any different hosts that have enough; the placement group itself waits in Ray's queue."""
        if self._demand is None:
            self._demand = _Demand(self._placements, self._group, self._smallest, self._avoided)
        if not self._demand.has_landed():
            return None
        by_id = {one.id: one for one in live_nodes()}
        nodes = [by_id[one] for one in self._demand.node_ids() if one in by_id]
        silent = silent_nodes(nodes)
        if silent or len(nodes) < self._group.hosts * self._smallest:
            self._avoided |= silent
            self._drop_demand()
            return None
        placement, self._demand = self._demand.placement, None
        return Reservation(self._seats(nodes, placement), self._smallest, [placement])


class _Demand:
    """A placement group that waits: for the heads of slices, or for the hosts of groups themselves."""

    def __init__(self, placements: Placements, group: HostGroup, num_groups: int, bad: Iterable[str]) -> None:
        label = SLICE_NAME_LABEL if group.is_tpu else NODE_ID_LABEL
        bundle = {group.head_resource: 1} if group.is_tpu else dict(group.resources)
        count = num_groups if group.is_tpu else num_groups * group.hosts
        avoid = {label: f"!in({','.join(sorted(bad))})"} if bad else {}
        self.placement = placements.make([bundle] * count, [avoid] * count)
        self._landed_at: float | None = None

    def has_landed(self) -> bool:
        if self._landed_at is None and self.placement.wait(0):
            self._landed_at = time.monotonic()
        return self._landed_at is not None

    def age(self) -> float:
        """Seconds since it landed."""
        return 0.0 if self._landed_at is None else time.monotonic() - self._landed_at

    def node_ids(self) -> list[str]:
        from ray.util.placement_group import placement_group_table

        at = placement_group_table(self.placement)["bundles_to_node_id"]
        return [at[bundle] for bundle in sorted(at)]


def live_hosts() -> Counter[str]:
    """How many live hosts of each slice type there are."""
    return Counter(one.pod_type for one in live_nodes() if one.pod_type)


def _only(node: Node) -> dict[str, str]:
    """The label selector that only this host of its slice meets."""
    labels = (SLICE_NAME_LABEL, POD_TYPE_LABEL, WORKER_ID_LABEL)
    return {label: node.labels[label] for label in labels if label in node.labels}


def _remove(placement: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    try:
        remove_placement_group(placement)
    except Exception:  # Ray is going down, and the reservation with it
        return
