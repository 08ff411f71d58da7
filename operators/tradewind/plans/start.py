"""What a step's task does when it starts: decided by the record, who the task is, and whether a person cleared it.

The lease decides whose turn it is. A result is taken as it is, unless a person or the plan asked for it to be made
again and nobody has done so since. Somebody else's turn is waited for; a failure of it that was waited for is this
task's failure too, so that thirty runs do not each try again what has just failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.plans.plan import Decision, PlannedStep
from tradewind.records.leases import Lease, Phase
from tradewind.records.record import Record, RecordState


@dataclass(frozen=True)
class Finished:
    """The output is there; ``lease`` says who made it, None if Marin did."""

    lease: Lease | None


@dataclass(frozen=True)
class Wait:
    """Somebody else is at work."""

    lease: Lease


@dataclass(frozen=True)
class Rejoin:
    """An earlier try of this task claimed this turn: its job is followed, if it is there."""

    lease: Lease


@dataclass(frozen=True)
class StopFirst:
    """An earlier try of this task is at work and a person cleared it: it is stopped, then this is decided again."""

    lease: Lease


@dataclass(frozen=True)
class Adopt:
    """The turn that was waited for failed: so does this task. Also an earlier failure that is not to be tried again."""

    lease: Lease | None


@dataclass(frozen=True)
class Claim:
    """A new turn is due; ``withdraws`` says that it replaces a result."""

    withdraws: bool = False


Start = Finished | Wait | Rejoin | StopFirst | Adopt | Claim


@dataclass(frozen=True)
class Asked:
    """What tells a task that was asked to make its output again from one that comes back after a crash.

    Attributes:
        finished_attempt: The attempt that this task noted when it ended green, if it did; 0 for an output without one.
        tries_allowed_then: Airflow's ``max_tries`` at that time; Clear raises it, a crash does not.
        tries_allowed_now: ``max_tries`` now.
        planned_attempt: The attempt that the plan of this run saw.
        was_reused: The plan skipped this task, so only Clear can have brought it here.
        is_forced: The plan asked for it to be made again.
        is_damaged: The plan found that the output of ``planned_attempt`` is not as it was committed.
        came_along: It was cleared because a step that it reads was, and reads the same as before.
    """

    finished_attempt: int | None = None
    tries_allowed_then: int = 0
    tries_allowed_now: int = 0
    planned_attempt: int = 0
    was_reused: bool = False
    is_forced: bool = False
    is_damaged: bool = False
    came_along: bool = False

    @staticmethod
    def by_plan(planned: PlannedStep | None) -> Asked:
        """What the plan of the run asks of a task that it has this line for."""
        if planned is None:
            return Asked()
        return Asked(
            planned_attempt=planned.attempt,
            was_reused=planned.decision is Decision.REUSE,
            is_forced=planned.is_forced,
            is_damaged=planned.is_damaged,
        )

    def replaces(self, attempt: int) -> bool:
        """Whether ``attempt``, a result, is to be made again; a newer one than was asked about is not."""
        if self.is_damaged and attempt == self.planned_attempt:
            return True  # whatever was noted of it, and whoever came along: it cannot be read
        if self.finished_attempt is not None:
            was_cleared = self.tries_allowed_now > self.tries_allowed_then
            return was_cleared and not self.came_along and attempt == self.finished_attempt
        return (self.was_reused or self.is_forced) and attempt == self.planned_attempt


@dataclass(frozen=True)
class Task:
    """Who asks.

    Attributes:
        by: The task as its claims name it: dag, run, task, map_index, try and max_tries.
        waited_for: The attempt of somebody else that this task waited for, if it did.
        retries_failures: Whether a step that failed before is tried again.
    """

    by: dict[str, object]
    waited_for: int | None = None
    retries_failures: bool = True

    def owns(self, lease: Lease) -> bool:
        """Whether this task, in whatever try, claimed that turn."""
        return is_same_task(lease.by, self.by)

    def was_cleared_since(self, lease: Lease) -> bool:
        """Whether a person cleared this task after it claimed that turn."""
        now, then = self.by.get("max_tries"), lease.by.get("max_tries")
        return isinstance(now, int) and isinstance(then, int) and now > then


def is_same_task(by: object, other: object) -> bool:
    """Whether two claims were made by tries of one task."""
    names = ("dag", "run", "task", "map_index")
    if not isinstance(by, dict) or not isinstance(other, dict) or "dag" not in by:
        return by == other
    return all(by.get(name) == other.get(name) for name in names)


def decide_start(record: Record, task: Task, asked: Asked) -> Start:
    """Decide what ``task`` does about an output with this ``record``."""
    lease, state = record.lease, record.state
    if state is RecordState.FINISHED:
        attempt = lease.attempt if lease is not None else 0
        return Claim(withdraws=True) if asked.replaces(attempt) else Finished(lease)
    if lease is not None and state is RecordState.AT_WORK:
        return _of_live(lease, task)
    if state is RecordState.FAILED and _adopts(lease, task):
        return Adopt(lease)
    return Claim(withdraws=state is RecordState.GONE)


def _of_live(lease: Lease, task: Task) -> Start:
    if not task.owns(lease):
        return Wait(lease)
    return StopFirst(lease) if task.was_cleared_since(lease) or lease.stop_requested else Rejoin(lease)


def _adopts(lease: Lease | None, task: Task) -> bool:
    if not task.retries_failures:
        return True
    return lease is not None and lease.phase is Phase.FAILED and lease.attempt == task.waited_for
