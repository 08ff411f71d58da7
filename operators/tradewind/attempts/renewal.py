"""The keeper of a turn: it renews the lease, obeys a request to stop, and ends the work when it cannot renew.

Two threads, because a store that hangs must not keep the second from its work: one looks at the lease every few
seconds and renews it in time, the other counts how long ago the last renewal was *begun*, by a clock that also counts
the time a machine was suspended. What passed between the claim and this keeper counts too. When the count is over,
others may soon take the turn, so the work is ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeVar

from tradewind.attempts import store_retry
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome
from tradewind.records.lease import Phase
from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.records.lifecycle import commit_attempt, fail_attempt, stop_attempt
from tradewind.storage.errors import LeaseLostError, StoreError

Result = TypeVar("Result")


class LeaseEndReason(Enum):
    """Why a keeper ended the work."""

    STOP_REQUESTED = "somebody asked it to stop"
    LOST = "somebody else holds its lease"
    FENCED = "its lease could not be renewed in time"
    BROKEN = "Tradewind made a mistake when it renewed the lease, see above"


FINAL_REASONS: Final = frozenset({LeaseEndReason.LOST, LeaseEndReason.FENCED, LeaseEndReason.BROKEN})
"""After these nothing more may be written; a request to stop lets the end be written."""


class LeaseRenewer:
    """Holds a turn for the length of a ``with`` block.

    Args:
        store: The lease.
        held: The turn, as ``LeaseStore.take_over`` gave it.
        end_work: Called from another thread when the work must end; the second time, if somebody has asked for the
            end and the turn is over before it came.
        renewed: Called with the time of each renewal by the store's clock, and with infinity at the end of the turn.
    """

    def __init__(
        self,
        store: LeaseStore,
        held: HeldLease,
        end_work: Callable[[LeaseEndReason], None],
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
        self.end: LeaseEndReason | None = None

    def __enter__(self) -> LeaseRenewer:
        self._renewed(self._renewed_at)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def finish(self, **changes: Any) -> HeldLease:
        """The last write of the turn, such as its commit; it is renewed until then.

        Raises:
            LeaseLostError: The turn is over.
            StoreError: The store refuses or does not answer; the turn goes on.
        """
        with self._lock:  # whichever renewal is on its way has arrived
            if self.end in (LeaseEndReason.FENCED, LeaseEndReason.BROKEN) or self.is_over:
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
        if self.end in FINAL_REASONS or self.is_over:
            raise LeaseLostError("The turn is over.")

    def retry_store(self, call: Callable[[], Result]) -> Result:
        """What ``call`` returns, once the store lets it.

        Raises:
            StoreError: The store has refused or been silent for ``fence_s``.
        """
        return store_retry.retry_store(call, self.fence_s, clock=self._clock)

    def check_lease(self) -> None:
        """Look at the lease and renew it when that is due, as the first thread does every few seconds."""
        try:
            with self._lock:
                self._renew()
        except LeaseLostError:
            self._finish(LeaseEndReason.LOST)
        except StoreError as error:
            print(
                f"tradewind: the lease cannot be renewed ({error}); going on until it is too old.",
                file=sys.stderr,
                flush=True,
            )
        except Exception:  # ours, so it would only come again
            traceback.print_exc()
            self._finish(LeaseEndReason.BROKEN)

    def fence(self) -> None:
        """End the work if the last renewal is too long ago, as the second thread does."""
        if self.is_over:
            self._finish(LeaseEndReason.FENCED)

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
        while not self._done.wait(self._held.lease.times.poll_s):
            self.check_lease()

    def _fence_in_time(self) -> None:
        times = self._held.lease.times
        while not self._done.wait(max(0.01, min(times.fence_poll_s, self._renewed_at + times.fence_s - self._clock()))):
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
            if found is None or not found.lease.is_live or not found.lease.is_same_attempt(self._held.lease):
                raise LeaseLostError("Somebody else holds the lease.")
            self._held = found
        if self._held.lease.stop_requested and self.end is None:
            self._finish(LeaseEndReason.STOP_REQUESTED)

    def _finish(self, end: LeaseEndReason) -> None:
        if self._done.is_set():
            return
        self.end = end
        if end is not LeaseEndReason.STOP_REQUESTED:
            self._done.set()
        self._end_work(end)


# The ends of a turn whose keeper is this process: each is written once the store lets it, and never after the turn.


@dataclass(frozen=True)
class ActiveAttempt:
    """A turn that is at work here. Its methods end it.

    All of them raise ``LeaseLostError`` if it is over, and ``StoreError`` if the store has refused or been silent for
    too long.
    """

    path: str
    attempt: Attempt
    keeper: LeaseRenewer

    def commit(self) -> None:
        """Make the output a result.

        Raises:
            InputChangedError: Its inputs are not what they were when it was claimed.
        """
        keeper = self.keeper
        keeper.retry_store(lambda: commit_attempt(keeper.finish, self.path, self.attempt, keeper.check))

    def fail(self, error: AttemptError) -> None:
        """End it with the fault of its function."""
        self.keeper.retry_store(lambda: fail_attempt(self.keeper.finish, self.path, self.attempt, error))

    def stop(self, outcome: AttemptOutcome, error: AttemptError | None = None) -> None:
        """End it without a result and without a fault of its function."""
        self.keeper.retry_store(lambda: stop_attempt(self.keeper.finish, self.path, self.attempt, outcome, error))


# Until a job's driver has taken its lease over, whoever follows the job renews it; from then on only the driver.

SOON_S: Final = 1.0

logger = logging.getLogger(__name__)


async def renew_while_claimed(output_path: str, job: str) -> None:
    """Renew the lease of ``job`` until its driver has taken it over, or the turn is over."""
    store = LeaseStore(output_path)
    while (pause_s := await asyncio.to_thread(_renew, store, job)) is not None:
        await asyncio.sleep(pause_s)


@contextmanager
def renewing_while_claimed(output_path: str, job: str) -> Iterator[None]:
    """The same for the length of a block, from a thread."""
    store, done = LeaseStore(output_path), threading.Event()

    def renew() -> None:
        while not done.is_set() and (pause_s := _renew(store, job)) is not None:
            done.wait(pause_s)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _renew(store: LeaseStore, job: str) -> float | None:
    """Renew it once; seconds until the next time, or None when that is not ours any more."""
    try:
        held = store.read()
        if held is None or held.lease.job != job or held.lease.phase is not Phase.CLAIMED:
            return None
        return store.change(held).lease.heartbeat_s
    except LeaseLostError:
        return None
    except StoreError as error:
        logger.warning("The lease cannot be renewed: %s", error)
        return SOON_S
