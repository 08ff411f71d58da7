"""What a step's task does when it starts: decided by the record, who the task is, and whether a person cleared it.

The lease decides whose turn it is. A result is taken as it is, unless a person or the plan asked for it to be made
again and nobody has done so since. Somebody else's turn is waited for; a failure of it that was waited for is this
task's failure too, so that thirty runs do not each try again what has just failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tradewind.plans.decisions import other_version_warning
from tradewind.plans.plan import Decision, PlannedStep
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, RecordState
from tradewind.steps import ResolvedStep


@dataclass(frozen=True)
class Finished:
    """The output is there; ``lease`` says who made it, None if Marin did."""

    lease: Lease | None


@dataclass(frozen=True)
class WaitForOwner:
    """Somebody else is at work."""

    lease: Lease


@dataclass(frozen=True)
class OwnershipUnknown:
    """A task of this very name is at work, and whether it is this one cannot be said: its Airflow has no name, or ours.

    It is neither followed nor stopped, since it may be another deployment's on the same prefix.
    """

    lease: Lease


@dataclass(frozen=True)
class Reattach:
    """An earlier try of this task claimed this turn: its job is followed, if it is there."""

    lease: Lease


@dataclass(frozen=True)
class CancelPrevious:
    """An earlier try of this task is at work and a person cleared it: it is stopped, then this is decided again."""

    lease: Lease


@dataclass(frozen=True)
class InheritFailure:
    """The turn that was waited for failed: so does this task. Also an earlier failure that is not to be tried again."""

    lease: Lease | None


@dataclass(frozen=True)
class Claim:
    """A new turn is due; ``withdraws`` says that it replaces a result."""

    withdraws: bool = False


StartDecision = Finished | WaitForOwner | OwnershipUnknown | Reattach | CancelPrevious | InheritFailure | Claim


@dataclass(frozen=True)
class RerunRequest:
    """What tells a task that was asked to make its output again from one that comes back after a crash.

    Attributes:
        finished_attempt: The attempt that this task noted when it ended green, if it did; 0 for an output without one.
        tries_allowed_then: Airflow's ``max_tries`` at that time; Clear changes it, unless somebody lowered the
            retries meanwhile, and a crash does not.
        tries_allowed_now: ``max_tries`` now.
        clears_then: How often tasks of the run had been cleared at that time.
        clears_now: How often they have been now.
        planned_attempt: The attempt that the plan of this run saw.
        was_reused: The plan skipped this task, so only Clear can have brought it here.
        is_forced: The plan asked for it to be made again.
        is_damaged: The plan found that the output of ``planned_attempt`` is not as it was committed.
        came_along: It was cleared because a step that it reads was, and reads the same as before.
    """

    finished_attempt: int | None = None
    tries_allowed_then: int = 0
    tries_allowed_now: int = 0
    clears_then: int = 0
    clears_now: int = 0
    planned_attempt: int = 0
    was_reused: bool = False
    is_forced: bool = False
    is_damaged: bool = False
    came_along: bool = False

    @staticmethod
    def from_plan(planned: PlannedStep | None) -> RerunRequest:
        """What the plan of the run asks of a task that it has this line for."""
        if planned is None:
            return RerunRequest()
        return RerunRequest(
            planned_attempt=planned.attempt,
            was_reused=planned.decision is Decision.REUSE,
            is_forced=planned.is_forced,
            is_damaged=planned.is_damaged,
        )

    @property
    def was_cleared(self) -> bool:
        """Whether a person cleared this task since it ended green.

        A crash right before that end, and then a Clear of another task of the run, looks the same.
        """
        return self.tries_allowed_now != self.tries_allowed_then or self.clears_now > self.clears_then

    def should_replace(self, attempt: int) -> bool:
        """Whether ``attempt``, a result, is to be made again; a newer one than was asked about is not."""
        if self.is_damaged and attempt == self.planned_attempt:
            return True  # whatever was noted of it, and whoever came along: it cannot be read
        if self.finished_attempt is not None:
            return self.was_cleared and not self.came_along and attempt == self.finished_attempt
        return (self.was_reused or self.is_forced) and attempt == self.planned_attempt


@dataclass(frozen=True)
class TaskIdentity:
    """Who asks.

    Attributes:
        by: The task as its claims name it: deployment, dag, run, task, map_index, try and max_tries.
        waited_for: The attempt of somebody else that this task waited for, if it did.
        retries_failures: Whether a step that failed before is tried again.
        claimed: The jobs of the turns that this task claimed, as it noted them before. Only where its Airflow has no
            name, which cannot be told from another one by the claims alone.
    """

    by: dict[str, object]
    waited_for: int | None = None
    retries_failures: bool = True
    claimed: tuple[str, ...] = ()

    def owns(self, lease: Lease) -> bool:
        """Whether this task, in whatever try, claimed that turn."""
        return is_same_task(lease.by, self.by) and (not lacks_deployment_name(lease.by) or lease.job in self.claimed)

    def may_be_owner(self, lease: Lease) -> bool:
        """Whether a task of the same name claimed that turn, in an Airflow without a name or from one without."""
        return _have_same_name(lease.by, self.by) and (
            lacks_deployment_name(lease.by) or lacks_deployment_name(self.by)
        )

    def was_cleared_since(self, lease: Lease) -> bool:
        """Whether a person cleared this task after it claimed that turn."""
        now, then = self.by.get("max_tries"), lease.by.get("max_tries")
        return isinstance(now, int) and isinstance(then, int) and now != then


DEPLOYMENT: Final = "deployment"
"""What a claim calls the Airflow that it came from."""


def is_deployment_name(deployment: object) -> bool:
    """Whether somebody chose this name of an Airflow; one without has the address of its API in place of it, or none.

    Addresses are no names: they change when an Airflow moves, and Airflows that were left as installed share theirs.
    """
    return isinstance(deployment, str) and deployment != "" and "://" not in deployment


def is_same_task(by: object, other: object) -> bool:
    """Whether two claims were made by tries of one task. One that does not name its deployment may be of any."""
    if not isinstance(by, Mapping) or not isinstance(other, Mapping) or "dag" not in by:
        return by == other
    is_of_one = DEPLOYMENT not in by or DEPLOYMENT not in other or by[DEPLOYMENT] == other[DEPLOYMENT]
    return is_of_one and _have_same_name(by, other)


def lacks_deployment_name(by: Mapping[str, object]) -> bool:
    """Whether a claim says that its Airflow has no name."""
    return DEPLOYMENT in by and not is_deployment_name(by[DEPLOYMENT])


def _have_same_name(by: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return "dag" in by and all(by.get(name) == other.get(name) for name in ("dag", "run", "task", "map_index"))


def decide_start(record: Record, task: TaskIdentity, asked: RerunRequest) -> StartDecision:
    """Decide what ``task`` does about an output with this ``record``."""
    lease, state = record.lease, record.state
    if state is RecordState.FINISHED:
        attempt = lease.attempt if lease is not None else 0
        return Claim(withdraws=True) if asked.should_replace(attempt) else Finished(lease)
    if lease is not None and state is RecordState.AT_WORK:
        return _of_live(lease, task)
    if state is RecordState.FAILED and _adopts(lease, task):
        return InheritFailure(lease)
    return Claim(withdraws=state is RecordState.GONE)


def start_warning(start: StartDecision, step: ResolvedStep) -> str | None:
    """What a person should know of a result that is taken: two experiments may have given one path to two versions."""
    lease = start.lease if isinstance(start, Finished) else None
    return other_version_warning(step) if lease is not None and lease.version not in ("", step.digest) else None


def _of_live(lease: Lease, task: TaskIdentity) -> StartDecision:
    if lease.removing is not None:
        return WaitForOwner(lease)  # whoever made it: it is about to be removed
    if not task.owns(lease):
        return OwnershipUnknown(lease) if task.may_be_owner(lease) else WaitForOwner(lease)
    return CancelPrevious(lease) if task.was_cleared_since(lease) or lease.stop_requested else Reattach(lease)


def _adopts(lease: Lease | None, task: TaskIdentity) -> bool:
    if not task.retries_failures:
        return True
    return lease is not None and lease.phase is Phase.FAILED and lease.attempt == task.waited_for


# What follows when the job of a turn has ended: the lease decides, Ray's word only where the lease leaves it open.
#
# First of all, the lease must still be about the attempt that was followed: if it is not, somebody has gone on without
# this task, and it starts over.


class JobResult(Enum):
    """How a job ended, as far as it matters here."""

    SUCCEEDED = "succeeded"
    """Its driver ended with 0."""
    UNRUNNABLE = "faulty"
    """Trying again would end in the same way: its environment cannot be made, or it fits nowhere."""
    SUPERSEDED = "superseded"
    """Its driver ended because its turn was over."""
    CHILDREN_ENDED = "children ended"
    """The same, and it reports that all that it had started has ended."""
    NOT_STARTED = "not started"
    """It never ran; it can queue again."""
    SPEC_CHANGED = "changed"
    """What it was to run is not what was claimed, so it ran nothing."""
    STOPPED = "stopped"
    """Somebody stopped it."""
    LOST = "lost"
    """It went down with its node, its head or its driver, or nobody knows. Also a driver that fails by itself: what a
    function raises is in the lease, and a driver that never held it may have died with its node."""


class NextAction(Enum):
    """What the task that followed the job does."""

    SUCCEED = "green"
    """The output is a result."""
    FAILED = "failed"
    """The function failed: the attempt's file says how."""
    STOPPED = "stopped"
    """It was stopped, and not by somebody else's task."""
    START_OVER = "start over"
    """Look at the record again, at once."""
    WAIT_UNTIL_STALE = "wait until stale"
    """Something of it may live on: the next attempt follows when its lease has run out."""
    NEXT_ATTEMPT = "next"
    """Nothing of it runs: this task ends the turn and makes the next attempt."""
    UNRUNNABLE_JOB = "faulty job"
    """This task ends the turn: the job can never run as it is."""
    SPEC_CHANGED = "changed"
    """The spec was changed after the claim: this task ends the turn and fails; the step is not marked as failed."""
    CONTRADICTION = "contradiction"
    """The job says that it succeeded and the lease that it is at work: neither is believed."""


def next_action(lease: Lease | None, job: str, end: JobResult) -> NextAction:
    """Decide after the end of ``job``, whose lease reads ``lease`` now."""
    if lease is None or lease.job != job:
        return NextAction.START_OVER
    match lease.phase:
        case Phase.COMMITTED:
            return NextAction.SUCCEED
        case Phase.FAILED:
            return NextAction.FAILED
        case Phase.STOPPED:
            return _of_stopped(lease, end)
        case Phase.CLAIMED:
            return _of_claimed(end)
        case Phase.RUNNING:
            return _of_running(end)
    return NextAction.START_OVER


def _of_stopped(lease: Lease, end: JobResult) -> NextAction:
    """Its driver ended in good order: asked to, because its node was taken away, or because it had to give up."""
    if end is JobResult.SPEC_CHANGED:
        return NextAction.SPEC_CHANGED
    was_asked = lease.stop_requested is not None or end is JobResult.STOPPED
    return NextAction.STOPPED if was_asked else NextAction.NEXT_ATTEMPT


def _of_claimed(end: JobResult) -> NextAction:
    """Its driver never became its keeper, and never will: an id is submitted once."""
    match end:
        case JobResult.UNRUNNABLE:
            return NextAction.UNRUNNABLE_JOB
        case JobResult.STOPPED:
            return NextAction.STOPPED
        case JobResult.SUCCEEDED:
            return NextAction.CONTRADICTION
        case JobResult.SPEC_CHANGED:
            return NextAction.SPEC_CHANGED
    return NextAction.NEXT_ATTEMPT


def _of_running(end: JobResult) -> NextAction:
    """Its driver went without a word. Ray stops a job only when somebody asks it to."""
    match end:
        case JobResult.SUCCEEDED:
            return NextAction.CONTRADICTION
        case JobResult.STOPPED:
            return NextAction.STOPPED
        case JobResult.CHILDREN_ENDED:
            return NextAction.NEXT_ATTEMPT
    return NextAction.WAIT_UNTIL_STALE
