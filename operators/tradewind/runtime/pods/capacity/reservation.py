"""Reserve hosts in placement groups, all at once or not at all, and avoid slices on which a pod failed.

A slice is free when all its hosts are registered, answer, are not being drained, and have all their chips left. One
placement group then takes it, so that two drivers can never hold half of what the other needs. Each bundle has the
slice's name, its pod type and the worker's id as label selectors, so a request for a v4-8 host cannot land on a v4-16
one. The bundle of worker 0 holds the slice's head resource, which shows other programs that the slice is taken, also
those that use ``ray.util.tpu``.

While no slice is free, a placement group requests head resources only. It signals the demand to Ray's autoscaler and
keeps the place in the queue. When it lands, the allocator reserves the rest of those slices by name, or releases them.

A reservation is released when its driver dies, also if the driver is a Ray task or an actor. Ray removes a placement
group when the job that made it ends, but not when a worker dies, and the slice would be lost until the job ends. So an
actor on the worker's node makes the worker's placement groups: it watches the worker, ends when the worker does, and
its placement groups end with it.

A pod leaves a slice on which it failed, if there is another. It blocks a slice where it failed before its first step,
stalled, or failed twice alike. A blocked slice is the last choice: another free slice comes first, and one that may
come is waited for, but not for ever.
"""

from __future__ import annotations

import enum
import os
import random
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import NODE_ID_LABEL, POD_TYPE_LABEL, SLICE_NAME_LABEL, WORKER_ID_LABEL
from tradewind.runtime.pods.capacity.slices import (
    HostGroup,
    Slice,
    chips_of,
    complete_slices,
    free_slices,
    is_free,
    known_slices,
    live_hosts,
    uniform_slices,
)
from tradewind.runtime.pods.nodes import (
    Node,
    draining_nodes,
    free_resources,
    is_autoscaled,
    live_nodes,
    unresponsive_nodes,
)
from tradewind.runtime.pods.process_env import waiting_text
from tradewind.runtime.pods.verdicts import Cause, Incident

RELOCATION_WAIT_S: Final = 300.0
"""How long a pod waits for another slice than a free blocked one."""
_STRATEGY: Final = "STRICT_SPREAD"
_SAY_EVERY_S: Final = 60.0
_POLL_S: Final = 1.0
_SOON_S: Final = 0.2
"""Poll interval in the first few seconds: a slice that is just being released is free in a moment."""
_LAND_S: Final = 3.0
_KEEP_S: Final = 120.0
"""How long a placement group on slices that look free may take to land: Ray's head can be slow."""
_COMPLETE_S: Final = 120.0
"""How long the other hosts of a slice may take to join after its first host was reserved."""


class Placements:
    """Makes placement groups that end with this process; used by one thread at a time."""

    def __init__(self) -> None:
        self._maker: Any = None

    def make(self, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]) -> Any:
        """Make a placement group of these bundles, each on its own node that meets its label selector."""
        import ray
        from ray._private.worker import SCRIPT_MODE, global_worker
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if global_worker.mode == SCRIPT_MODE:
            return _make(bundles, selectors)
        if self._maker is None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            options = {"num_cpus": 0, "max_restarts": 0, "lifetime": "detached", "scheduling_strategy": here}
            self._maker = ray.remote(PlacementMaker).options(**options).remote(os.getpid())
        return ray.get(self._maker.make.remote(bundles, selectors))

    def close(self) -> None:
        """Remove the remaining placement groups; those of a driver go when it ends."""
        import ray

        if self._maker is not None:
            with suppress(Exception):  # Ray is shutting down, and the actor with it
                ray.kill(self._maker)
            self._maker = None


class PlacementMaker:
    """Actor that makes placement groups for ``owner``, a process on this machine."""

    def __init__(self, owner: int) -> None:
        self._owner = os.pidfd_open(owner)
        threading.Thread(target=self._watch, daemon=True, name="watch-owner").start()

    def make(self, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]) -> Any:
        return _make(bundles, selectors)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._owner, select.POLLIN)
        poller.poll()
        os._exit(0)  # Ray removes the placement groups of a detached actor when it ends


def _make(bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]) -> Any:
    from ray.util.placement_group import placement_group

    return placement_group(
        [dict(bundle) for bundle in bundles],
        strategy=_STRATEGY,
        bundle_label_selector=[dict(selector) for selector in selectors],
    )


class Relocation(enum.Enum):
    """Whether a pod can continue without its blocked slices. The values end a sentence of the log."""

    AVAILABLE = "the pod continues on another"
    EXPECTED = "the pod waits for another, which may come"
    UNAVAILABLE = "but there is no other, so the pod stays"


def should_block(incident: Incident, *, has_stepped: bool) -> bool:
    """Whether the incident is a reason to avoid the slice that it names."""
    if incident.cause.is_preemption or incident.slice_name is None:
        return False
    return incident.cause is Cause.SILENT or not has_stepped


def find_relocation(
    blocked: Collection[str],
    *,
    own: Collection[str],
    free: Collection[str],
    known: Collection[str],
    smallest: int,
    may_grow: bool,
) -> Relocation:
    """Return whether a pod can continue without its blocked slices.

    Args:
        blocked: The slices to avoid.
        own: Those that the pod holds.
        free: Those that it could reserve now.
        known: Those of its type that the cluster has or had: used by others, or gone and perhaps replaced.
        smallest: How many slices it needs at least.
        may_grow: Whether the cluster adds slices by itself.
    """
    avoided = set(blocked)
    if len((set(own) | set(free)) - avoided) >= smallest:
        return Relocation.AVAILABLE
    may_come = may_grow or len((set(own) | set(known)) - avoided) >= smallest
    return Relocation.EXPECTED if may_come else Relocation.UNAVAILABLE


class SliceBlocklist:
    """The slices that a pod avoids."""

    def __init__(self, smallest: int) -> None:
        self._smallest = smallest
        self._waits = True
        self.names: set[str] = set()
        self.nodes: set[str] = set()
        """The ids of their nodes."""

    @property
    def relocation_wait_s(self) -> float:
        """How long to wait for another slice: 0 once a wait was without success."""
        return RELOCATION_WAIT_S if self._waits else 0.0

    def note_reserved(self, slices: Collection[str]) -> None:
        """Note that the pod has these slices now."""
        if self.names:
            self._waits = not self.names & set(slices)

    def note_replaced(self, slices: Collection[str]) -> None:
        """Forget slices whose machines are gone: new machines come under their names."""
        self.names -= set(slices)

    def relocation(
        self, incident: Incident, own: Collection[str], free: Collection[str], known: Collection[str], may_grow: bool
    ) -> Relocation:
        """Return whether the pod can continue without these slices and the incident's."""
        if incident.cause.is_preemption or incident.slice_name is None:
            return Relocation.UNAVAILABLE
        return find_relocation(
            {*self.names, incident.slice_name},
            own=own,
            free=free,
            known=known if self._waits else (),
            smallest=self._smallest,
            may_grow=may_grow and self._waits,
        )

    def add(self, name: str, nodes: Collection[str]) -> None:
        """Avoid this slice from now on."""
        self.names.add(name)
        self.nodes |= set(nodes)


class NoFreeSliceError(RuntimeError):
    """Not enough hosts became free within the timeout."""


@dataclass(frozen=True)
class ReservedHost:
    """One reserved host."""

    node: Node
    slice_id: int
    host: int
    """Its rank within its slice."""
    placement: Any
    bundle: int


class Reservation:
    """The hosts of one attempt, in the order of their ranks."""

    def __init__(self, hosts: Sequence[ReservedHost], num_slices: int, placements: Sequence[Any]) -> None:
        self.hosts = tuple(hosts)
        self.num_slices = num_slices
        self._placements = list(placements)

    @property
    def slice_names(self) -> list[str]:
        """Its TPU slices."""
        names = [host.node.slice_name for host in self.hosts if host.host == 0]
        return [name for name in names if name]

    def release(self) -> None:
        """Release all hosts; does nothing the second time."""
        while self._placements:
            _remove(self._placements.pop())


class SliceAllocator:
    """Reserves as many of the free groups as ``pick`` returns; ``run`` waits until there are enough.

    ``avoided`` are ids of nodes that it never uses. ``blocked`` are names of slices that it uses only when no other has
    come for ``relocation_wait_s``, or none can come.
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
        blocked: Iterable[str] = (),
        relocation_wait_s: float = RELOCATION_WAIT_S,
        preferred: Iterable[str] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._group = group
        self._pick = pick
        self._smallest = smallest
        self._largest = largest
        self._placements = placements
        self._avoided = set(avoided)
        self._blocked = set(blocked)
        self._relocation_wait_s = relocation_wait_s
        self._unfinished: set[str] = set()
        """Slices whose other hosts did not join while their first one was reserved; complete ones count again."""
        self._preferred = set(preferred)
        self._say = say
        self._demand: _Demand | None = None
        self._taking: _Taking | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End a ``run`` in another thread: it releases its hosts and returns None."""
        self._stopped.set()

    def run(self, timeout_s: float | None = None) -> Reservation | None:
        """Return the reservation; None after ``stop``. Raises NoFreeSliceError after ``timeout_s``."""
        began = time.monotonic()
        say_at = _LAND_S
        if timeout_s is not None:
            self._relocation_wait_s = min(self._relocation_wait_s, timeout_s / 2)
        try:
            while not self._stopped.is_set():
                waited = time.monotonic() - began
                reservation = self._try(waited, any_size=waited >= _LAND_S or self._smallest == self._largest)
                if reservation is not None and self._stopped.is_set():
                    reservation.release()
                elif reservation is not None:
                    return reservation
                if timeout_s is not None and waited >= timeout_s:
                    raise NoFreeSliceError(f"No {self._wanted()} was free within {timeout_s:.0f} s.")
                if waited >= say_at:
                    say_at = waited + _SAY_EVERY_S
                    kind = "TPU" if self._group.is_tpu else "GPU" if self._group.has_gpus else "CPU"
                    self._say(waiting_text(self._wanted(), waited, live_hosts(self._group), kind))
                self._stopped.wait(_SOON_S if waited < _LAND_S else _POLL_S)
            return None
        finally:
            self._drop_demand()
            self._drop_taking()

    def _wanted(self) -> str:
        if not self._group.is_tpu:
            return f"{self._group.name} group"
        return f"{self._group.name} slice" + (f" ({self._smallest} at once)" if self._smallest > 1 else "")

    def _try(self, waited: float, *, any_size: bool) -> Reservation | None:
        """Without ``any_size`` accept only the largest: slices that were just released take a moment to be free."""
        if not self._group.is_tpu:
            return self._try_hosts()
        if self._taking is not None:
            return self._finish_taking(0)
        if self._demand is not None and self._demand.has_landed():
            return self._complete(self._demand)
        free = uniform_slices(free_slices(self._group, self._avoided, self._blocked))
        size = self._pick(len(free))
        if not any_size and size != self._largest:
            return None
        if size is None and self._blocked and not self._another_may_come(waited):
            self._unblock()
            return None
        if size is None:
            self._demand = self._demand or _Demand(self._placements, self._group, self._smallest, self._bad_slices())
            return None
        self._drop_demand()
        random.shuffle(free)  # so that two drivers at the same moment rarely begin with the same one
        free.sort(key=lambda each: each.name not in self._preferred)
        return self._take(free[:size])

    def _another_may_come(self, waited: float) -> bool:
        if waited >= self._relocation_wait_s:
            return False
        known, may_grow = known_slices(self._group), is_autoscaled()
        relocation = find_relocation(
            self._blocked, own=(), free=(), known=known, smallest=self._smallest, may_grow=may_grow
        )
        return relocation is not Relocation.UNAVAILABLE

    def _unblock(self) -> None:
        """Accept blocked slices too from now on."""
        self._say(f"no other {self._wanted()} came: {', '.join(sorted(self._blocked))} may be taken again")
        self._blocked.clear()
        self._drop_demand()

    def _take(self, slices: Sequence[Slice], besides: Sequence[Any] = ()) -> Reservation | None:
        """Reserve all hosts of these slices in one placement group; None if another driver was faster."""
        bundles = [self._bundle(node, with_head=not besides) for each in slices for node in each.nodes]
        selectors = [_only(node) for each in slices for node in each.nodes]
        placement = self._placements.make(bundles, selectors)
        self._taking = _Taking(tuple(slices), placement, tuple(besides))
        return self._finish_taking(_LAND_S)

    def _finish_taking(self, wait_s: float) -> Reservation | None:
        """Return the reservation once its placement group has landed; give up if another driver has the slices."""
        taking = self._taking
        assert taking is not None
        has_landed = taking.placement.wait(wait_s)
        free = {} if has_landed else free_resources()
        looks_free = all(is_free(each, self._group, free, with_head=not taking.besides) for each in taking.slices)
        if has_landed or (not looks_free and taking.placement.wait(_POLL_S)):  # this driver took them
            self._taking = None
            return taking.reservation()
        if not looks_free or taking.age() > _KEEP_S:
            self._drop_taking()
        elif not taking.has_logged:
            taking.has_logged = True
            self._say(f"the reservation of {taking.names} has not landed yet, since Ray's head is slow; it is kept")
        return None

    def _drop_taking(self) -> None:
        if self._taking is not None:
            for placement in self._taking.placements:
                _remove(placement)
            self._taking = None

    def _bundle(self, node: Node, *, with_head: bool) -> dict[str, float]:
        bundle = {"TPU": chips_of(node, self._group)}
        if with_head and self._group.head_resource in node.resources:
            bundle[self._group.head_resource] = 1
        return bundle

    def _complete(self, demand: _Demand) -> Reservation | None:
        """Reserve the rest of the slices whose heads are reserved, or release them."""
        heads, nodes = set(demand.node_ids()), live_nodes()
        slices = [each for each in complete_slices(nodes, self._group) if each.nodes[0].id in heads]
        hosts = [node for each in slices for node in each.nodes]
        self._avoided |= unresponsive_nodes(hosts)
        if any(node.id in self._avoided | set(draining_nodes()) for node in hosts):
            self._drop_demand()
            return None
        if len(slices) < len(heads):
            if demand.age() > _COMPLETE_S:
                named = {node.slice_name for node in nodes if node.id in heads and node.slice_name}
                self._unfinished |= named - {each.name for each in slices}
                self._drop_demand()
            return None
        self._demand = None
        return self._take(slices, besides=[demand.placement])

    def _bad_slices(self) -> set[str]:
        """Return the slices on which a demand must not land."""
        bad = {*self._avoided, *draining_nodes()}
        return (
            self._unfinished
            | self._blocked
            | {node.slice_name for node in live_nodes() if node.slice_name and node.id in bad}
        )

    def _drop_demand(self) -> None:
        if self._demand is not None:
            _remove(self._demand.placement)
            self._demand = None

    def _try_hosts(self) -> Reservation | None:
        """Reserve any different hosts with enough resources; the placement group itself waits in Ray's queue."""
        if self._demand is None:
            self._demand = _Demand(self._placements, self._group, self._smallest, self._avoided)
        if not self._demand.has_landed():
            return None
        by_id = {node.id: node for node in live_nodes()}
        nodes = [by_id[node_id] for node_id in self._demand.node_ids() if node_id in by_id]
        unresponsive = unresponsive_nodes(nodes)
        if unresponsive or len(nodes) < self._group.hosts * self._smallest:
            self._avoided |= unresponsive
            self._drop_demand()
            return None
        placement, self._demand = self._demand.placement, None
        size = self._group.hosts
        hosts = [ReservedHost(node, at // size, at % size, placement, at) for at, node in enumerate(nodes)]
        return Reservation(hosts, self._smallest, [placement])


@dataclass
class _Taking:
    """Slices whose placement group has not landed yet."""

    slices: tuple[Slice, ...]
    placement: Any
    besides: tuple[Any, ...]
    since: float = field(default_factory=time.monotonic)
    has_logged: bool = False

    @property
    def placements(self) -> list[Any]:
        return [self.placement, *self.besides]

    @property
    def names(self) -> str:
        return ", ".join(each.name for each in self.slices)

    def age(self) -> float:
        return time.monotonic() - self.since

    def reservation(self) -> Reservation:
        ranks = [(node, at, rank) for at, each in enumerate(self.slices) for rank, node in enumerate(each.nodes)]
        hosts = [ReservedHost(node, at, rank, self.placement, bundle) for bundle, (node, at, rank) in enumerate(ranks)]
        return Reservation(hosts, len(self.slices), self.placements)


class _Demand:
    """A placement group that waits for the heads of slices, or for all hosts of groups."""

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


def _only(node: Node) -> dict[str, str]:
    """Return the label selector that only this host of its slice meets."""
    labels = (SLICE_NAME_LABEL, POD_TYPE_LABEL, WORKER_ID_LABEL)
    return {label: node.labels[label] for label in labels if label in node.labels}


def _remove(placement: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    try:
        remove_placement_group(placement)
    except Exception:  # Ray is shutting down, and the reservation with it
        return
