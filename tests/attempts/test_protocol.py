"""Behavior that all claimers share, tested with a claimer that records its calls."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tradewind import ExecutorStep
from tradewind.attempts.decisions import JobResult, NextAction, RerunRequest, TaskIdentity
from tradewind.attempts.protocol import (
    AttemptHandler,
    AttemptProtocol,
    Continuation,
    JobOutcomeHandler,
    resolve_finished_job,
)
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease
from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.lease import Lease, Phase
from tradewind.records.lifecycle import commit_attempt
from tradewind.records.record import Status, read_status, write_status
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import resolve
from tradewind.storage.files import write_text

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
    """Error that ends the test claimer."""


class Noting(AttemptHandler[str], JobOutcomeHandler[str]):
    """Claimer that does what the test configures and records the requested actions."""

    def __init__(self, turns: StepLease) -> None:
        self.turns = turns
        self.me = TaskIdentity(turns.by)
        self.done: list[str] = []
        self.lives_on = True
        self.faster = 0
        self.makes: str | Continuation = "made"

    def task(self) -> TaskIdentity:
        return self.me

    def rerun_request(self) -> RerunRequest:
        return RerunRequest()

    def warn(self, sentence: str) -> None:
        self.done.append("warned")

    def finished(self, lease: Lease | None) -> str:
        assert lease is not None and read_status(self.turns.path) is Status.SUCCESS, "its record is complete"
        return f"attempt {lease.attempt}"

    def failure(self, *about: object) -> FailedHereError:
        return FailedHereError(*about)

    def ownership_unknown(self, lease: Lease) -> NoReturn:
        raise FailedHereError("doubt")

    def wait(self, lease: Lease) -> None:
        self.done.append(f"waited for {lease.attempt}")
        self.me = replace(self.me, waited_for=lease.attempt)
        end(self.turns, Phase.FAILED)

    def cancel_previous(self, lease: Lease) -> None:
        self.done.append(f"stopped {lease.attempt}")
        self.turns.stop(lease)

    def reattach(self, lease: Lease) -> str | Continuation:
        self.done.append(f"rejoined {lease.attempt}")
        return f"followed {lease.attempt}" if self.lives_on else Continuation.RECLAIM

    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        self.done.append(f"claimed over {over.attempt if over else None}")
        if self.faster:
            self.faster -= 1
            return None
        return claimed(self.turns, over)

    def missing_input(self, error: MissingInputError) -> None:
        raise error

    def run(self, turn: ClaimedAttempt) -> str | Continuation:
        self.done.append(f"ran {turn.attempt.number}")
        made, self.makes = self.makes, "made"
        return made

    def succeeded(self, lease: Lease) -> str:
        return self.finished(lease)

    def show_log(self) -> None:
        self.done.append("showed the log")

    def lost(self, lease: Lease, *, may_survive: bool) -> Continuation:
        self.done.append("waits until stale" if may_survive else "next")
        return Continuation.RECHECK


def claimed(turns: StepLease, over: Lease | None = None) -> ClaimedAttempt:
    turn = turns.claim(over, lambda: step_spec(turns.step, CodeFolder(Path("/nowhere"))))
    assert turn is not None
    return turn


def begun(turns: StepLease) -> None:
    held = turns.store.read()
    assert held is not None
    turns.store.take_over(held.lease.job, "keeper")


def end(turns: StepLease, phase: Phase) -> None:
    held = turns.store.read()
    assert held is not None
    turns.store.change(held, phase=phase)


def commit(turns: StepLease, turn: ClaimedAttempt) -> None:
    """Commit the output as a driver that dies right after its commit."""
    store, held = turns.store, turns.store.take_over(turn.attempt.job, "keeper")
    write_text(posixpath.join(turns.path, "data"), "made")
    commit_attempt(lambda **changes: store.change(held, **changes), turns.path, turn.attempt, lambda: None)
    write_status(turns.path, Status.RUNNING)


def phase_of(turns: StepLease) -> Phase | None:
    held = turns.store.read()
    return held.lease.phase if held is not None else None


def turns_by(by: dict[str, object], tmp_path: Path) -> StepLease:
    step = ExecutorStep("made", posixpath.join, {})
    return StepLease(resolve([step], str(tmp_path)).of(step), by)


@pytest.fixture
def turns(tmp_path: Path) -> StepLease:
    return turns_by(OURS, tmp_path)


@pytest.fixture
def theirs(tmp_path: Path) -> StepLease:
    return turns_by(THEIRS, tmp_path)


def test_claim_is_retried_after_lost_race_or_lost_attempt(turns: StepLease) -> None:
    claimant = Noting(turns)
    claimant.faster = 2
    assert AttemptProtocol(turns, claimant).result() == "made"
    assert claimant.done == ["claimed over None"] * 3 + ["ran 1"]


def test_complete_record_is_result_although_driver_died(turns: StepLease, theirs: StepLease) -> None:
    commit(theirs, claimed(theirs))
    assert AttemptProtocol(turns, Noting(turns)).result() == "attempt 1"


def test_a_failure_that_was_waited_for_is_the_claimants_own(turns: StepLease, theirs: StepLease) -> None:
    claimed(theirs)
    claimant = Noting(turns)
    with pytest.raises(FailedHereError):
        AttemptProtocol(turns, claimant).result()
    assert claimant.done == ["waited for 1"]


def test_earlier_try_is_followed_or_reclaimed_if_never_started(turns: StepLease) -> None:
    claimed(turns)
    assert AttemptProtocol(turns, Noting(turns)).result() == "followed 1"
    claimant = Noting(turns)
    claimant.lives_on = False
    assert AttemptProtocol(turns, claimant).result() == "made"
    assert claimant.done == ["rejoined 1", "claimed over 1", "ran 2"]


def test_cleared_task_stops_earlier_try_before_rerun(turns: StepLease) -> None:
    claimed(turns)
    claimant = Noting(turns)
    claimant.me = TaskIdentity({**OURS, "max_tries": 4})
    assert AttemptProtocol(turns, claimant).result() == "made"
    assert claimant.done == ["stopped 1", "claimed over 1", "ran 2"]
    first = turns.attempt(1)
    assert first is not None and first.outcome is AttemptOutcome.STOPPED


def test_same_task_without_deployment_is_not_followed_or_stopped(tmp_path: Path) -> None:
    unnamed = turns_by({**OURS, "deployment": ""}, tmp_path)
    claimed(unnamed)
    with pytest.raises(FailedHereError, match="doubt"):
        AttemptProtocol(unnamed, Noting(unnamed)).result()
    assert phase_of(unnamed) is Phase.CLAIMED


def test_concurrent_claim_of_earlier_try_is_known_by_its_note(tmp_path: Path) -> None:
    unnamed = turns_by({**OURS, "deployment": ""}, tmp_path)
    noted: list[str] = []

    class Behind(Noting):
        def task(self) -> TaskIdentity:
            known = tuple(noted)
            if not known:
                noted.append(claimed(self.turns).attempt.job)  # the earlier try's worker, before Airflow kills it
            return TaskIdentity(self.turns.by, claimed=known)

    claimant = Behind(unnamed)
    claimant.faster = 1
    assert AttemptProtocol(unnamed, claimant).result() == "followed 1"
    assert claimant.done == ["claimed over None", "rejoined 1"]


def test_the_store_is_asked_with_the_claimants_patience(turns: StepLease, theirs: StepLease) -> None:
    asked: list[object] = []

    def ask(call: Callable[[], T], /) -> T:
        asked.append(call)
        return call()

    commit(theirs, claimed(theirs))
    AttemptProtocol(turns, Noting(turns), ask).result()
    assert len(asked) == 2  # one read, and one completion of the record


def test_a_job_that_made_the_output_leaves_a_complete_record(turns: StepLease) -> None:
    turn = claimed(turns)
    commit(turns, turn)
    assert resolve_finished_job(turns, turn.attempt.job, JobResult.LOST, Noting(turns)) == "attempt 1"


@pytest.mark.parametrize(
    ("ended", "outcome", "phase"),
    [
        (JobResult.STOPPED, AttemptOutcome.STOPPED, Phase.STOPPED),
        (JobResult.SPEC_CHANGED, AttemptOutcome.LOST, Phase.STOPPED),
        (JobResult.UNRUNNABLE, AttemptOutcome.FAILED, Phase.FAILED),
        (JobResult.SUCCEEDED, None, Phase.CLAIMED),
    ],
)
def test_final_job_ending_closes_attempt_that_never_started(
    turns: StepLease, ended: JobResult, outcome: AttemptOutcome | None, phase: Phase
) -> None:
    turn, claimant = claimed(turns), Noting(turns)
    claimant.fault = AttemptError("RUNTIME_ENV", "no such package")
    with pytest.raises(FailedHereError):
        resolve_finished_job(turns, turn.attempt.job, ended, claimant)
    attempt = turns.attempt(1)
    assert attempt is not None and (attempt.outcome, phase_of(turns)) == (outcome, phase)
    assert attempt.error == (claimant.fault if outcome is AttemptOutcome.FAILED else None)


def test_unrunnable_job_is_rechecked_when_driver_started(turns: StepLease) -> None:
    turn, claimant = claimed(turns), Noting(turns)

    class Begins(Noting):
        def show_log(self) -> None:
            begun(self.turns)  # between the read of the lease and the write that ends it

    assert resolve_finished_job(turns, turn.attempt.job, JobResult.UNRUNNABLE, Begins(turns)) is Continuation.RECHECK
    assert phase_of(turns) is Phase.RUNNING
    assert resolve_finished_job(turns, turn.attempt.job, JobResult.LOST, claimant) is Continuation.RECHECK
    assert claimant.done == ["showed the log", "waits until stale"]


def test_lost_attempt_is_ended_before_next_unless_superseded(turns: StepLease, theirs: StepLease) -> None:
    turn, claimant = claimed(turns), Noting(turns)

    class Overtaken(Noting):
        def show_log(self) -> None:
            held = self.turns.store.read()
            assert held is not None
            claimed(theirs, held.lease)

    assert resolve_finished_job(turns, turn.attempt.job, JobResult.NOT_STARTED, claimant) is Continuation.RECHECK
    assert (claimant.done, phase_of(turns)) == (["showed the log", "next"], Phase.STOPPED)
    late, over = Overtaken(turns), turns.read().lease
    second = claimed(turns, over)
    assert resolve_finished_job(turns, second.attempt.job, JobResult.LOST, late) is Continuation.RECHECK
    assert late.done == [], "its loss does not count"
    assert resolve_finished_job(turns, turn.attempt.job, JobResult.LOST, late) is Continuation.RECHECK, (
        "an old turn is nobody's"
    )


def test_a_failed_function_is_told_by_its_verdict(turns: StepLease) -> None:
    turn = claimed(turns)
    begun(turns)
    end(turns, Phase.FAILED)
    with pytest.raises(FailedHereError) as caught:
        resolve_finished_job(turns, turn.attempt.job, JobResult.LOST, Noting(turns))
    assert caught.value.args[0] is NextAction.FAILED
