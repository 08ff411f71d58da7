"""Behavior that all claimers share, tested with a claimer that records its calls."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tests.support.claims import lease_at
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
from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.records.lifecycle import commit_attempt
from tradewind.records.record import Status, read_status, write_status
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ResolvedStep, resolve
from tradewind.storage.errors import RecordTooLargeError
from tradewind.storage.files import write_text
from tradewind.storage.swap import StoredObject, write_if

T = TypeVar("T")
OURS: dict[str, object] = {"deployment": "here", "dag": "d", "run": "r", "task": "t", "map_index": -1, "max_tries": 3}
THEIRS: dict[str, object] = {**OURS, "run": "another"}


class FailedHereError(Exception):
    """Error that ends the test claimer."""


class RecordingClaimer(AttemptHandler[str], JobOutcomeHandler[str]):
    """Claimer that does what the test configures and records the requested actions."""

    def __init__(self, step_lease: StepLease) -> None:
        self.step_lease = step_lease
        self.identity = TaskIdentity(step_lease.by)
        self.actions: list[str] = []
        self.has_job = True
        self.lost_races = 0

    def result(self) -> str:
        return AttemptProtocol(self.step_lease, self).result()

    def after(self, claimed: ClaimedAttempt, end: JobResult) -> str | Continuation:
        return resolve_finished_job(self.step_lease, claimed.attempt.job, end, self)

    def task(self) -> TaskIdentity:
        return self.identity

    def rerun_request(self) -> RerunRequest:
        return RerunRequest()

    def warn(self, sentence: str) -> None:
        self.actions.append("warned")

    def finished(self, lease: Lease | None) -> str:
        assert lease is not None and read_status(self.step_lease.path) is Status.SUCCESS, "its record is complete"
        return f"attempt {lease.attempt}"

    def failure(self, *about: object) -> FailedHereError:
        return FailedHereError(*about)

    def ownership_unknown(self, lease: Lease) -> NoReturn:
        raise FailedHereError("ownership unknown")

    def wait(self, lease: Lease) -> None:
        self.actions.append(f"waited for {lease.attempt}")
        self.identity = replace(self.identity, waited_for=lease.attempt)
        end(self.step_lease, Phase.FAILED)

    def cancel_previous(self, lease: Lease) -> None:
        self.actions.append(f"stopped {lease.attempt}")
        self.step_lease.stop(lease)

    def reattach(self, lease: Lease) -> str | Continuation:
        self.actions.append(f"reattached {lease.attempt}")
        return f"followed {lease.attempt}" if self.has_job else Continuation.RECLAIM

    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        self.actions.append(f"claimed over {over.attempt if over else None}")
        if self.lost_races:
            self.lost_races -= 1
            return None
        return claim(self.step_lease, over)

    def missing_input(self, error: MissingInputError) -> None:
        raise error

    def run(self, claimed: ClaimedAttempt) -> str | Continuation:
        self.actions.append(f"ran {claimed.attempt.number}")
        return "made"

    def succeeded(self, lease: Lease) -> str:
        return self.finished(lease)

    def show_log(self) -> None:
        self.actions.append("showed the log")

    def lost(self, lease: Lease, *, may_survive: bool) -> Continuation:
        self.actions.append("waits until stale" if may_survive else "next")
        return Continuation.RECHECK


def claim(step_lease: StepLease, over: Lease | None = None) -> ClaimedAttempt:
    claimed = step_lease.claim(over, lambda: spec_of(step_lease))
    assert claimed is not None
    return claimed


def spec_of(step_lease: StepLease) -> StepSpec:
    return step_spec(step_lease.step, CodeFolder(Path("/nowhere")))


def lease_of(step_lease: StepLease) -> Lease:
    return lease_at(step_lease.path)


def begin(step_lease: StepLease) -> HeldLease:
    return step_lease.store.take_over(lease_of(step_lease).job, "owner")


def end(step_lease: StepLease, phase: Phase) -> None:
    assert (held := step_lease.store.read()) is not None
    step_lease.store.change(held, phase=phase)


def commit(step_lease: StepLease, claimed: ClaimedAttempt) -> None:
    """Commit the output as a driver that dies right after its commit."""
    path, held = step_lease.path, begin(step_lease)
    write_text(posixpath.join(path, "data"), "made")
    commit_attempt(partial(step_lease.store.change, held), path, claimed.attempt, lambda: None)
    write_status(path, Status.RUNNING)


def step_lease_by(by: dict[str, object], tmp_path: Path) -> StepLease:
    return StepLease(resolve([ExecutorStep("made", posixpath.join, {})], str(tmp_path)).steps[0], by)


@pytest.fixture
def ours(tmp_path: Path) -> StepLease:
    return step_lease_by(OURS, tmp_path)


@pytest.fixture
def theirs(tmp_path: Path) -> StepLease:
    return step_lease_by(THEIRS, tmp_path)


def test_claim_is_retried_after_lost_race(ours: StepLease) -> None:
    claimer = RecordingClaimer(ours)
    claimer.lost_races = 2
    assert claimer.result() == "made"
    assert claimer.actions == ["claimed over None"] * 3 + ["ran 1"]


def test_failure_of_awaited_attempt_is_inherited(ours: StepLease, theirs: StepLease) -> None:
    claim(theirs)
    claimer = RecordingClaimer(ours)
    with pytest.raises(FailedHereError):
        claimer.result()
    assert claimer.actions == ["waited for 1"]


def test_earlier_try_is_followed_or_reclaimed_if_never_started(ours: StepLease) -> None:
    claim(ours)
    claimer = RecordingClaimer(ours)
    assert claimer.result() == "followed 1"
    claimer.has_job = False
    assert claimer.result() == "made"
    assert claimer.actions[1:] == ["reattached 1", "claimed over 1", "ran 2"]


def test_cleared_task_stops_earlier_try_before_rerun(ours: StepLease) -> None:
    claim(ours)
    claimer = RecordingClaimer(ours)
    claimer.identity = TaskIdentity({**OURS, "max_tries": 4})
    assert claimer.result() == "made"
    assert claimer.actions == ["stopped 1", "claimed over 1", "ran 2"]
    first = ours.attempt(1)
    assert first is not None and first.outcome is AttemptOutcome.STOPPED


def test_same_task_without_deployment_is_not_followed_or_stopped(tmp_path: Path) -> None:
    unnamed = step_lease_by({**OURS, "deployment": ""}, tmp_path)
    claim(unnamed)
    with pytest.raises(FailedHereError, match="ownership unknown"):
        RecordingClaimer(unnamed).result()
    assert lease_of(unnamed).phase is Phase.CLAIMED


def test_concurrent_claim_of_earlier_try_is_known_by_its_note(tmp_path: Path) -> None:
    noted: list[str] = []

    class LateClaimer(RecordingClaimer):
        def task(self) -> TaskIdentity:
            known = tuple(noted)
            if not known:
                noted.append(claim(self.step_lease).attempt.job)  # the earlier try's worker, before Airflow kills it
            return TaskIdentity(self.step_lease.by, claimed=known)

    claimer = LateClaimer(step_lease_by({**OURS, "deployment": ""}, tmp_path))
    claimer.lost_races = 1
    assert claimer.result() == "followed 1"
    assert claimer.actions == ["claimed over None", "reattached 1"]


def test_reused_record_is_completed_with_retries_of_claimer(ours: StepLease, theirs: StepLease) -> None:
    calls: list[object] = []

    def call_store(call: Callable[[], T], /) -> T:
        calls.append(call)
        return call()

    commit(theirs, claim(theirs))
    assert AttemptProtocol(ours, RecordingClaimer(ours), call_store).result() == "attempt 1"
    assert len(calls) == 2  # one read, and one completion of the record


def test_a_job_that_made_the_output_leaves_a_complete_record(ours: StepLease) -> None:
    claimed = claim(ours)
    commit(ours, claimed)
    assert RecordingClaimer(ours).after(claimed, JobResult.LOST) == "attempt 1"


@pytest.mark.parametrize(
    ("end", "outcome", "phase"),
    [
        (JobResult.STOPPED, AttemptOutcome.STOPPED, Phase.STOPPED),
        (JobResult.SPEC_CHANGED, AttemptOutcome.LOST, Phase.STOPPED),
        (JobResult.UNRUNNABLE, AttemptOutcome.FAILED, Phase.FAILED),
        (JobResult.SUCCEEDED, None, Phase.CLAIMED),
    ],
)
def test_final_job_ending_closes_attempt_that_never_started(
    ours: StepLease, end: JobResult, outcome: AttemptOutcome | None, phase: Phase
) -> None:
    claimed, claimer = claim(ours), RecordingClaimer(ours)
    claimer.fault = AttemptError("RUNTIME_ENV", "no such package")
    with pytest.raises(FailedHereError):
        claimer.after(claimed, end)
    attempt = ours.attempt(1)
    assert attempt is not None and (attempt.outcome, lease_of(ours).phase) == (outcome, phase)
    assert attempt.error == (claimer.fault if outcome is AttemptOutcome.FAILED else None)


def test_unrunnable_job_is_rechecked_when_driver_started(ours: StepLease) -> None:
    class Beginning(RecordingClaimer):
        def show_log(self) -> None:
            begin(self.step_lease)  # between the read of the lease and the write that ends it

    claimed, claimer = claim(ours), RecordingClaimer(ours)
    assert Beginning(ours).after(claimed, JobResult.UNRUNNABLE) is Continuation.RECHECK
    assert lease_of(ours).phase is Phase.RUNNING
    assert claimer.after(claimed, JobResult.LOST) is Continuation.RECHECK
    assert claimer.actions == ["showed the log", "waits until stale"]


def test_lost_attempt_is_ended_before_next_unless_superseded(ours: StepLease, theirs: StepLease) -> None:
    class Overtaken(RecordingClaimer):
        def show_log(self) -> None:
            claim(theirs, lease_of(self.step_lease))

    first, claimer = claim(ours), RecordingClaimer(ours)
    assert claimer.after(first, JobResult.NOT_STARTED) is Continuation.RECHECK
    assert (claimer.actions, lease_of(ours).phase) == (["showed the log", "next"], Phase.STOPPED)
    late, second = Overtaken(ours), claim(ours, lease_of(ours))
    assert late.after(second, JobResult.LOST) is Continuation.RECHECK
    assert late.actions == [], "its loss does not count"
    assert late.after(first, JobResult.LOST) is Continuation.RECHECK, "no process owns an old attempt"


def test_failed_function_is_reported_as_failed_action(ours: StepLease) -> None:
    claimed = claim(ours)
    begin(ours)
    end(ours, Phase.FAILED)
    with pytest.raises(FailedHereError) as caught:
        RecordingClaimer(ours).after(claimed, JobResult.LOST)
    assert caught.value.args[0] is NextAction.FAILED


# ---- the step's lease: it decides, and the attempt's file follows it


@pytest.fixture
def claimed(ours: StepLease) -> ClaimedAttempt:
    return claim(ours)


def claim_next(step_lease: StepLease) -> ClaimedAttempt | None:
    return step_lease.claim(step_lease.read().lease, lambda: spec_of(step_lease))


def outcome_of(step_lease: StepLease) -> AttemptOutcome | None:
    attempt = step_lease.attempt(1)
    assert attempt is not None
    return attempt.outcome


def phase_of(step_lease: StepLease) -> Phase | None:
    return lease_at(step_lease.path).phase


def test_claim_fails_over_lease_changed_since_read(ours: StepLease, claimed: ClaimedAttempt) -> None:
    store = LeaseStore(ours.path)
    store.change(store.take_over(claimed.attempt.job, "owner"), phase=Phase.COMMITTED, digest="abc")
    for read_before in (None, claimed.held.lease):
        assert ours.claim(read_before, lambda: spec_of(ours)) is None
    lease = lease_at(ours.path)
    assert (lease.phase, lease.digest) == (Phase.COMMITTED, "abc")


@pytest.mark.slow
def test_too_large_attempt_is_not_claimed(ours: StepLease) -> None:
    large = replace(spec_of(ours), config={"text": "x" * (33 << 20)})
    with pytest.raises(RecordTooLargeError, match="write large values to a file"):
        ours.claim(None, lambda: large)
    assert ours.store.read() is None


def test_unstarted_attempt_ends_with_its_reason(ours: StepLease, claimed: ClaimedAttempt) -> None:
    assert not ours.end_unstarted("another", AttemptOutcome.LOST)
    assert outcome_of(ours) is None
    error = AttemptError("RUNTIME_ENV", "no such package")
    assert ours.end_unstarted(claimed.attempt.job, AttemptOutcome.FAILED, error)
    attempt = ours.attempt(1)
    assert attempt is not None and (attempt.outcome, attempt.error) == (AttemptOutcome.FAILED, error)
    assert phase_of(ours) is Phase.FAILED


def test_lease_owner_starting_while_ended_is_not_recorded_lost(ours: StepLease, claimed: ClaimedAttempt) -> None:
    def write(path: str, text: str, expected: str | None) -> StoredObject | None:
        LeaseStore(ours.path).take_over(claimed.attempt.job, "owner")
        return write_if(path, text, expected)

    ours.store = LeaseStore(ours.path, write=write)
    assert not ours.end_unstarted(claimed.attempt.job, AttemptOutcome.LOST)
    assert (outcome_of(ours), phase_of(ours)) == (None, Phase.RUNNING)


def test_next_claim_records_failure_after_interrupted_ending(ours: StepLease, claimed: ClaimedAttempt) -> None:
    assert ours.store.end_unstarted(claimed.attempt.job, Phase.FAILED)  # the process died before it wrote the file
    assert claim_next(ours) is not None
    assert outcome_of(ours) is AttemptOutcome.FAILED


def test_end_lost_attempt_matches_exited_owner_only(ours: StepLease, claimed: ClaimedAttempt) -> None:
    owned = LeaseStore(ours.path).take_over(claimed.attempt.job, "owner").lease
    for other in (claimed.held.lease, replace(owned, incarnation="another")):
        assert not ours.end_lost_attempt(other)
        assert outcome_of(ours) is None
    assert ours.end_lost_attempt(owned)
    assert (phase_of(ours), outcome_of(ours)) == (Phase.STOPPED, AttemptOutcome.LOST)


@pytest.fixture
def table(tmp_path: Path) -> StepLease:
    """A step that reads ``kept`` and ``lost``, and can run without ``lost``."""
    kept, lost = (ExecutorStep(name, posixpath.join, {}) for name in ("kept", "lost"))
    step = ExecutorStep("table", posixpath.join, {"needs": kept, "takes": lost.even_if_failed()})
    experiment = resolve([step], str(tmp_path))
    commit_at(experiment.of(kept))
    return StepLease(experiment.of(step), {"dag": "d"})


def commit_at(step: ResolvedStep) -> None:
    claimed = claim(StepLease(step, {"dag": "other"}))
    store = LeaseStore(step.output_path)
    write_text(posixpath.join(step.output_path, "data"), "x")
    store.change(store.take_over(claimed.attempt.job, "owner"), phase=Phase.COMMITTED, digest=step.name, witness="data")


def test_step_starts_without_optional_input(table: StepLease) -> None:
    kept, lost = (each.output_path for each in table.step.dependencies)
    claimed = claim_next(table)
    assert claimed is not None and dict(claimed.attempt.inputs) == {kept: "kept"}
    assert not Path(lost).exists()


def test_optional_input_is_awaited_while_its_attempt_runs(table: StepLease) -> None:
    lost = StepLease(table.step.dependencies[1], {"dag": "other"})
    running = claim_next(lost)
    assert running is not None
    with pytest.raises(MissingInputError) as missing:
        claim_next(table)
    assert missing.value.at_work == running.held.lease
    lost.end_unstarted(running.attempt.job, AttemptOutcome.FAILED, AttemptError("X", "bad"))
    claimed = claim_next(table)
    assert claimed is not None and len(claimed.attempt.inputs) == 1


def test_claim_is_released_when_missing_input_appears(table: StepLease) -> None:
    late = StepLease(table.step, {"dag": "d"}, will_claim=lambda job: commit_at(table.step.dependencies[1]))
    assert claim_next(late) is None
    claimed = claim_next(table)
    assert claimed is not None and sorted(claimed.attempt.inputs.values(), key=str) == ["kept", "lost"]


def test_step_does_not_start_without_required_input(tmp_path: Path) -> None:
    needed = ExecutorStep("gone", posixpath.join, {})
    step = ExecutorStep("t", posixpath.join, {"needs": needed, "takes": needed.even_if_failed()})
    step_lease = StepLease(resolve([step], str(tmp_path)).of(step), {"dag": "d"})
    with pytest.raises(MissingInputError, match="reads step 'gone', which has no finished output"):
        claim_next(step_lease)
    assert step_lease.read().lease is None
