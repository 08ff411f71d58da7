"""What a step's task does when it starts: nothing, follow the attempt that is under way, or make a new one."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.records.attempts import Attempt, Outcome
from tradewind.records.status import Status


@dataclass(frozen=True)
class Finished:
    """The output is there; ``attempt`` made it, if it was one of ours."""

    attempt: Attempt | None


@dataclass(frozen=True)
class Follow:
    """``attempt`` has not ended: it is submitted if it is not yet, and followed."""

    attempt: Attempt


@dataclass(frozen=True)
class Claim:
    """A new attempt is due; ``withdraws`` says that it replaces a finished output."""

    number: int
    withdraws: bool = False


Start = Finished | Follow | Claim


@dataclass(frozen=True)
class ClearedTask:
    """What tells a task that a person cleared from one that comes back after a crash.

    Attributes:
        finished_attempt: The attempt that this task noted when it ended green, if it did; 0 for an output without one.
        tries_allowed_then: Airflow's ``max_tries`` at that time; Clear raises it, a crash does not.
        tries_allowed_now: ``max_tries`` now.
        was_reused: The plan of this run skipped this task, so only Clear can have brought it here.
    """

    finished_attempt: int | None = None
    tries_allowed_then: int = 0
    tries_allowed_now: int = 0
    was_reused: bool = False

    def asks_again(self, newest: Attempt | None, mine: bool) -> bool:
        """Whether a person asked for the step to be made again, and no newer attempt has done so since."""
        if self.finished_attempt is not None:
            is_newest = self.finished_attempt == (newest.number if newest else 0)
            return is_newest and self.tries_allowed_now > self.tries_allowed_then
        return self.was_reused and not mine


def decide_start(status: Status | None, newest: Attempt | None, cleared: ClearedTask, mine: bool) -> Start:
    """Decide from the record; ``mine`` says that ``newest`` was started by this very task of this run."""
    number = 1 + (newest.number if newest else 0)
    if newest is not None and newest.outcome is None:
        return Follow(newest)
    if status is Status.SUCCESS or (newest is not None and newest.outcome is Outcome.SUCCEEDED):
        return Claim(number, withdraws=True) if cleared.asks_again(newest, mine) else Finished(newest)
    return Claim(number)
