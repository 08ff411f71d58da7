"""The next hosts of a pod are reserved in a thread, so that those of the last attempt are ended in the meantime.

One reservation at a time; what it takes while nobody waits for it any more is given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from tradewind.runtime.pods.capacity.groups import HostGroup
from tradewind.runtime.pods.capacity.placements import Placements
from tradewind.runtime.pods.capacity.reservation import Reservation, Reserving
from tradewind.runtime.pods.capacity.scaling import Flexible
from tradewind.runtime.pods.capacity.spares import Spares
from tradewind.runtime.pods.suspects import Suspects
from tradewind.runtime.pods.timeline import Timeline, TimelineEvent


class Reserver:
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
        flexible: Flexible,
        *,
        avoided: Set[str],
        suspects: Suspects,
        spares: Spares | None,
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
        self._last: tuple[Reserving, Future[Reservation | None]] | None = None

    def begin(self) -> Future[Reservation | None]:
        """Begin to reserve; the result is there once there is one."""
        sizes = (self._flexible.largest, self._flexible.smallest)
        self._timeline.note(TimelineEvent("waiting", time.time(), group=self._group.name, sizes=sizes))
        if self._spares is not None:
            self._spares.pause(True)
        reserving = Reserving(
            self._group,
            self._flexible.first,
            self._flexible.smallest,
            self._flexible.largest,
            placements=self._placements,
            avoided=self._avoided,
            suspects=self._suspects.names,
            elsewhere_s=self._suspects.elsewhere_s,
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

    def _reserve(self, reserving: Reserving, began: float) -> Reservation | None:
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
