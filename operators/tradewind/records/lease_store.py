"""Changing a lease: every write is a compare-and-swap against what was read, so one of many writers wins.

A swap that fails says only that somebody wrote. What it means is read from the lease again: the same turn with a
higher counter is no loss (the writer before us was ourselves, or somebody who asked us to stop), another attempt, job
or keeper is. A turn that has ended as we wanted was ended by ourselves: only its keeper can, so an answer was lost.
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


class Read(Protocol):
    """Reads one object with its tag."""

    def __call__(self, path: str, /) -> StoredObject | None: ...


class Write(Protocol):
    """Writes one object if it still has the expected tag; None when it has not."""

    def __call__(self, path: str, text: str, expected: str | None, /) -> StoredObject | None: ...


@dataclass(frozen=True)
class HeldLease:
    """A lease as it was read or written.

    Attributes:
        tag: What the next swap must find.
        age_s: How long ago it was written, by the store's own clock.
        written_at: A moment by this machine's clock at which it was not written yet, as late as is known.
    """

    lease: Lease
    tag: str
    age_s: float
    written_at: float


@dataclass(frozen=True)
class LeaseClaim:
    """What a claimant puts into the lease; see ``Lease`` for the fields."""

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
        now: The time that is written into leases for people; no judgement rests on it.
        clock: Seconds that never stand still, by which an owner counts how long ago it renewed.
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
        """The lease, or None when there never was one.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        asked_at = self.clock()
        stored = self._read(self._path)
        if stored is None:
            return None
        return HeldLease(Lease.of(stored), stored.tag, stored.age_s, asked_at - stored.age_s)

    def claim(self, over: HeldLease | None, claim: LeaseClaim) -> HeldLease | None:
        """Take the turn after ``over``, which must be what is there; None when somebody else was faster.

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
        """Become the keeper of the turn that was claimed for ``job``.

        Raises:
            LeaseLostError: The lease names another job, has ended, or has another keeper.
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
            begun = self._swap(held, lease.renewed(self._now(), phase=Phase.RUNNING, incarnation=incarnation))
            if begun is not None:
                return begun

    def change(self, held: HeldLease, **changes: Any) -> HeldLease:
        """Write the next value of our own turn, a plain renewal when there are no ``changes``.

        Raises:
            LeaseLostError: It is no longer our turn, or the turn has ended.
        """
        while True:
            changed = self._swap(held, held.lease.renewed(self._now(), **changes))
            if changed is not None:
                return changed
            found = self.read()
            if found is None or not found.lease.is_same_attempt(held.lease):
                raise LeaseLostError(f"Somebody else holds the lease {self._path}.")
            if not found.lease.is_live:
                return self._own_end(found, changes)
            held = found

    def request_stop(self, job: str, by: Mapping[str, Any]) -> HeldLease | None:
        """Ask the keeper of ``job`` to stop; None when that turn has ended."""
        while True:
            held = self.read()
            if held is None or held.lease.job != job or not held.lease.is_live:
                return None
            if held.lease.stop_requested:
                return held
            asked = self._swap(held, held.lease.renewed(self._now(), stop_requested=dict(by)))
            if asked is not None:
                return asked

    def end_unstarted(self, job: str, phase: Phase) -> bool:
        """End a turn whose job never became a keeper; False when it did, or the turn is another's."""
        while True:
            held = self.read()
            if held is None or held.lease.job != job or held.lease.phase is not Phase.CLAIMED:
                return held is not None and held.lease.job == job and held.lease.phase is phase
            if self._swap(held, held.lease.renewed(self._now(), phase=phase)) is not None:
                return True

    def mark_removing(self, seen: HeldLease | None, by: Mapping[str, Any]) -> HeldLease | None:
        """Say that the result whose lease is ``seen`` is about to be removed; None when somebody else has written.

        A result of Marin's may have no lease. It gets one as Marin's executor leaves it, under which it stays a result.
        """
        if seen is None:
            return self._swap(None, Lease(new_owner_id(), self._now(), removing=dict(by), counter=1))
        return self._swap(seen, seen.lease.renewed(self._now(), removing=dict(by)))

    def unmark(self, marked: HeldLease) -> HeldLease | None:
        """Say that the result stays after all."""
        return self._swap(marked, marked.lease.renewed(self._now(), removing=None))

    def withdraw(self, marked: HeldLease) -> HeldLease | None:
        """Say that what was marked is no result any more; None when somebody else has written meanwhile."""
        ended = {"phase": Phase.STOPPED, "digest": None, "witness": None, "removing": None}
        return self._swap(marked, marked.lease.renewed(self._now(), **ended))

    def _own_end(self, found: HeldLease, changes: Mapping[str, Any]) -> HeldLease:
        if changes and all(getattr(found.lease, name) == value for name, value in changes.items()):
            return found
        raise LeaseLostError(f"The turn of the lease {self._path} has ended.")

    def _swap(self, held: HeldLease | None, lease: Lease) -> HeldLease | None:
        if held is not None and held.lease.flaw is not None:
            raise UnreadableLeaseError(self._output_path, held.lease)
        asked_at = self.clock()
        stored = self._write(self._path, lease.to_json(), held.tag if held else None)
        return None if stored is None else HeldLease(lease, stored.tag, stored.age_s, asked_at)


# A turn that no job works at: whoever brings an output in, or removes it, holds its lease meanwhile.
#
# So nobody reuses what is half there, and nobody starts to make it. Renewing is left to whom the caller names, since
# this layer starts no threads.

Result = TypeVar("Result")


class OutputBusyError(RecordsError):
    """Somebody is at work on the output, or has just changed it."""


class LeaseHolder(Protocol):
    """A turn that somebody renews."""

    @property
    def end(self) -> object | None:
        """Why the work must end, if it must."""

    def check(self) -> None:
        """Raises ``LeaseLostError`` if the turn is over."""

    def finish(self, **changes: Any) -> HeldLease:
        """The last write of the turn; it is renewed until then."""

    def retry_store(self, call: Callable[[], Result], /) -> Result:
        """What ``call`` returns, once the store lets it; it may be called many times."""


RenewLease = Callable[[LeaseStore, HeldLease], AbstractContextManager[LeaseHolder]]
"""Renews a turn for the length of a ``with`` block."""


def check_still_held(turn: LeaseHolder) -> None:
    """Refuse to go on with a turn that is over.

    Raises:
        LeaseLostError: It is over, or somebody asked for its end.
    """
    turn.check()
    if turn.end is not None:
        raise LeaseLostError("The turn at this output is over.")


def is_in_use(held: HeldLease | None) -> bool:
    """Whether somebody is at work, as far as the lease says."""
    return held is not None and held.lease.is_live and held.age_s <= held.lease.stale_s
