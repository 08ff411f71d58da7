"""While a pod runs, processes on one other free slice have done their imports already; they reserve nothing.

The slice stays everybody's: as soon as somebody takes it, or a host of it goes, the processes there are ended. If the
pod itself gets it, its actors and processes are there. Ray's autoscaler never takes a node with an actor on it for
idle, so where there is one, nothing waits on free slices unless the step asks for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from tradewind.runtime.pods.capacity.groups import HostGroup
from tradewind.runtime.pods.capacity.reservation import Seat
from tradewind.runtime.pods.capacity.slices import Slice, free_slices
from tradewind.runtime.pods.liveness import is_autoscaled
from tradewind.runtime.pods.on_host.actors import actor_on
from tradewind.runtime.pods.on_host.host import Warm

_POLL_S: Final = 5.0
_ANSWER_S: Final = 2.0


class Spares:
    """Looks for a free slice in a thread, and keeps processes on it.

    ``avoided`` says which nodes not to use, and ``may_hold`` whether a free slice may be kept from being idle now.
    """

    def __init__(
        self,
        group: HostGroup,
        wanted: Warm,
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

    def take(self, seats: Sequence[Seat]) -> dict[str, Any]:
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
                actor.warm.remote(self._wanted)

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
