"""What the store says of an output: one value, made of its lease, its status and whether its files are there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tradewind.records.leases.lease import Lease, Phase
from tradewind.records.status import Status


class RecordState(Enum):
    """What an output is to whoever comes."""

    NONE = "none"
    """Nobody ever was at work here."""
    FINISHED = "finished"
    """It is a result."""
    GONE = "gone"
    """It was a result, but its files are gone, or damaged."""
    FAILED = "failed"
    """The last attempt's function failed."""
    STOPPED = "stopped"
    """The last attempt was stopped or lost, or died long ago without a word."""
    AT_WORK = "at work"
    """Somebody is at work, or was until less than a lease's term ago."""
    UNREADABLE = "unreadable lease"
    """Nobody can say which of these it is; a person has to look."""


@dataclass(frozen=True)
class Record:
    """One output.

    Attributes:
        status: The token in ``.executor_status``.
        lease: The lease, if there is one.
        lease_age_s: How long ago the store took the lease's last write, by the store's own clock.
        has_output: Whether the lease's witness (or, for Marin's outputs, any file) is there; False if not looked for.
        is_damaged: It is there, but not as it was committed, as far as a full check was made.
    """

    status: Status | None = None
    lease: Lease | None = None
    lease_age_s: float = 0.0
    has_output: bool = False
    is_damaged: bool = False

    @property
    def state(self) -> RecordState:
        """The lease decides; the status counts only where no lease of ours does."""
        if self.lease is not None and self.lease.flaw is not None:
            return RecordState.UNREADABLE
        if self.is_being_removed:
            return RecordState.AT_WORK
        if self.lease is None or self.lease.is_marins:
            return self._state_by_marins_rules()
        match self.lease.phase:
            case Phase.COMMITTED:
                return RecordState.FINISHED if self.has_output and not self.is_damaged else RecordState.GONE
            case Phase.FAILED:
                return RecordState.FAILED
            case Phase.STOPPED:
                return RecordState.STOPPED
        return RecordState.STOPPED if self.is_stale else RecordState.AT_WORK

    @property
    def is_marins_result(self) -> bool:
        """Whether it is a result by the rules of Marin's executor, which knows neither leases of ours nor digests."""
        return self.status is Status.SUCCESS and self.has_output

    @property
    def is_being_removed(self) -> bool:
        """Whether somebody is about to remove it, or was until less than a lease's term ago."""
        return self.lease is not None and self.lease.removing is not None and self.lease_age_s <= self.lease.stale_s

    @property
    def is_stale(self) -> bool:
        """Whether the lease's owner, if it lives, has ended itself by now."""
        return self.lease is not None and self.lease.is_live and self.lease_age_s > self.lease.stale_s

    def _state_by_marins_rules(self) -> RecordState:
        if self.status is Status.SUCCESS:
            return RecordState.FINISHED if self.has_output else RecordState.GONE
        if self.lease is not None and not self.is_stale:
            return RecordState.AT_WORK
        if self.status in (Status.FAILED, Status.DEP_FAILED):
            return RecordState.FAILED
        return RecordState.STOPPED if self.status is Status.RUNNING else RecordState.NONE
