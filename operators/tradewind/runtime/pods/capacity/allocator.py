"""Allocate the hosts of one pod in a background thread: its size, its standby processes and its reservations.

The allocator reserves while the driver ends the last attempt. It holds one reservation at a time and releases one that
arrives after ``stop``.

A pod of several sizes starts with the largest free one, and grows when slices become free again. To grow, it restarts
from the newest checkpoint, so that is rare: it looks for free slices at most every ``look_s``, and changes its size at
most every ``rescale_s``, except after a loss, which restarts it anyway.

While a pod runs, standby processes with imports done wait on one other free slice. They reserve nothing: when another
pod takes the slice, or a host of it is lost, they are killed. If the pod itself gets the slice, it uses them. Ray's
autoscaler never counts a node with an actor as idle, so on an autoscaled cluster there are none unless the step
requests them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tradewind.runtime.pods.capacity.reservation import (
    Placements,
    Reservation,
    ReservedHost,
    SliceAllocator,
    SliceBlocklist,
)
from tradewind.runtime.pods.capacity.slices import HostGroup, Slice, free_slices
from tradewind.runtime.pods.nodes import is_autoscaled
from tradewind.runtime.pods.on_host.actors import actor_on
from tradewind.runtime.pods.on_host.host import StandbySpec
from tradewind.runtime.pods.timeline import Timeline, TimelineEvent

_POLL_S: Final = 5.0
_ANSWER_S: Final = 2.0


@dataclass(frozen=True)
class ScalingTimes:
    """How often a pod with fewer slices than it may have tries to grow. The defaults are Marin's."""

    look_s: float = 3 * 3600
    rescale_s: float = 12 * 3600


class ElasticSize:
    """Decides the size of a pod and when to try a larger one. It has no clock: all times are of one of the caller's."""

    def __init__(self, num_slices: int | Sequence[int], times: ScalingTimes) -> None:
        self._sizes = (num_slices,) if isinstance(num_slices, int) else tuple(sorted(num_slices, reverse=True))
        self._times = times
        self._size: int | None = None
        self._scaled_at = 0.0
        self._looked_at = 0.0

    @property
    def largest(self) -> int:
        return self._sizes[0]

    @property
    def smallest(self) -> int:
        return self._sizes[-1]

    def first(self, free: int) -> int | None:
        """Return the size to start with, first or after a loss; None if not even the smallest is free."""
        return next((size for size in self._sizes if size <= free), None)

    def running(self, size: int, now: float) -> None:
        """Note that the pod has started with ``size`` slices."""
        if size not in self._sizes:
            raise ValueError(f"A pod of {size} slices was started, but num_slices={list(self._sizes)}.")
        if size != self._size:
            self._size, self._scaled_at = size, now
            self._looked_at = now

    def next_look(self, now: float) -> float | None:
        """Return when to look for free slices, ``now`` at the earliest; None if the pod cannot grow."""
        if self._size is None or self._size == self.largest:
            return None
        return max(now, self._looked_at + self._times.look_s, self._scaled_at + self._times.rescale_s)

    def grow_to(self, free: int, now: float) -> int | None:
        """Return the size to restart with, given ``free`` slices besides the pod's own; None to continue unchanged.

        The next look is due after ``look_s``, also if the slices are taken before the pod can reserve them.
        """
        due = self.next_look(now)
        if due is None or now < due or self._size is None:
            return None
        self._looked_at = now
        larger = self.first(self._size + free)
        return larger if larger is not None and larger > self._size else None


@dataclass(eq=False)
class StandbyPool:
    """Looks for a free slice in a thread, and keeps standby processes on it.

    ``avoided`` returns the nodes not to use, and ``may_hold`` whether processes may keep a free slice from being idle.
    """

    group: HostGroup
    wanted: StandbySpec
    avoided: Callable[[], Iterable[str]]
    driver_timeout_s: float
    may_hold: Callable[[], bool]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._slice: Slice | None = None
        self._actors: dict[str, Any] = {}
        self._paused = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="standby")
        self._thread.start()

    def slice_names(self) -> list[str]:
        """Return the slice on which the processes wait, if any."""
        with self._lock:
            return [] if self._slice is None else [self._slice.name]

    def pause(self, paused: bool) -> None:
        """Keep the present processes and stop looking, while the pod reserves its own slice."""
        (self._paused.set if paused else self._paused.clear)()

    def take(self, hosts: Sequence[ReservedHost]) -> dict[str, Any]:
        """Return node id -> actor, for the reserved hosts on which an actor waits and answers."""
        import ray

        with self._lock:
            actors = {host.node.id: self._actors.pop(host.node.id) for host in hosts if host.node.id in self._actors}
            if actors:
                self._drop()
        probes = {node: actor.probe.remote() for node, actor in actors.items()}
        ray.wait(list(probes.values()), num_returns=len(probes), timeout=_ANSWER_S) if probes else None
        return {node: actors[node] for node, reference in probes.items() if _has_answered(reference)}

    def close(self) -> None:
        """Kill all standby processes."""
        self._stopped.set()
        self._thread.join(_POLL_S)
        with self._lock:
            self._drop()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            if self._paused.is_set():
                continue
            with suppress(Exception):  # an outage of Ray's head: no standby for a while
                self._poll()

    def _poll(self) -> None:
        free = free_slices(self.group, self.avoided()) if self.may_hold() else []
        with self._lock:
            if self._stopped.is_set() or self._paused.is_set() or self._slice in free:
                return
            self._drop()
            if not free:
                return
            self._slice = free[0]
            self._actors = {node.id: actor_on(node.id, self.driver_timeout_s) for node in self._slice.nodes}
            for actor in self._actors.values():
                actor.start_standby.remote(self.wanted)

    def _drop(self) -> None:
        import ray

        self._slice = None
        while self._actors:
            with suppress(Exception):  # the actor is gone already
                ray.kill(self._actors.popitem()[1])


def may_hold(wanted: bool | None) -> Callable[[], bool]:
    """Return whether processes may occupy free slices, as the step says; None means unless there is an autoscaler."""
    return (lambda: not is_autoscaled()) if wanted is None else (lambda: wanted)


def _has_answered(reference: Any) -> bool:
    import ray

    try:
        ray.get(reference, timeout=0)
    except Exception:
        return False
    return True


@dataclass(eq=False)
class BackgroundAllocator:
    """Reserves the hosts of one pod, again for every attempt that starts on other hosts."""

    group: HostGroup
    size: ElasticSize
    avoided: Set[str]
    """The ids of nodes not to use; read for each reservation."""
    blocklist: SliceBlocklist
    """The slices to use only if there is no other."""
    standby: StandbyPool | None
    """Its slice is preferred."""
    timeline: Timeline
    say: Callable[[str], None]
    timeout_s: float | None
    """How long to wait for hosts, each time; None for ever."""

    def __post_init__(self) -> None:
        self._placements = Placements()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="reserve")
        self._last: tuple[SliceAllocator, Future[Reservation | None]] | None = None

    def begin(self) -> Future[Reservation | None]:
        """Begin to reserve; return the future reservation."""
        sizes = (self.size.largest, self.size.smallest)
        self.timeline.note(TimelineEvent("waiting", time.time(), group=self.group.name, sizes=sizes))
        if self.standby is not None:
            self.standby.pause(True)
        allocator = SliceAllocator(
            self.group,
            self.size.first,
            self.size.smallest,
            self.size.largest,
            placements=self._placements,
            avoided=self.avoided,
            blocked=self.blocklist.names,
            relocation_wait_s=self.blocklist.relocation_wait_s,
            preferred=self.standby.slice_names() if self.standby is not None else (),
            say=self.say,
        )
        future = self._pool.submit(self._reserve, allocator, time.monotonic())
        self._last = (allocator, future)
        return future

    def stop(self) -> None:
        """End reserving, and release a reservation that the driver may not have seen."""
        if self._last is not None:
            allocator, future = self._last
            allocator.stop()
            with suppress(Exception):
                if (reservation := future.result()) is not None:
                    reservation.release()
        self._pool.shutdown()

    def close(self) -> None:
        """Called last: the remaining reservations lose their hosts."""
        self._placements.close()

    def _reserve(self, allocator: SliceAllocator, began: float) -> Reservation | None:
        reservation = allocator.run(self.timeout_s)
        if reservation is not None:
            reserve_s = time.monotonic() - began
            names = ", ".join(reservation.slice_names)
            kind = "slices" if reservation.num_slices > 1 else "slice"
            self.say(f"reserved {f'{kind} {names}' if names else f'a {self.group.name} group'} after {reserve_s:.1f} s")
            self.timeline.note(
                TimelineEvent(
                    "reserved",
                    time.time(),
                    slices=tuple(reservation.slice_names),
                    num_slices=reservation.num_slices,
                    reserve_s=reserve_s,
                )
            )
        return reservation
