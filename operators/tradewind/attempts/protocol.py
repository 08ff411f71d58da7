"""The lease protocol for all claimers: read the record, decide, and act on the decision.

Three claimers use it: a step's task, a script, and a task that owns the lease itself. The ``AttemptHandler`` of each
one waits, makes attempts and reports. Where a Ray job makes the attempt, a ``JobOutcomeHandler`` acts on its end. No
claimer decides from a lease by itself, so all of them end an attempt in the same way.
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
    """Next step of the protocol while there is no result."""

    RECHECK = "look"
    """Read the record again."""
    RECLAIM = "claim"
    """Claim the next attempt: that of an earlier try was never started."""


class AttemptHandler(ABC, Generic[Result]):
    """What a claimer does in its own way. A method may raise an error, which ends the claimer."""

    @abstractmethod
    def task(self) -> TaskIdentity:
        """Return the task that claims, with notes read after the record: it notes a claim before it makes it."""

    @abstractmethod
    def rerun_request(self) -> RerunRequest:
        """Return what a user or the plan requested of the task."""

    @abstractmethod
    def warn(self, sentence: str) -> None:
        """Warn the user about the result that this claimer is about to reuse."""

    @abstractmethod
    def finished(self, lease: Lease | None) -> Result:
        """Return the result: the output exists and its record is complete. No lease if Marin made it."""

    @abstractmethod
    def failure(self, lease: Lease | None) -> Exception:
        """Return the failure of an attempt, which another task may have made."""

    @abstractmethod
    def ownership_unknown(self, lease: Lease) -> None:
        """Raise or wait: the live attempt may be this task's or that of another deployment."""

    @abstractmethod
    def wait(self, lease: Lease) -> None:
        """Wait for the live attempt of another task; ``task`` returns from then on that it waited for it."""

    @abstractmethod
    def cancel_previous(self, lease: Lease) -> None:
        """Stop the attempt of an earlier try, which a user cleared, and wait for its end."""

    @abstractmethod
    def reattach(self, lease: Lease) -> Result | Continuation:
        """Continue the attempt of an earlier try."""

    @abstractmethod
    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        """Claim the next attempt by ``StepLease.claim``."""

    @abstractmethod
    def missing_input(self, error: MissingInputError) -> None:
        """Wait for the attempt that makes a missing input, or raise."""

    @abstractmethod
    def run(self, claimed: ClaimedAttempt) -> Result | Continuation:
        """Run the attempt that this task just claimed."""


class JobOutcomeHandler(ABC, Generic[Result]):
    """What a claimer does in its own way after the end of a job that it followed.

    Attributes:
        fault: Why the job can never run as it is, if so.
    """

    fault: AttemptError | None = None

    @abstractmethod
    def succeeded(self, lease: Lease) -> Result:
        """Return the result: the job made the output, and its record is complete."""

    @abstractmethod
    def failure(self, action: NextAction, lease: Lease) -> Exception:
        """Return the error that ends the claimer: ``action`` allows neither a result nor a next attempt."""

    @abstractmethod
    def show_log(self) -> None:
        """Log the end of the job's output, before its consequences."""

    @abstractmethod
    def lost(self, lease: Lease, *, may_survive: bool) -> Continuation:
        """Pause after a lost attempt, or wait until its lease is stale if processes of it may survive."""


class StoreRetry(Protocol):
    """Calls the store."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Return what ``call`` returns; it may run many times."""


def no_retry(call: Callable[[], T], /) -> T:
    """Call once: the task's next try is the retry."""
    return call()


class AttemptProtocol(Generic[Result]):
    """Runs the protocol for one claimer.

    Args:
        step_lease: The lease and attempts of the step.
        handler: What the claimer does in its own way.
        retry: How it calls the store.
    """

    def __init__(self, step_lease: StepLease, handler: AttemptHandler[Result], retry: StoreRetry = no_retry) -> None:
        self._step_lease = step_lease
        self._handler = handler
        self._retry = retry

    def result(self) -> Result:
        """Follow the record until there is a result; a step can queue and be lost many times in one try."""
        while isinstance(result := self._check_record(), Continuation):
            pass
        return result

    def result_after(self, job: str, end: JobResult, ended: JobOutcomeHandler[Result]) -> Result:
        """Return the ``result`` for a claimer whose ``job`` has just ended."""
        result = resolve_finished_job(self._step_lease, job, end, ended)
        return self.result() if isinstance(result, Continuation) else result

    def _check_record(self) -> Result | Continuation:
        """Read the record and act on the decision."""
        record = self._retry(self._step_lease.read)
        start = decide_start(record, self._handler.task(), self._handler.rerun_request())
        match start:
            case Finished():
                return self._finished(start)
            case InheritFailure():
                raise self._handler.failure(start.lease)
            case OwnershipUnknown():
                self._handler.ownership_unknown(start.lease)
            case WaitForOwner():
                self._handler.wait(start.lease)
            case CancelPrevious():
                self._handler.cancel_previous(start.lease)
            case Reattach():
                result = self._handler.reattach(start.lease)
                return self._start_attempt(start.lease, withdraws=False) if result is Continuation.RECLAIM else result
            case Claim():
                return self._start_attempt(record.lease, withdraws=start.withdraws)
        return Continuation.RECHECK

    def _finished(self, start: Finished) -> Result:
        if warning := start_warning(start, self._step_lease.step):
            self._handler.warn(warning)
        lease = start.lease
        if lease is not None and not lease.written_by_marin:
            self._retry(partial(complete_commit, self._step_lease.path, lease))
        return self._handler.finished(lease)

    def _start_attempt(self, over: Lease | None, *, withdraws: bool) -> Result | Continuation:
        """Make the next attempt, or wait for an input; recheck if another claimer was faster."""
        try:
            claimed = self._handler.claim(over, withdraws)
        except MissingInputError as error:
            self._handler.missing_input(error)
            return Continuation.RECHECK
        return Continuation.RECHECK if claimed is None else self._handler.run(claimed)


def resolve_finished_job(
    step_lease: StepLease, job: str, end: JobResult, ended: JobOutcomeHandler[Result]
) -> Result | Continuation:
    """Act on the end of ``job`` by the present lease: return the result, raise the failure, or recheck."""
    held = step_lease.store.read()
    lease = held.lease if held is not None else None
    action = next_action(lease, job, end)
    if lease is None or action is NextAction.START_OVER:
        return Continuation.RECHECK
    if action is NextAction.SUCCEED:
        complete_commit(step_lease.path, lease)
        return ended.succeeded(lease)
    if action in (
        NextAction.SPEC_CHANGED,
        NextAction.UNRUNNABLE_JOB,
        NextAction.NEXT_ATTEMPT,
        NextAction.WAIT_UNTIL_STALE,
    ):
        ended.show_log()
    match action:
        case NextAction.STOPPED:
            step_lease.end_unstarted(job, AttemptOutcome.STOPPED)
        case NextAction.SPEC_CHANGED:
            step_lease.end_unstarted(job, AttemptOutcome.LOST)
        case NextAction.UNRUNNABLE_JOB:
            if not step_lease.end_unstarted(job, AttemptOutcome.FAILED, ended.fault):
                return Continuation.RECHECK
        case NextAction.NEXT_ATTEMPT:
            # Recheck if its driver became the lease owner after all, or another claimer took over.
            return ended.lost(lease, may_survive=False) if step_lease.end_lost_attempt(lease) else Continuation.RECHECK
        case NextAction.WAIT_UNTIL_STALE:
            return ended.lost(lease, may_survive=True)
    raise ended.failure(action, lease)
