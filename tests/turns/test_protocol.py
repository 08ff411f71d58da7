"""What every claimant has in common, told by one that notes what it is asked to do."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tradewind import ExecutorStep
from tradewind.calls.references import CodeFolder
from tradewind.calls.spec import step_spec
from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.leases.lease import Lease, Phase
from tradewind.records.leases.turn import commit_turn
from tradewind.records.status import Status, read_status, write_status
from tradewind.steps import resolve
from tradewind.storage.files import write_text
from tradewind.turns.claims import MissingInputError, StepTurns, Turn
from tradewind.turns.end import JobEnd, Verdict
from tradewind.turns.protocol import Claimant, EndedJob, Next, TurnProtocol, go_on_after
from tradewind.turns.start import Asked, Task

T = TypeVar("T")
OURS: dict[str, object] = {
    "deployment": "here",
    "dag": "d",
    "run": "r",
    "task": "t",
    "map_index": -1,
    "try": 1,
    "max_tries": 3,
}
THEIRS: dict[str, object] = {**OURS, "run": "another"}


class FailedHereError(Exception):
    """What ends our claimant."""


class Noting(Claimant[str], EndedJob[str]):
    """A claimant that does at each turn what the test says, and notes what it was asked to do."""

    def __init__(self, turns: StepTurns) -> None:
        self.turns = turns
        self.me = Task(turns.by)
        self.done: list[str] = []
        self.lives_on = True
        self.faster = 0
        self.makes: str | Next = "made"

    def task(self) -> Task:
        return self.me

    def asked(self) -> Asked:
        return Asked()

    def warn(self, sentence: str) -> None:
        self.done.append("warned")

    def finished(self, lease: Lease | None) -> str:
        assert lease is not None and read_status(self.turns.path) is Status.SUCCESS, "its record is complete"
        return f"attempt {lease.attempt}"

    def failure(self, *about: object) -> FailedHereError:
        return FailedHereError(*about)

    def doubt(self, lease: Lease) -> NoReturn:
        raise FailedHereError("doubt")

    def wait(self, lease: Lease) -> None:
        self.done.append(f"waited for {lease.attempt}")
        self.me = replace(self.me, waited_for=lease.attempt)
        end(self.turns, Phase.FAILED)

    def stop_first(self, lease: Lease) -> None:
        self.done.append(f"stopped {lease.attempt}")
        self.turns.stop(lease)

    def rejoin(self, lease: Lease) -> str | Next:
        self.done.append(f"rejoined {lease.attempt}")
        return f"followed {lease.attempt}" if self.lives_on else Next.CLAIM

    def claim(self, over: Lease | None, withdraws: bool) -> Turn | None:
        self.done.append(f"claimed over {over.attempt if over else None}")
        if self.faster:
            self.faster -= 1
            return None
        return claimed(self.turns, over)

    def missing_input(self, error: MissingInputError) -> None:
        raise error

    def run(self, turn: Turn) -> str | Next:
        self.done.append(f"ran {turn.attempt.number}")
        made, self.makes = self.makes, "made"
        return made

    def made(self, lease: Lease) -> str:
        return self.finished(lease)

    def show_log(self) -> None:
        self.done.append("showed the log")

    def lost(self, lease: Lease, *, may_live_on: bool) -> Next:
        self.done.append("waits until stale" if may_live_on else "next")
        return Next.LOOK


def claimed(turns: StepTurns, over: Lease | None = None) -> Turn:
    turn = turns.claim(over, lambda: step_spec(turns.step, CodeFolder(Path("/nowhere"))))
    assert turn is not None
    return turn


def begun(turns: StepTurns) -> None:
    held = turns.store.read()
    assert held is not None
    turns.store.begin(held.lease.job, "keeper")


def end(turns: StepTurns, phase: Phase) -> None:
    held = turns.store.read()
    assert held is not None
    turns.store.change(held, phase=phase)


def commit(turns: StepTurns, turn: Turn) -> None:
    """Make the output as a driver does that dies right after its commit."""
    store, held = turns.store, turns.store.begin(turn.attempt.job, "keeper")
    write_text(posixpath.join(turns.path, "data"), "made")
    commit_turn(lambda **changes: store.change(held, **changes), turns.path, turn.attempt, lambda: None)
    write_status(turns.path, Status.RUNNING)


def phase_of(turns: StepTurns) -> Phase | None:
    held = turns.store.read()
    return held.lease.phase if held is not None else None


def turns_by(by: dict[str, object], tmp_path: Path) -> StepTurns:
    step = ExecutorStep("made", posixpath.join, {})
    return StepTurns(resolve([step], str(tmp_path)).of(step), by)


@pytest.fixture
def turns(tmp_path: Path) -> StepTurns:
    return turns_by(OURS, tmp_path)


@pytest.fixture
def theirs(tmp_path: Path) -> StepTurns:
    return turns_by(THEIRS, tmp_path)


def test_who_was_too_late_looks_again_and_so_does_who_lost_its_attempt(turns: StepTurns) -> None:
    claimant = Noting(turns)
    claimant.faster = 2
    assert TurnProtocol(turns, claimant).result() == "made"
    assert claimant.done == ["claimed over None"] * 3 + ["ran 1"]


def test_a_result_is_taken_when_its_record_is_complete_though_its_driver_died_before(
    turns: StepTurns, theirs: StepTurns
) -> None:
    commit(theirs, claimed(theirs))
    assert TurnProtocol(turns, Noting(turns)).result() == "attempt 1"


def test_a_failure_that_was_waited_for_is_the_claimants_own(turns: StepTurns, theirs: StepTurns) -> None:
    claimed(theirs)
    claimant = Noting(turns)
    with pytest.raises(FailedHereError):
        TurnProtocol(turns, claimant).result()
    assert claimant.done == ["waited for 1"]


def test_the_turn_of_an_earlier_try_is_followed_or_claimed_over_if_nothing_was_ever_started(turns: StepTurns) -> None:
    claimed(turns)
    assert TurnProtocol(turns, Noting(turns)).result() == "followed 1"
    claimant = Noting(turns)
    claimant.lives_on = False
    assert TurnProtocol(turns, claimant).result() == "made"
    assert claimant.done == ["rejoined 1", "claimed over 1", "ran 2"]


def test_a_cleared_task_stops_its_earlier_try_before_it_runs_again(turns: StepTurns) -> None:
    claimed(turns)
    claimant = Noting(turns)
    claimant.me = Task({**OURS, "max_tries": 4})
    assert TurnProtocol(turns, claimant).result() == "made"
    assert claimant.done == ["stopped 1", "claimed over 1", "ran 2"]
    first = turns.attempt(1)
    assert first is not None and first.outcome is AttemptOutcome.STOPPED


def test_a_task_of_the_same_name_in_an_airflow_without_one_is_neither_followed_nor_stopped(tmp_path: Path) -> None:
    unnamed = turns_by({**OURS, "deployment": ""}, tmp_path)
    claimed(unnamed)
    with pytest.raises(FailedHereError, match="doubt"):
        TurnProtocol(unnamed, Noting(unnamed)).result()
    assert phase_of(unnamed) is Phase.CLAIMED


def test_an_earlier_try_that_claims_meanwhile_is_told_by_its_note(tmp_path: Path) -> None:
    unnamed = turns_by({**OURS, "deployment": ""}, tmp_path)
    noted: list[str] = []

    class Behind(Noting):
        def task(self) -> Task:
            known = tuple(noted)
            if not known:
                noted.append(claimed(self.turns).attempt.job)  # a worker that is to be killed, and is not yet
            return Task(self.turns.by, claimed=known)

    claimant = Behind(unnamed)
    claimant.faster = 1
    assert TurnProtocol(unnamed, claimant).result() == "followed 1"
    assert claimant.done == ["claimed over None", "rejoined 1"]


def test_the_store_is_asked_with_the_claimants_patience(turns: StepTurns, theirs: StepTurns) -> None:
    asked: list[object] = []

    def ask(call: Callable[[], T], /) -> T:
        asked.append(call)
        return call()

    commit(theirs, claimed(theirs))
    TurnProtocol(turns, Noting(turns), ask).result()
    assert len(asked) == 2  # the look, and the completion of the record


def test_a_job_that_made_the_output_leaves_a_complete_record(turns: StepTurns) -> None:
    turn = claimed(turns)
    commit(turns, turn)
    assert go_on_after(turns, turn.attempt.job, JobEnd.LOST, Noting(turns)) == "attempt 1"


@pytest.mark.parametrize(
    ("ended", "outcome", "phase"),
    [
        (JobEnd.STOPPED, AttemptOutcome.STOPPED, Phase.STOPPED),
        (JobEnd.CHANGED, AttemptOutcome.LOST, Phase.STOPPED),
        (JobEnd.FAULTY, AttemptOutcome.FAILED, Phase.FAILED),
        (JobEnd.SUCCEEDED, None, Phase.CLAIMED),
    ],
)
def test_an_end_that_no_attempt_follows_ends_a_turn_that_was_never_begun(
    turns: StepTurns, ended: JobEnd, outcome: AttemptOutcome | None, phase: Phase
) -> None:
    turn, claimant = claimed(turns), Noting(turns)
    claimant.fault = AttemptError("RUNTIME_ENV", "no such package")
    with pytest.raises(FailedHereError):
        go_on_after(turns, turn.attempt.job, ended, claimant)
    attempt = turns.attempt(1)
    assert attempt is not None and (attempt.outcome, phase_of(turns)) == (outcome, phase)
    assert attempt.error == (claimant.fault if outcome is AttemptOutcome.FAILED else None)


def test_a_faulty_job_whose_driver_has_begun_after_all_is_looked_at_again(turns: StepTurns) -> None:
    turn, claimant = claimed(turns), Noting(turns)

    class Begins(Noting):
        def show_log(self) -> None:
            begun(self.turns)  # between the look at the lease and its end

    assert go_on_after(turns, turn.attempt.job, JobEnd.FAULTY, Begins(turns)) is Next.LOOK
    assert phase_of(turns) is Phase.RUNNING
    assert go_on_after(turns, turn.attempt.job, JobEnd.LOST, claimant) is Next.LOOK
    assert claimant.done == ["showed the log", "waits until stale"]


def test_a_lost_turn_is_ended_before_the_next_attempt_and_not_if_somebody_has_gone_on(
    turns: StepTurns, theirs: StepTurns
) -> None:
    turn, claimant = claimed(turns), Noting(turns)

    class Overtaken(Noting):
        def show_log(self) -> None:
            held = self.turns.store.read()
            assert held is not None
            claimed(theirs, held.lease)

    assert go_on_after(turns, turn.attempt.job, JobEnd.NOT_STARTED, claimant) is Next.LOOK
    assert (claimant.done, phase_of(turns)) == (["showed the log", "next"], Phase.STOPPED)
    late, over = Overtaken(turns), turns.read().lease
    second = claimed(turns, over)
    assert go_on_after(turns, second.attempt.job, JobEnd.LOST, late) is Next.LOOK
    assert late.done == [], "its loss does not count"
    assert go_on_after(turns, turn.attempt.job, JobEnd.LOST, late) is Next.LOOK, "an old turn is nobody's"


def test_a_failed_function_is_told_by_its_verdict(turns: StepTurns) -> None:
    turn = claimed(turns)
    begun(turns)
    end(turns, Phase.FAILED)
    with pytest.raises(FailedHereError) as caught:
        go_on_after(turns, turn.attempt.job, JobEnd.LOST, Noting(turns))
    assert caught.value.args[0] is Verdict.FAILED
