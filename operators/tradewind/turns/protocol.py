"""The one interpreter of the turn protocol: it reads the record, decides, and does what is the same for everybody.

Whoever wants an output made comes through here: a step's task, a script, and a task that works under a turn itself. How
each of them waits, makes an attempt and says how it went are the methods of its ``Claimant``, and, where a job makes
the attempt, of its ``EndedJob``. None of them reads a lease to decide what comes next, and none of them ends a turn
that another one would end in another way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.leases.lease import Lease
from tradewind.records.leases.turn import complete_commit
from tradewind.turns.claims import MissingInputError, StepTurns, Turn
from tradewind.turns.end import JobEnd, Verdict, judge_end
from tradewind.turns.start import (
    Adopt,
    Asked,
    Claim,
    Doubt,
    Finished,
    Rejoin,
    StopFirst,
    Task,
    Wait,
    decide_start,
    start_warning,
)

T = TypeVar("T")
Result = TypeVar("Result")


class Next(Enum):
    """What follows where there is no result yet."""

    LOOK = "look"
    """Look at the record again."""
    CLAIM = "claim"
    """Claim over the turn of an earlier try, of which nothing was ever started."""


class Claimant(ABC, Generic[Result]):
    """What is a claimant's own about its turns; its methods may also raise what ends it."""

    @abstractmethod
    def task(self) -> Task:
        """Who asks, by what it knows once the record is read: a claim is noted before it is made."""

    @abstractmethod
    def asked(self) -> Asked:
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
    def doubt(self, lease: Lease) -> None:
        """It cannot be said whether the turn is its own: raise, or wait."""

    @abstractmethod
    def wait(self, lease: Lease) -> None:
        """Somebody else is at work: wait, and be a ``task`` that has waited for that attempt."""

    @abstractmethod
    def stop_first(self, lease: Lease) -> None:
        """Stop the turn of an earlier try, which a person cleared, and wait until it has ended."""

    @abstractmethod
    def rejoin(self, lease: Lease) -> Result | Next:
        """Go on with the turn of an earlier try."""

    @abstractmethod
    def claim(self, over: Lease | None, withdraws: bool) -> Turn | None:
        """Claim the next turn by ``StepTurns.claim``."""

    @abstractmethod
    def missing_input(self, error: MissingInputError) -> None:
        """An input is no result: wait for whoever is making it, or raise."""

    @abstractmethod
    def run(self, turn: Turn) -> Result | Next:
        """Make the attempt of a turn that was just claimed."""


class EndedJob(ABC, Generic[Result]):
    """What is a claimant's own about the end of a job that it followed.

    Attributes:
        fault: Why the job can never run as it is, if that is so.
    """

    fault: AttemptError | None = None

    @abstractmethod
    def made(self, lease: Lease) -> Result:
        """The job made the output, whose record is complete."""

    @abstractmethod
    def failure(self, verdict: Verdict, lease: Lease) -> Exception:
        """What ends the claimant: whatever the verdict is, there is no result and no next attempt."""

    @abstractmethod
    def show_log(self) -> None:
        """Show the last that the job said, before what comes of it."""

    @abstractmethod
    def lost(self, lease: Lease, *, may_live_on: bool) -> Next:
        """The attempt is lost: pause, or wait until its lease has run out if something of it may live on."""


class Patience(Protocol):
    """How the store is asked."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """What ``call`` returns; it may be called many times."""


def once(call: Callable[[], T], /) -> T:
    """The patience of those whose next try asks again."""
    return call()


class TurnProtocol(Generic[Result]):
    """Takes a step's turn for one claimant.

    Args:
        turns: The turns of the step.
        claimant: Who takes them, and what it does of its own.
        ask: How it asks the store.
    """

    def __init__(self, turns: StepTurns, claimant: Claimant[Result], ask: Patience = once) -> None:
        self._turns = turns
        self._claimant = claimant
        self._ask = ask

    def result(self) -> Result:
        """Look until there is a result: a loop, since a step can queue and be lost many times in one try."""
        while isinstance(seen := self._look(), Next):
            pass
        return seen

    def result_after(self, job: str, end: JobEnd, ended: EndedJob[Result]) -> Result:
        """``result`` for a claimant whose ``job`` has just ended."""
        seen = go_on_after(self._turns, job, end, ended)
        return self.result() if isinstance(seen, Next) else seen

    def _look(self) -> Result | Next:
        """Read the record and do what it asks for."""
        record = self._ask(self._turns.read)
        start = decide_start(record, self._claimant.task(), self._claimant.asked())
        match start:
            case Finished():
                return self._finished(start)
            case Adopt():
                raise self._claimant.failure(start.lease)
            case Doubt():
                self._claimant.doubt(start.lease)
            case Wait():
                self._claimant.wait(start.lease)
            case StopFirst():
                self._claimant.stop_first(start.lease)
            case Rejoin():
                seen = self._claimant.rejoin(start.lease)
                return self._make(start.lease, withdraws=False) if seen is Next.CLAIM else seen
            case Claim():
                return self._make(record.lease, withdraws=start.withdraws)
        return Next.LOOK

    def _finished(self, start: Finished) -> Result:
        if warning := start_warning(start, self._turns.step):
            self._claimant.warn(warning)
        lease = start.lease
        if lease is not None and not lease.is_marins:
            self._ask(partial(complete_commit, self._turns.path, lease))
        return self._claimant.finished(lease)

    def _make(self, over: Lease | None, *, withdraws: bool) -> Result | Next:
        """Make the next attempt, or wait for an input; look again if somebody else was faster."""
        try:
            turn = self._claimant.claim(over, withdraws)
        except MissingInputError as error:
            self._claimant.missing_input(error)
            return Next.LOOK
        return Next.LOOK if turn is None else self._claimant.run(turn)


def go_on_after(turns: StepTurns, job: str, end: JobEnd, ended: EndedJob[Result]) -> Result | Next:
    """What follows the end of ``job`` by what the lease says now: the result, a failure, or another look."""
    held = turns.store.read()
    lease = held.lease if held is not None else None
    verdict = judge_end(lease, job, end)
    if lease is None or verdict is Verdict.START_OVER:
        return Next.LOOK
    if verdict is Verdict.GREEN:
        complete_commit(turns.path, lease)
        return ended.made(lease)
    if verdict in (Verdict.CHANGED, Verdict.FAULTY_JOB, Verdict.NEXT, Verdict.WAIT_UNTIL_STALE):
        ended.show_log()
    match verdict:
        case Verdict.STOPPED:
            turns.end_unstarted(job, AttemptOutcome.STOPPED)
        case Verdict.CHANGED:
            turns.end_unstarted(job, AttemptOutcome.LOST)
        case Verdict.FAULTY_JOB:
            if not turns.end_unstarted(job, AttemptOutcome.FAILED, ended.fault):
                return Next.LOOK
        case Verdict.NEXT:
            # Otherwise its driver has begun after all, or somebody has gone on.
            return ended.lost(lease, may_live_on=False) if turns.end_lost(lease) else Next.LOOK
        case Verdict.WAIT_UNTIL_STALE:
            return ended.lost(lease, may_live_on=True)
    raise ended.failure(verdict, lease)
