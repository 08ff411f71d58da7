"""The keeper of a turn: it renews the lease, obeys a request to stop, and ends the work when it cannot renew.

Two threads, because a store that hangs must not keep the second from its work: one looks at the lease every few
seconds and renews it in time, the other counts how long ago the last renewal was *begun*, by a clock that also counts
the time a machine was suspended. What passed between the claim and this keeper counts too. When the count is over,
others may soon take the turn, so the work is ended.
"""

from __future__ import annotations

import math
import sys
import threading
import traceback
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeVar

from tradewind.records.leases.store import Held, LeaseStore
from tradewind.storage.errors import LeaseLostError, StoreError
from tradewind.turns import store_patience

Result = TypeVar("Result")


class TurnEnd(Enum):
    """Why a keeper ended the work."""

    STOP_REQUESTED = "somebody asked it to stop"
    LOST = "somebody else holds its lease"
    FENCED = "its lease could not be renewed in time"
    BROKEN = "Tradewind made a mistake when it renewed the lease, see above"


OVER: Final = frozenset({TurnEnd.LOST, TurnEnd.FENCED, TurnEnd.BROKEN})
"""After these nothing more may be written; a request to stop lets the end be written."""


class Keeper:
    """Holds a turn for the length of a ``with`` block.

    Args:
        store: The lease.
        held: The turn, as ``LeaseStore.begin`` gave it.
        end_work: Called from another thread when the work must end; the second time, if somebody has asked for the
            end and the turn is over before it came.
        renewed: Called with the time of each renewal by the store's clock, and with infinity at the end of the turn.
    """

    def __init__(
        self,
        store: LeaseStore,
        held: Held,
        end_work: Callable[[TurnEnd], None],
        renewed: Callable[[float], None] = lambda at: None,
    ) -> None:
        self._store = store
        self._held = held
        self._end_work = end_work
        self._clock = store.clock
        self._renewed = renewed
        self._renewed_at = held.written_at
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._renew_in_time, self._fence_in_time)
        ]
        self.end: TurnEnd | None = None

    def __enter__(self) -> Keeper:
        self._renewed(self._renewed_at)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def finish(self, **changes: Any) -> Held:
        """The last write of the turn, such as its commit; it is renewed until then.

        Raises:
            LeaseLostError: The turn is over.
            StoreError: The store refuses or does not answer; the turn goes on.
        """
        with self._lock:  # whichever renewal is on its way has arrived
            if self.end in (TurnEnd.FENCED, TurnEnd.BROKEN) or self.is_over:
                raise LeaseLostError("The turn is over.")
            held = self._store.change(self._held, **changes)
            self._done.set()
            self._renewed(math.inf)
            return held

    def check(self) -> None:
        """Refuse to go on with a turn that is over.

        Raises:
            LeaseLostError: It is.
        """
        if self.end in OVER or self.is_over:
            raise LeaseLostError("The turn is over.")

    def until_answered(self, call: Callable[[], Result]) -> Result:
        """What ``call`` returns, once the store lets it.

        Raises:
            StoreError: The store has refused or been silent for ``fence_s``.
        """
        return store_patience.until_answered(call, self.fence_s, clock=self._clock)

    def look(self) -> None:
        """Look at the lease and renew it when that is due, as the first thread does every few seconds."""
        try:
            with self._lock:
                self._renew()
        except LeaseLostError:
            self._finish(TurnEnd.LOST)
        except StoreError as error:
            print(
                f"tradewind: the lease cannot be renewed ({error}); going on until it is too old.",
                file=sys.stderr,
                flush=True,
            )
        except Exception:  # ours, so it would only come again
            traceback.print_exc()
            self._finish(TurnEnd.BROKEN)

    def fence(self) -> None:
        """End the work if the last renewal is too long ago, as the second thread does."""
        if self.is_over:
            self._finish(TurnEnd.FENCED)

    @property
    def heartbeat_s(self) -> float:
        """How often the lease is renewed."""
        return self._held.lease.heartbeat_s

    @property
    def fence_s(self) -> float:
        """After how long without a renewal the work is ended."""
        return self._held.lease.fence_s

    @property
    def renewed_at(self) -> float:
        """When the last renewal was begun, by the store's clock."""
        return self._renewed_at

    @property
    def is_over(self) -> bool:
        """Whether others may soon take the turn, as far as this keeper knows."""
        return self._clock() - self._renewed_at >= self.fence_s

    def _renew_in_time(self) -> None:
        while not self._done.wait(self._held.lease.times.look_s):
            self.look()

    def _fence_in_time(self) -> None:
        times = self._held.lease.times
        while not self._done.wait(max(0.01, min(times.cut_look_s, self._renewed_at + times.fence_s - self._clock()))):
            self.fence()

    def _renew(self) -> None:
        if self._done.is_set():
            return
        if self._clock() - self._renewed_at >= self._held.lease.heartbeat_s:
            self._held = self._store.change(self._held)
            self._renewed_at = self._held.written_at
            self._renewed(self._renewed_at)
        else:
            found = self._store.read()
            if found is None or not found.lease.is_live or not found.lease.is_same_turn(self._held.lease):
                raise LeaseLostError("Somebody else holds the lease.")
            self._held = found
        if self._held.lease.stop_requested and self.end is None:
            self._finish(TurnEnd.STOP_REQUESTED)

    def _finish(self, end: TurnEnd) -> None:
        if self._done.is_set():
            return
        self.end = end
        if end is not TurnEnd.STOP_REQUESTED:
            self._done.set()
        self._end_work(end)
