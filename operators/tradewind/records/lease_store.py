"""Changes of a lease: every write is a compare-and-swap against the lease as read, so one of many writers wins.

A failed swap says only that some process wrote, so the store reads the lease again. The same attempt with a higher
counter is no loss: this process wrote it, or another one requested a stop. Another attempt, job or owner is a loss. If
the attempt ended as this process wanted, this process ended it, since only its owner can: the response was lost.

``LeaseHolder`` is for outputs that no job makes. The process that adopts or removes files holds the lease meanwhile, so
no other process reuses or makes the output. The caller supplies the renewal, since this layer starts no threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tradewind.machine import boot_time
from tradewind.records.lease import HEARTBEAT_S, Lease, Phase, UnreadableLeaseError, lease_path, new_owner_id
from tradewind.storage.errors import LeaseLostError, RecordsError
from tradewind.storage.swap import StoredObject, read_stored, write_if

Result = TypeVar("Result")


class OutputBusyError(RecordsError):
    """Another process is at work on the output, or has just changed it."""


class Read(Protocol):
    """Reads one object with its tag."""

    def __call__(self, path: str, /) -> StoredObject | None: ...


class Write(Protocol):
    """Writes one object if it still has the expected tag; returns None if it has another one."""

    def __call__(self, path: str, text: str, expected: str | None, /) -> StoredObject | None: ...


@dataclass(frozen=True)
class HeldLease:
    """A lease as read or written.

    Attributes:
        tag: The tag that the next swap expects.
        age_s: Seconds since it was written, by the store's clock.
        written_at: The latest known time before it was written, by this machine's clock.
    """

    lease: Lease
    tag: str
    age_s: float
    written_at: float


@dataclass(frozen=True)
class LeaseClaim:
    """Values that a claimer puts into the lease; see ``Lease`` for the fields."""

    attempt: int
    job: str
    cluster: str
    by: Mapping[str, Any]
    version: str
    heartbeat_s: float = HEARTBEAT_S


class LeaseStore:
    """The lease of one output.

    Args:
        output_path: The output.
        now: The time written into leases for users; no decision depends on it.
        clock: Seconds that never pause, by which an owner measures how long ago it renewed.
        read: Reads the lease's object.
        write: Swaps it.
    """

    def __init__(
        self,
        output_path: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = boot_time,
        read: Read = read_stored,
        write: Write = write_if,
    ) -> None:
        self._output_path = output_path
        self._path = lease_path(output_path)
        self._now = now
        self.clock = clock
        self._read = read
        self._write = write

    def read(self) -> HeldLease | None:
        """Return the lease, or None if there never was one.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        requested_at = self.clock()
        stored = self._read(self._path)
        if stored is None:
            return None
        return HeldLease(Lease.of(stored), stored.tag, stored.age_s, requested_at - stored.age_s)

    def claim(self, over: HeldLease | None, claim: LeaseClaim) -> HeldLease | None:
        """Claim the next attempt if the lease is still ``over``; None if another process has changed it.

        Raises:
            UnreadableLeaseError: ``over`` cannot be read.
        """
        lease = Lease(
            new_owner_id(),
            self._now(),
            Phase.CLAIMED,
            claim.attempt,
            claim.job,
            claim.cluster,
            dict(claim.by),
            claim.version,
            claim.heartbeat_s,
            counter=over.lease.counter + 1 if over else 1,
        )
        return self._swap(over, lease)

    def take_over(self, job: str, incarnation: str) -> HeldLease:
        """Become the owner of the lease that was claimed for ``job``.

        Raises:
            LeaseLostError: The lease names another job, has ended, or has another owner.
        """
        while True:
            held = self.read()
            if held is None or held.lease.job != job:
                raise LeaseLostError(f"The lease {self._path} is not for job {job!r}.")
            lease = held.lease
            if lease.phase is Phase.RUNNING and lease.incarnation == incarnation:
                return held
            if lease.phase is not Phase.CLAIMED:
                phase = lease.phase.value if lease.phase else "Marin's"
                raise LeaseLostError(f"The lease {self._path} for job {job!r} is {phase} already.")
            running = self._swap(held, lease.renewed(self._now(), phase=Phase.RUNNING, incarnation=incarnation))
            if running is not None:
                return running

    def change(self, held: HeldLease, **changes: Any) -> HeldLease:
        """Write the next value of a lease that this process holds; a plain renewal without ``changes``.

        Raises:
            LeaseLostError: Another process holds the lease, or its attempt has ended.
        """
        while True:
            changed = self._swap(held, held.lease.renewed(self._now(), **changes))
            if changed is not None:
                return changed
            current = self.read()
            if current is None or not current.lease.is_same_attempt(held.lease):
                raise LeaseLostError(f"Another process holds the lease {self._path}.")
            if not current.lease.is_live:
                return self._own_end(current, changes)
            held = current

    def request_stop(self, job: str, by: Mapping[str, Any]) -> HeldLease | None:
        """Ask the lease owner of ``job`` to stop; None if that attempt has ended."""
        while True:
            held = self.read()
            if held is None or held.lease.job != job or not held.lease.is_live:
                return None
            if held.lease.stop_requested:
                return held
            requested = self._swap(held, held.lease.renewed(self._now(), stop_requested=dict(by)))
            if requested is not None:
                return requested

    def end_unstarted(self, job: str, phase: Phase) -> bool:
        """End an attempt whose job never owned the lease; False if it does, or the lease names another job."""
        while True:
            held = self.read()
            if held is None or held.lease.job != job or held.lease.phase is not Phase.CLAIMED:
                return held is not None and held.lease.job == job and held.lease.phase is phase
            if self._swap(held, held.lease.renewed(self._now(), phase=phase)) is not None:
                return True

    def mark_removing(self, held: HeldLease | None, by: Mapping[str, Any]) -> HeldLease | None:
        """Mark the result with the lease ``held`` as about to be removed; None if another process has written.

        A result of Marin's may have no lease. It gets one as Marin's executor leaves it, under which it stays a result.
        """
        if held is None:
            return self._swap(None, Lease(new_owner_id(), self._now(), removing=dict(by), counter=1))
        return self._swap(held, held.lease.renewed(self._now(), removing=dict(by)))

    def unmark(self, marked: HeldLease) -> HeldLease | None:
        """Remove the mark, so that the result stays; None if another process has written."""
        return self._swap(marked, marked.lease.renewed(self._now(), removing=None))

    def withdraw(self, marked: HeldLease) -> HeldLease | None:
        """Withdraw the marked result; None if another process has written."""
        ended = {"phase": Phase.STOPPED, "digest": None, "witness": None, "removing": None}
        return self._swap(marked, marked.lease.renewed(self._now(), **ended))

    def _own_end(self, ended: HeldLease, changes: Mapping[str, Any]) -> HeldLease:
        if changes and all(getattr(ended.lease, name) == value for name, value in changes.items()):
            return ended
        raise LeaseLostError(f"The attempt that held the lease {self._path} has ended.")

    def _swap(self, held: HeldLease | None, lease: Lease) -> HeldLease | None:
        if held is not None and held.lease.flaw is not None:
            raise UnreadableLeaseError(self._output_path, held.lease)
        requested_at = self.clock()
        stored = self._write(self._path, lease.to_json(), held.tag if held else None)
        return None if stored is None else HeldLease(lease, stored.tag, stored.age_s, requested_at)


def is_in_use(held: HeldLease | None) -> bool:
    """Whether a process is at work on the output, by its lease."""
    return held is not None and held.lease.is_live and held.age_s <= held.lease.stale_s


class LeaseHolder(Protocol):
    """A lease that another thread renews."""

    @property
    def end(self) -> object | None:
        """Why the work must end, or None."""

    def check(self) -> None:
        """Raise ``LeaseLostError`` if the lease is lost or too old."""

    def finish(self, **changes: Any) -> HeldLease:
        """Make the last write of the lease; renewal continues until then."""

    def retry_store(self, call: Callable[[], Result], /) -> Result:
        """Call until the store answers, and return what ``call`` returns; it may run many times."""


RenewLease = Callable[[LeaseStore, HeldLease], AbstractContextManager[LeaseHolder]]
"""Renews a lease for the length of a ``with`` block."""


def check_still_held(holder: LeaseHolder) -> None:
    """Check that this process may continue its work at an output.

    Raises:
        LeaseLostError: The lease is lost or too old, or another process requested a stop.
    """
    holder.check()
    if holder.end is not None:
        raise LeaseLostError("The work at this output must end: its lease is lost, or a stop was requested.")
