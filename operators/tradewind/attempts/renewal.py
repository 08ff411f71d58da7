"""Lease renewal: by the follower of a job until the driver owns the lease, from then on only by the driver.

The owner's ``LeaseRenewer`` has two threads, so that a hanging store cannot delay fencing. One reads the lease every
few seconds, obeys a stop request, and renews the lease in time. The other measures how long ago the last renewal
*began*, by a clock that counts the time a machine was suspended. The time before the renewer started counts too. After
``fence_s`` another process may soon take over, so the renewer ends the work.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeVar

from tradewind.attempts import store_retry
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome
from tradewind.records.lease import HEARTBEAT_S, Phase, new_owner_id
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.lifecycle import commit_attempt, fail_attempt, stop_attempt
from tradewind.storage.errors import LeaseLostError, StorageError, StoreError

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0

Result = TypeVar("Result")


class LeaseEndReason(Enum):
    """Why a renewer ended the work."""

    STOP_REQUESTED = "a user or another process asked it to stop"
    LOST = "another process holds its lease"
    FENCED = "its lease could not be renewed in time"
    BROKEN = "an internal error of Tradewind prevented the renewal of its lease, see above"


FINAL_REASONS: Final = frozenset({LeaseEndReason.LOST, LeaseEndReason.FENCED, LeaseEndReason.BROKEN})
"""After these the owner may write nothing more; after a stop request it still writes the attempt's end."""
_NOT_HELD: Final = "This process no longer holds the lease, or could not renew it in time."


class LeaseRenewer:
    """Keeps a lease for the length of a ``with`` block.

    Args:
        store: The lease.
        held: The lease as ``LeaseStore.take_over`` returned it.
        end_work: Called from another thread when the work must end, and a second time if the lease is lost or too old
            after a stop request, before the work has ended.
        on_renewal: Called with the time of each renewal by the store's clock, and with infinity after the last write.
    """

    def __init__(
        self,
        store: LeaseStore,
        held: HeldLease,
        end_work: Callable[[LeaseEndReason], None],
        on_renewal: Callable[[float], None] = lambda at: None,
    ) -> None:
        self._store = store
        self._held = held
        self._end_work = end_work
        self._clock = store.clock
        self._on_renewal = on_renewal
        self._renewed_at = held.written_at
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._renew_in_time, self._fence_in_time)
        ]
        self.end: LeaseEndReason | None = None

    def __enter__(self) -> LeaseRenewer:
        self._on_renewal(self._renewed_at)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def finish(self, **changes: Any) -> HeldLease:
        """Make the last write of the lease, such as its commit; renewal continues until then.

        Raises:
            LeaseLostError: The lease is lost or too old.
            StoreError: The store refuses or does not answer; this process still owns the lease.
        """
        with self._lock:  # after any renewal in progress
            if self.end in (LeaseEndReason.FENCED, LeaseEndReason.BROKEN) or self.is_over:
                raise LeaseLostError(_NOT_HELD)
            held = self._store.change(self._held, **changes)
            self._done.set()
            self._on_renewal(math.inf)
            return held

    def check(self) -> None:
        """Check that this process still owns the lease.

        Raises:
            LeaseLostError: The lease is lost or too old.
        """
        if self.end in FINAL_REASONS or self.is_over:
            raise LeaseLostError(_NOT_HELD)

    def retry_store(self, call: Callable[[], Result]) -> Result:
        """Call until the store answers, and return what ``call`` returns.

        Raises:
            StoreError: The store has refused, or not answered, for ``fence_s``.
        """
        return store_retry.retry_store(call, self.fence_s, clock=self._clock)

    def check_lease(self) -> None:
        """Read the lease and renew it when due, as the first thread does every few seconds."""
        try:
            with self._lock:
                self._renew()
        except LeaseLostError:
            self._finish(LeaseEndReason.LOST)
        except StoreError as error:
            print(
                f"tradewind: the lease cannot be renewed ({error}). Retrying until it is {self.fence_s:g} s old.",
                file=sys.stderr,
                flush=True,
            )
        except Exception:  # internal error: retrying would fail the same way
            traceback.print_exc()
            self._finish(LeaseEndReason.BROKEN)

    def fence(self) -> None:
        """End the work if the last renewal is too old, as the second thread does."""
        if self.is_over:
            self._finish(LeaseEndReason.FENCED)

    @property
    def heartbeat_s(self) -> float:
        """Seconds between renewals."""
        return self._held.lease.heartbeat_s

    @property
    def fence_s(self) -> float:
        """Seconds without a renewal after which this renewer ends the work."""
        return self._held.lease.fence_s

    @property
    def renewed_at(self) -> float:
        """When the last renewal began, by the store's clock."""
        return self._renewed_at

    @property
    def is_over(self) -> bool:
        """Whether another process may soon take over, as far as this renewer knows."""
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
            self._on_renewal(self._renewed_at)
        else:
            current = self._store.read()
            if current is None or not current.lease.is_live or not current.lease.is_same_attempt(self._held.lease):
                raise LeaseLostError("Another process holds the lease.")
            self._held = current
        if self._held.lease.stop_requested and self.end is None:
            self._finish(LeaseEndReason.STOP_REQUESTED)

    def _finish(self, end: LeaseEndReason) -> None:
        if self._done.is_set():
            return
        self.end = end
        if end is not LeaseEndReason.STOP_REQUESTED:
            self._done.set()
        self._end_work(end)


@dataclass(frozen=True)
class ActiveAttempt:
    """An attempt whose lease this process owns; each method writes an end of it, with retries.

    All of them raise ``LeaseLostError`` if the lease is lost or too old, and ``StoreError`` if the store has refused,
    or not answered, for ``fence_s``.
    """

    path: str
    attempt: Attempt
    renewer: LeaseRenewer

    def commit(self) -> None:
        """Make the output a result.

        Raises:
            InputChangedError: Its inputs have changed since the claim.
        """
        renewer = self.renewer
        renewer.retry_store(lambda: commit_attempt(renewer.finish, self.path, self.attempt, renewer.check))

    def fail(self, error: AttemptError) -> None:
        """End the attempt with the error of its function."""
        self.renewer.retry_store(lambda: fail_attempt(self.renewer.finish, self.path, self.attempt, error))

    def stop(self, outcome: AttemptOutcome, error: AttemptError | None = None) -> None:
        """End the attempt without a result and without an error of its function."""
        self.renewer.retry_store(lambda: stop_attempt(self.renewer.finish, self.path, self.attempt, outcome, error))


def make_copy(
    store: LeaseStore,
    over: HeldLease | None,
    by: Mapping[str, Any],
    copy: Callable[[LeaseRenewer], str],
    heartbeat_s: float = HEARTBEAT_S,
) -> bool:
    """Own the lease of a folder while ``copy`` fills it, and commit the digest that it returns.

    Nothing ends ``copy`` from outside, so it checks the lease itself.

    Args:
        over: The lease as read; it is not in use.
        by: What the lease says of this process.

    Returns:
        Whether the copy is complete: not if another process claimed the lease first, or took it over.
    """
    number = over.lease.attempt + 1 if over is not None else 1
    claimed = store.claim(over, LeaseClaim(number, f"copy-{new_owner_id()}", "", by, "", heartbeat_s))
    if claimed is None:
        return False
    held = store.change(claimed, phase=Phase.RUNNING, incarnation=new_owner_id())
    with LeaseRenewer(store, held, end_work=lambda end: None) as owner:
        try:
            owner.finish(phase=Phase.COMMITTED, digest=copy(owner))
        except BaseException as error:
            with suppress(StorageError):  # otherwise the lease expires, or another process owns it by now
                owner.finish(phase=Phase.STOPPED)
            if not isinstance(error, LeaseLostError):
                raise
            return False
    return True


async def renew_while_claimed(output_path: str, job: str) -> None:
    """Renew the lease of ``job`` until its driver owns it, or the attempt has ended."""
    store = LeaseStore(output_path)
    while (pause_s := await asyncio.to_thread(_renew_claimed, store, job)) is not None:
        await asyncio.sleep(pause_s)


@contextmanager
def renewing_while_claimed(output_path: str, job: str) -> Iterator[None]:
    """Do the same from a thread, for the length of a block."""
    store, done = LeaseStore(output_path), threading.Event()

    def renew() -> None:
        while not done.is_set() and (pause_s := _renew_claimed(store, job)) is not None:
            done.wait(pause_s)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _renew_claimed(store: LeaseStore, job: str) -> float | None:
    """Renew once and return the seconds until the next renewal, or None if no more is due from this process."""
    try:
        held = store.read()
        if held is None or held.lease.job != job or held.lease.phase is not Phase.CLAIMED:
            return None
        return store.change(held).lease.heartbeat_s
    except LeaseLostError:
        return None
    except StoreError as error:
        logger.warning("The lease of job %s cannot be renewed: %s. Retrying in %g s.", job, error, _RETRY_S)
        return _RETRY_S
