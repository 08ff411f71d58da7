"""The next hosts of a pod are reserved in a thread, so that those of the last attempt are ended in the meantime.

One reservation at a time; what it takes while nobody waits for it any more is given back.
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

# A pod of several sizes starts with the largest that is there, and grows back when slices return.
#
# Growing means starting anew from the newest checkpoint, so it is rare: free slices are looked for at most every
# ``look_s``, and the size changes at most every ``rescale_s``, except after a loss, when the pod starts anew anyway.
# Nothing in here talks to Ray or to a clock.


@dataclass(frozen=True)
class ScalingTimes:
    """How often a pod that runs with fewer slices than it could tries to grow. The defaults are Marin's."""

    look_s: float = 3 * 3600
    rescale_s: float = 12 * 3600

    def __post_init__(self) -> None:
        for name in ("look_s", "rescale_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number of seconds, 0 or more.")


def sizes_of(num_slices: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of slices that a pod may have, largest first. Raises ValueError for what is no number of slices."""
    if isinstance(num_slices, int) and not isinstance(num_slices, bool):
        return (_size(num_slices, num_slices),)
    if isinstance(num_slices, (str, bytes)) or not isinstance(num_slices, Sequence) or not num_slices:
        raise ValueError(f"num_slices={num_slices!r}: give a number of slices, or a list of numbers such as [4, 2, 1].")
    return tuple(sorted({_size(size, num_slices) for size in num_slices}, reverse=True))


def _size(size: object, given: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"num_slices={given!r}: {size!r} is no number of slices; give whole numbers from 1 on.")
    return size


class ElasticSize:
    """Which size to take, and when to try a larger one. All times are of one clock of the caller's."""

    def __init__(self, sizes: Sequence[int], times: ScalingTimes) -> None:
        self._sizes = sizes_of(sizes)
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
        """The size to start with, at the beginning or after a loss; None if not even the smallest is free."""
        return next((size for size in self._sizes if size <= free), None)

    def running(self, size: int, now: float) -> None:
        """The pod has started with ``size`` slices."""
        if size not in self._sizes:
            raise ValueError(f"A pod of {size} slices was started, but num_slices={list(self._sizes)}.")
        if size != self._size:
            self._size, self._scaled_at = size, now
            self._looked_at = now

    def next_look(self, now: float) -> float | None:
        """When to look for free slices, ``now`` at the earliest; None if the pod cannot grow."""
        if self._size is None or self._size == self.largest:
            return None
        return max(now, self._looked_at + self._times.look_s, self._scaled_at + self._times.rescale_s)

    def grow_to(self, free: int, now: float) -> int | None:
        """The size to start anew with, given how many slices are free besides its own; None to go on as it is.

        This was a look: the next comes after ``look_s``, also when the slices are gone before they are reserved.
        """
        due = self.next_look(now)
        if due is None or now < due or self._size is None:
            return None
        self._looked_at = now
        larger = self.first(self._size + free)
        return larger if larger is not None and larger > self._size else None


# While a pod runs, processes on one other free slice have done their imports already; they reserve nothing.
#
# The slice stays everybody's: as soon as somebody takes it, or a host of it goes, the processes there are ended. If the
# pod itself gets it, its actors and processes are there. Ray's autoscaler never takes a node with an actor on it for
# idle, so where there is one, nothing waits on free slices unless the step asks for that.

_POLL_S: Final = 5.0
_ANSWER_S: Final = 2.0


class StandbyPool:
    """Looks for a free slice in a thread, and keeps processes on it.

    ``avoided`` says which nodes not to use, and ``may_hold`` whether a free slice may be kept from being idle now.
    """

    def __init__(
        self,
        group: HostGroup,
        wanted: StandbySpec,
        avoided: Callable[[], Iterable[str]],
        patience_s: float,
        *,
        may_hold: Callable[[], bool],
    ) -> None:
        self._group = group
        self._wanted = wanted
        self._avoided = avoided
        self._patience_s = patience_s
        self._may_hold = may_hold
        self._lock = threading.Lock()
        self._slice: Slice | None = None
        self._actors: dict[str, Any] = {}
        self._paused = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="spares")
        self._thread.start()

    def slice_names(self) -> list[str]:
        """Where the processes wait."""
        with self._lock:
            return [] if self._slice is None else [self._slice.name]

    def pause(self, paused: bool) -> None:
        """Keep what there is and look no further, while the pod takes its own slice."""
        (self._paused.set if paused else self._paused.clear)()

    def take(self, seats: Sequence[ReservedHost]) -> dict[str, Any]:
        """Node id -> the actor that waits there, for those of the seats that have one that answers."""
        import ray

        with self._lock:
            found = {seat.node.id: self._actors.pop(seat.node.id) for seat in seats if seat.node.id in self._actors}
            if found:
                self._drop()
        asked = {node: actor.probe.remote() for node, actor in found.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_S) if asked else None
        return {node: found[node] for node, reference in asked.items() if _has_answered(reference)}

    def close(self) -> None:
        """End all of them."""
        self._stopped.set()
        self._thread.join(_POLL_S)
        with self._lock:
            self._drop()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            if self._paused.is_set():
                continue
            with suppress(Exception):  # Ray's head is away; there will be no spare for a while
                self._poll()

    def _poll(self) -> None:
        free = free_slices(self._group, self._avoided()) if self._may_hold() else []
        with self._lock:
            if self._stopped.is_set() or self._paused.is_set() or self._slice in free:
                return
            self._drop()
            if not free:
                return
            self._slice = free[0]
            self._actors = {node.id: actor_on(node.id, self._patience_s) for node in self._slice.nodes}
            for actor in self._actors.values():
                actor.start_standby.remote(self._wanted)

    def _drop(self) -> None:
        import ray

        self._slice = None
        while self._actors:
            with suppress(Exception):  # it is gone already
                ray.kill(self._actors.popitem()[1])


def may_hold(wanted: bool | None) -> Callable[[], bool]:
    """Whether free slices may be kept from being idle, by what the step says; None leaves an autoscaler's alone."""
    return (lambda: not is_autoscaled()) if wanted is None else (lambda: wanted)


def _has_answered(reference: Any) -> bool:
    import ray

    try:
        ray.get(reference, timeout=0)
    except Exception:
        return False
    return True


class BackgroundAllocator:
    """Reserves what one pod needs, again for every attempt that begins on other hosts.

    Args:
        group: What a slice or a group of hosts is.
        flexible: How many of them.
        avoided: The ids of nodes that are not used; looked at for each reservation.
        suspects: The slices that are used only if there is no other.
        spares: Where processes wait, if they do: these slices are preferred.
        timeline: What happens is noted there.
        say: Tells a person.
        timeout_s: For how long to wait for hosts, each time; None for ever.
    """

    def __init__(
        self,
        group: HostGroup,
        flexible: ElasticSize,
        *,
        avoided: Set[str],
        suspects: SliceBlocklist,
        spares: StandbyPool | None,
        timeline: Timeline,
        say: Callable[[str], None],
        timeout_s: float | None,
    ) -> None:
        self._group = group
        self._flexible = flexible
        self._avoided = avoided
        self._suspects = suspects
        self._spares = spares
        self._timeline = timeline
        self._say = say
        self._timeout_s = timeout_s
        self._placements = Placements()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="reserve")
        self._last: tuple[SliceAllocator, Future[Reservation | None]] | None = None

    def begin(self) -> Future[Reservation | None]:
        """Begin to reserve; the result is there once there is one."""
        sizes = (self._flexible.largest, self._flexible.smallest)
        self._timeline.note(TimelineEvent("waiting", time.time(), group=self._group.name, sizes=sizes))
        if self._spares is not None:
            self._spares.pause(True)
        reserving = SliceAllocator(
            self._group,
            self._flexible.first,
            self._flexible.smallest,
            self._flexible.largest,
            placements=self._placements,
            avoided=self._avoided,
            suspects=self._suspects.names,
            elsewhere_s=self._suspects.relocation_wait_s,
            preferred=self._spares.slice_names() if self._spares is not None else (),
            say=self._say,
        )
        future = self._pool.submit(self._reserve, reserving, time.monotonic())
        self._last = (reserving, future)
        return future

    def stop(self) -> None:
        """Reserve nothing more, and give back what nobody may have seen."""
        if self._last is not None:
            reserving, future = self._last
            reserving.stop()
            with suppress(Exception):
                if (taken := future.result()) is not None:
                    taken.release()
        self._pool.shutdown()

    def close(self) -> None:
        """The last thing: reservations that still stand lose their hosts."""
        self._placements.close()

    def _reserve(self, reserving: SliceAllocator, began: float) -> Reservation | None:
        taken = reserving.run(self._timeout_s)
        if taken is not None:
            reserve_s = time.monotonic() - began
            names = ", ".join(taken.slice_names)
            kind = "slices" if taken.num_slices > 1 else "slice"
            self._say(
                f"reserved {f'{kind} {names}' if names else f'a {self._group.name} group'} after {reserve_s:.1f} s"
            )
            self._timeline.note(
                TimelineEvent(
                    "reserved",
                    time.time(),
                    slices=tuple(taken.slice_names),
                    num_slices=taken.num_slices,
                    reserve_s=reserve_s,
                )
            )
        return taken
