"""Decisions of a step's task: what it does when it starts, and after the Ray job that it followed has ended.

At the start, the lease decides who may run. The task takes a result as it is, unless a user or the plan requested a
rerun that no attempt has made since. It waits for the live attempt of another task. If that attempt fails, the waiting
task inherits the failure, so that thirty runs do not each retry what has just failed.

After a job, the lease decides first, and Ray's ending only where the lease leaves the outcome open. If the lease names
another job by then, another attempt has started, and the task starts over.
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
    """The output is a result; ``lease`` names the attempt that made it, None if Marin did."""

    lease: Lease | None


@dataclass(frozen=True)
class WaitForOwner:
    """Another task's attempt is live."""

    lease: Lease


@dataclass(frozen=True)
class OwnershipUnknown:
    """A task of the same name has a live attempt, and its Airflow or ours has no name, so the owner is unknown.

    This task neither follows nor stops it, since it may belong to another deployment on the same prefix.
    """

    lease: Lease


@dataclass(frozen=True)
class Reattach:
    """An earlier try of this task claimed this attempt: follow its job, if Ray has it."""

    lease: Lease


@dataclass(frozen=True)
class CancelPrevious:
    """An earlier try of this task has a live attempt and a user cleared it: stop it, then decide again."""

    lease: Lease


@dataclass(frozen=True)
class InheritFailure:
    """The attempt that this task waited for failed, or one failed that may not be retried: so does this task."""

    lease: Lease | None


@dataclass(frozen=True)
class Claim:
    """A new attempt is due; ``withdraws`` says that it replaces a result."""

    withdraws: bool = False


StartDecision = Finished | WaitForOwner | OwnershipUnknown | Reattach | CancelPrevious | InheritFailure | Claim


@dataclass(frozen=True)
class RerunRequest:
    """Facts that distinguish a task that must make its output again from one that returns after a crash.

    Attributes:
        finished_attempt: The attempt that this task noted when it ended green, if it did; 0 for an output without one.
        tries_allowed_then: Airflow's ``max_tries`` at that time; Clear changes it, unless a user lowered the retries
            meanwhile, and a crash does not.
        tries_allowed_now: ``max_tries`` now.
        clears_then: How often a user had cleared tasks of the run at that time.
        clears_now: How often a user has cleared them now.
        planned_attempt: The attempt that the plan of this run saw.
        was_reused: The plan skipped this task, so only Clear can have brought it here.
        is_forced: The plan requested a rerun.
        is_damaged: The plan found that the output of ``planned_attempt`` differs from what was committed.
        came_along: Airflow cleared it along with a step that it reads, and its inputs are unchanged.
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
        """Return what the plan's line for a task requests."""
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
        """Whether a user cleared this task since it ended green.

        A crash right before that end, and then a Clear of another task of the run, looks the same.
        """
        return self.tries_allowed_now != self.tries_allowed_then or self.clears_now > self.clears_then

    def should_replace(self, attempt: int) -> bool:
        """Whether ``attempt``, a result, must be made again; one newer than the request is not."""
        if self.is_damaged and attempt == self.planned_attempt:
            return True  # unreadable, so no note about it counts
        if self.finished_attempt is not None:
            return self.was_cleared and not self.came_along and attempt == self.finished_attempt
        return (self.was_reused or self.is_forced) and attempt == self.planned_attempt


@dataclass(frozen=True)
class TaskIdentity:
    """The task that decides.

    Attributes:
        by: The task as its claims name it: deployment, dag, run, task, map_index, try and max_tries.
        waited_for: The attempt of another task that this task waited for, if it did.
        retries_failures: Whether a step that failed before is retried.
        claimed: The jobs of the attempts that this task claimed, from its own notes. Set only where its Airflow has no
            name, since claims alone cannot distinguish two such Airflows.
    """

    by: dict[str, object]
    waited_for: int | None = None
    retries_failures: bool = True
    claimed: tuple[str, ...] = ()

    def owns(self, lease: Lease) -> bool:
        """Whether some try of this task claimed that attempt."""
        return is_same_task(lease.by, self.by) and (not lacks_deployment_name(lease.by) or lease.job in self.claimed)

    def may_be_owner(self, lease: Lease) -> bool:
        """Whether a task of the same name claimed that attempt, and one of the two Airflows has no name."""
        return _have_same_name(lease.by, self.by) and (
            lacks_deployment_name(lease.by) or lacks_deployment_name(self.by)
        )

    def was_cleared_since(self, lease: Lease) -> bool:
        """Whether a user cleared this task after it claimed that attempt."""
        now, then = self.by.get("max_tries"), lease.by.get("max_tries")
        return isinstance(now, int) and isinstance(then, int) and now != then


DEPLOYMENT: Final = "deployment"
"""Key of a claim: the name of its Airflow."""


def is_deployment_name(deployment: object) -> bool:
    """Whether a user chose this name of an Airflow; an unnamed one has the address of its API instead, or nothing.

    Addresses are no names: they change when an Airflow moves, and Airflows with default settings share theirs.
    """
    return isinstance(deployment, str) and deployment != "" and "://" not in deployment


def is_same_task(by: object, other: object) -> bool:
    """Whether tries of one task made both claims. A claim that names no deployment may be of any."""
    if not isinstance(by, Mapping) or not isinstance(other, Mapping) or "dag" not in by:
        return by == other
    is_of_one = DEPLOYMENT not in by or DEPLOYMENT not in other or by[DEPLOYMENT] == other[DEPLOYMENT]
    return is_of_one and _have_same_name(by, other)


def lacks_deployment_name(by: Mapping[str, object]) -> bool:
    """Whether a claim comes from an Airflow without a name."""
    return DEPLOYMENT in by and not is_deployment_name(by[DEPLOYMENT])


def _have_same_name(by: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return "dag" in by and all(by.get(name) == other.get(name) for name in ("dag", "run", "task", "map_index"))


def decide_start(record: Record, task: TaskIdentity, rerun: RerunRequest) -> StartDecision:
    """Decide what ``task`` does about an output with this ``record``."""
    lease, state = record.lease, record.state
    if state is RecordState.FINISHED:
        attempt = lease.attempt if lease is not None else 0
        return Claim(withdraws=True) if rerun.should_replace(attempt) else Finished(lease)
    if lease is not None and state is RecordState.AT_WORK:
        return _of_live(lease, task)
    if state is RecordState.FAILED and _inherits(lease, task):
        return InheritFailure(lease)
    return Claim(withdraws=state is RecordState.GONE)


def start_warning(start: StartDecision, step: ResolvedStep) -> str | None:
    """Return a warning about a reused result: two experiments may have given one path to two versions."""
    lease = start.lease if isinstance(start, Finished) else None
    return other_version_warning(step) if lease is not None and lease.version not in ("", step.digest) else None


def _of_live(lease: Lease, task: TaskIdentity) -> StartDecision:
    if lease.removing is not None:
        return WaitForOwner(lease)  # garbage collection is about to remove it
    if not task.owns(lease):
        return OwnershipUnknown(lease) if task.may_be_owner(lease) else WaitForOwner(lease)
    return CancelPrevious(lease) if task.was_cleared_since(lease) or lease.stop_requested else Reattach(lease)


def _inherits(lease: Lease | None, task: TaskIdentity) -> bool:
    if not task.retries_failures:
        return True
    return lease is not None and lease.phase is Phase.FAILED and lease.attempt == task.waited_for


class JobResult(Enum):
    """How a Ray job ended, as far as decisions depend on it."""

    SUCCEEDED = "succeeded"
    """Its driver exited with 0."""
    UNRUNNABLE = "faulty"
    """A retry would end the same way: Ray cannot make its environment, or no node fits it."""
    SUPERSEDED = "superseded"
    """Its driver exited because it had lost the lease."""
    CHILDREN_ENDED = "children ended"
    """Its driver exited because it had lost the lease, and reported that all its descendants have ended."""
    NOT_STARTED = "not started"
    """It never ran; it can queue again."""
    SPEC_CHANGED = "changed"
    """Its spec differs from the claimed one, so it ran nothing."""
    STOPPED = "stopped"
    """A user or another process stopped it."""
    LOST = "lost"
    """Its node, head or driver died, or the cause is unknown. This includes a driver that fails by itself: the lease
    says what a function raised, and a driver that never owned the lease may have died with its node."""


class NextAction(Enum):
    """What the task that followed the job does."""

    SUCCEED = "green"
    """The output is a result."""
    FAILED = "failed"
    """The function failed: the attempt's file says how."""
    STOPPED = "stopped"
    """The attempt was stopped, and not by another task."""
    START_OVER = "start over"
    """Read the record again, at once."""
    WAIT_UNTIL_STALE = "wait until stale"
    """Processes of the attempt may survive: the next attempt starts when its lease is stale."""
    NEXT_ATTEMPT = "next"
    """No process of the attempt runs: this task ends the attempt and claims the next one."""
    UNRUNNABLE_JOB = "faulty job"
    """This task ends the attempt as failed: its job can never run as it is."""
    SPEC_CHANGED = "changed"
    """The spec changed after the claim: this task ends the attempt and fails, and the step may be retried."""
    CONTRADICTION = "contradiction"
    """Ray says that the job succeeded, the lease that the attempt still runs: the task fails and trusts neither."""


_AFTER_CLAIM: Final = {
    JobResult.UNRUNNABLE: NextAction.UNRUNNABLE_JOB,
    JobResult.STOPPED: NextAction.STOPPED,
    JobResult.SUCCEEDED: NextAction.CONTRADICTION,
    JobResult.SPEC_CHANGED: NextAction.SPEC_CHANGED,
}
"""The driver never became the lease owner, and never will: an ID is submitted once."""
_AFTER_START: Final = {
    JobResult.SUCCEEDED: NextAction.CONTRADICTION,
    JobResult.STOPPED: NextAction.STOPPED,
    JobResult.CHILDREN_ENDED: NextAction.NEXT_ATTEMPT,
}
"""The driver ended without a record. Ray stops a job only on request."""


def next_action(lease: Lease | None, job: str, end: JobResult) -> NextAction:
    """Decide what follows the end of ``job``, when the output's lease is ``lease``."""
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
            return _AFTER_CLAIM.get(end, NextAction.NEXT_ATTEMPT)
        case Phase.RUNNING:
            return _AFTER_START.get(end, NextAction.WAIT_UNTIL_STALE)
    return NextAction.START_OVER


def _of_stopped(lease: Lease, end: JobResult) -> NextAction:
    """The driver ended in order: on request, before a preemption, or because it gave up."""
    if end is JobResult.SPEC_CHANGED:
        return NextAction.SPEC_CHANGED
    was_requested = lease.stop_requested is not None or end is JobResult.STOPPED
    return NextAction.STOPPED if was_requested else NextAction.NEXT_ATTEMPT
