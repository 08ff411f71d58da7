"""The one interpreter of the turn protocol: it reads the record, decides, and does what is the same for everybody.

Whoever wants an output made comes through here: a step's task, a script, and a task that works under a turn itself. How
each of them waits, makes an attempt and says how it went are the methods of its ``AttemptHandler``, and, where a job
makes the attempt, of its ``JobOutcomeHandler``. None of them reads a lease to decide what comes next, and none of them
ends a turn that another one would end in another way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

from tradewind.attempts.decisions import (
    CancelPrevious,
    Claim,
    Finished,
    InheritFailure,
    JobResult,
    NextAction,
    OwnershipUnknown,
    Reattach,
    RerunRequest,
    TaskIdentity,
    WaitForOwner,
    decide_start,
    next_action,
    start_warning,
)
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease
from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.lease import Lease
from tradewind.records.lifecycle import complete_commit

T = TypeVar("T")
Result = TypeVar("Result")


class Continuation(Enum):
    """What follows where there is no result yet."""

    RECHECK = "look"
    """Look at the record again."""
    RECLAIM = "claim"
    """Claim over the turn of an earlier try, of which nothing was ever started."""


class AttemptHandler(ABC, Generic[Result]):
    """What is a claimant's own about its turns; its methods may also raise what ends it."""

    @abstractmethod
    def task(self) -> TaskIdentity:
        """Who asks, by what it knows once the record is read: a claim is noted before it is made."""

    @abstractmethod
    def rerun_request(self) -> RerunRequest:
        """What is asked of it."""

    @abstractmethod
    def warn(self, sentence: str) -> None:
        """Tell a person about the result that is about to be taken."""

    @abstractmethod
    def finished(self, lease: Lease | None) -> Result:
        """The output is there, and its record complete; no lease if Marin made it."""

    @abstractmethod
    def failure(self, lease: Lease | None) -> Exception:
        """The failure of an attempt, which may be somebody else's."""

    @abstractmethod
    def ownership_unknown(self, lease: Lease) -> None:
        """It cannot be said whether the turn is its own: raise, or wait."""

    @abstractmethod
    def wait(self, lease: Lease) -> None:
        """Somebody else is at work: wait, and be a ``task`` that has waited for that attempt."""

    @abstractmethod
    def cancel_previous(self, lease: Lease) -> None:
        """Stop the turn of an earlier try, which a person cleared, and wait until it has ended."""

    @abstractmethod
    def reattach(self, lease: Lease) -> Result | Continuation:
        """Go on with the turn of an earlier try."""

    @abstractmethod
    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        """Claim the next turn by ``StepLease.claim``."""

    @abstractmethod
    def missing_input(self, error: MissingInputError) -> None:
        """An input is no result: wait for whoever is making it, or raise."""

    @abstractmethod
    def run(self, turn: ClaimedAttempt) -> Result | Continuation:
        """Make the attempt of a turn that was just claimed."""


class JobOutcomeHandler(ABC, Generic[Result]):
    """What is a claimant's own about the end of a job that it followed.

    Attributes:
        fault: Why the job can never run as it is, if that is so.
    """

    fault: AttemptError | None = None

    @abstractmethod
    def succeeded(self, lease: Lease) -> Result:
        """The job made the output, whose record is complete."""

    @abstractmethod
    def failure(self, verdict: NextAction, lease: Lease) -> Exception:
        """What ends the claimant: whatever the verdict is, there is no result and no next attempt."""

    @abstractmethod
    def show_log(self) -> None:
        """Show the last that the job said, before what comes of it."""

    @abstractmethod
    def lost(self, lease: Lease, *, may_live_on: bool) -> Continuation:
        """The attempt is lost: pause, or wait until its lease has run out if something of it may live on."""


class StoreRetry(Protocol):
    """How the store is asked."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """What ``call`` returns; it may be called many times."""


def no_retry(call: Callable[[], T], /) -> T:
    """The patience of those whose next try asks again."""
    return call()


class AttemptProtocol(Generic[Result]):
    """Takes a step's turn for one claimant.

    Args:
        turns: The turns of the step.
        claimant: Who takes them, and what it does of its own.
        ask: How it asks the store.
    """

    def __init__(self, turns: StepLease, claimant: AttemptHandler[Result], ask: StoreRetry = no_retry) -> None:
        self._turns = turns
        self._claimant = claimant
        self._ask = ask

    def result(self) -> Result:
        """Look until there is a result: a loop, since a step can queue and be lost many times in one try."""
        while isinstance(seen := self._check_record(), Continuation):
            pass
        return seen

    def result_after(self, job: str, end: JobResult, ended: JobOutcomeHandler[Result]) -> Result:
        """``result`` for a claimant whose ``job`` has just ended."""
        seen = resolve_finished_job(self._turns, job, end, ended)
        return self.result() if isinstance(seen, Continuation) else seen

    def _check_record(self) -> Result | Continuation:
        """Read the record and do what it asks for."""
        record = self._ask(self._turns.read)
        start = decide_start(record, self._claimant.task(), self._claimant.rerun_request())
        match start:
            case Finished():
                return self._finished(start)
            case InheritFailure():
                raise self._claimant.failure(start.lease)
            case OwnershipUnknown():
                self._claimant.ownership_unknown(start.lease)
            case WaitForOwner():
                self._claimant.wait(start.lease)
            case CancelPrevious():
                self._claimant.cancel_previous(start.lease)
            case Reattach():
                seen = self._claimant.reattach(start.lease)
                return self._start_attempt(start.lease, withdraws=False) if seen is Continuation.RECLAIM else seen
            case Claim():
                return self._start_attempt(record.lease, withdraws=start.withdraws)
        return Continuation.RECHECK

    def _finished(self, start: Finished) -> Result:
        if warning := start_warning(start, self._turns.step):
            self._claimant.warn(warning)
        lease = start.lease
        if lease is not None and not lease.written_by_marin:
            self._ask(partial(complete_commit, self._turns.path, lease))
        return self._claimant.finished(lease)

    def _start_attempt(self, over: Lease | None, *, withdraws: bool) -> Result | Continuation:
        """Make the next attempt, or wait for an input; look again if somebody else was faster."""
        try:
            turn = self._claimant.claim(over, withdraws)
        except MissingInputError as error:
            self._claimant.missing_input(error)
            return Continuation.RECHECK
        return Continuation.RECHECK if turn is None else self._claimant.run(turn)


def resolve_finished_job(
    turns: StepLease, job: str, end: JobResult, ended: JobOutcomeHandler[Result]
) -> Result | Continuation:
    """What follows the end of ``job`` by what the lease says now: the result, a failure, or another look."""
    held = turns.store.read()
    lease = held.lease if held is not None else None
    verdict = next_action(lease, job, end)
    if lease is None or verdict is NextAction.START_OVER:
        return Continuation.RECHECK
    if verdict is NextAction.SUCCEED:
        complete_commit(turns.path, lease)
        return ended.succeeded(lease)
    if verdict in (
        NextAction.SPEC_CHANGED,
        NextAction.UNRUNNABLE_JOB,
        NextAction.NEXT_ATTEMPT,
        NextAction.WAIT_UNTIL_STALE,
    ):
        ended.show_log()
    match verdict:
        case NextAction.STOPPED:
            turns.end_unstarted(job, AttemptOutcome.STOPPED)
        case NextAction.SPEC_CHANGED:
            turns.end_unstarted(job, AttemptOutcome.LOST)
        case NextAction.UNRUNNABLE_JOB:
            if not turns.end_unstarted(job, AttemptOutcome.FAILED, ended.fault):
                return Continuation.RECHECK
        case NextAction.NEXT_ATTEMPT:
            # Otherwise its driver has begun after all, or somebody has gone on.
            return ended.lost(lease, may_live_on=False) if turns.end_lost_attempt(lease) else Continuation.RECHECK
        case NextAction.WAIT_UNTIL_STALE:
            return ended.lost(lease, may_live_on=True)
    raise ended.failure(verdict, lease)
