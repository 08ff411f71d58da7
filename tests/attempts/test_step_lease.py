"""End an attempt that never started: the lease decides, and the attempt's file follows it."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import Path

import pytest

from tradewind import ExecutorStep
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease
from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import ResolvedStep, resolve
from tradewind.storage.errors import RecordTooLargeError
from tradewind.storage.files import write_text
from tradewind.storage.swap import StoredObject, write_if


@pytest.fixture
def turns(tmp_path: Path) -> StepLease:
    step = ExecutorStep("made", posixpath.join, {})
    return StepLease(resolve([step], str(tmp_path)).of(step), {"dag": "d"})


@pytest.fixture
def turn(turns: StepLease) -> ClaimedAttempt:
    claimed = turns.claim(None, lambda: step_spec(turns.step, CodeFolder(Path("/nowhere"))))
    assert claimed is not None
    return claimed


def outcome_of(turns: StepLease) -> AttemptOutcome | None:
    attempt = turns.attempt(1)
    assert attempt is not None
    return attempt.outcome


def test_claim_fails_over_lease_changed_since_read(turns: StepLease, turn: ClaimedAttempt) -> None:
    keeper = LeaseStore(turns.path)
    keeper.change(keeper.take_over(turn.attempt.job, "keeper"), phase=Phase.COMMITTED, digest="abc")
    for seen in (None, turn.held.lease):
        assert turns.claim(seen, lambda: step_spec(turns.step, CodeFolder(Path("/nowhere")))) is None
    held = keeper.read()
    assert held is not None and (held.lease.phase, held.lease.digest) == (Phase.COMMITTED, "abc")


@pytest.mark.slow
def test_what_could_not_be_read_back_is_not_claimed(turns: StepLease) -> None:
    large = replace(step_spec(turns.step, CodeFolder(Path(__file__).parent)), config={"text": "x" * (33 << 20)})
    with pytest.raises(RecordTooLargeError, match="write large values to a file"):
        turns.claim(None, lambda: large)
    assert turns.store.read() is None


def test_a_turn_that_was_never_begun_ends_with_its_reason(turns: StepLease, turn: ClaimedAttempt) -> None:
    error = AttemptError("RUNTIME_ENV", "no such package")
    assert turns.end_unstarted(turn.attempt.job, AttemptOutcome.FAILED, error)
    attempt, held = turns.attempt(1), turns.store.read()
    assert attempt is not None and (attempt.outcome, attempt.error) == (AttemptOutcome.FAILED, error)
    assert held is not None and held.lease.phase is Phase.FAILED


def test_lease_owner_starting_while_ended_is_not_recorded_lost(turns: StepLease, turn: ClaimedAttempt) -> None:
    keeper = LeaseStore(turns.path)

    def write(path: str, text: str, expected: str | None) -> StoredObject | None:
        keeper.take_over(turn.attempt.job, "keeper")
        return write_if(path, text, expected)

    turns.store = LeaseStore(turns.path, write=write)
    assert not turns.end_unstarted(turn.attempt.job, AttemptOutcome.LOST)
    assert outcome_of(turns) is None
    assert turns.read().lease is not None and turns.read().lease.phase is Phase.RUNNING  # type: ignore[union-attr]


def test_nothing_is_written_about_another_jobs_turn(turns: StepLease, turn: ClaimedAttempt) -> None:
    assert not turns.end_unstarted("another", AttemptOutcome.LOST)
    assert outcome_of(turns) is None


def test_next_claim_records_failure_after_interrupted_ending(turns: StepLease, turn: ClaimedAttempt) -> None:
    assert turns.store.end_unstarted(turn.attempt.job, Phase.FAILED)  # the process died before it wrote the file
    over = turns.read().lease
    assert turns.claim(over, lambda: step_spec(turns.step, CodeFolder(Path("/nowhere")))) is not None
    assert outcome_of(turns) is AttemptOutcome.FAILED


def test_attempt_taken_over_by_owner_is_not_ended_as_unstarted(turns: StepLease, turn: ClaimedAttempt) -> None:
    LeaseStore(turns.path).take_over(turn.attempt.job, "keeper")
    assert not turns.end_lost_attempt(turn.held.lease)
    assert outcome_of(turns) is None


def test_end_lost_attempt_matches_exited_owner_only(turns: StepLease, turn: ClaimedAttempt) -> None:
    begun = LeaseStore(turns.path).take_over(turn.attempt.job, "keeper").lease
    assert not turns.end_lost_attempt(replace(begun, incarnation="another"))
    assert outcome_of(turns) is None
    assert turns.end_lost_attempt(begun)
    lease = turns.read().lease
    assert lease is not None and (lease.phase, outcome_of(turns)) == (Phase.STOPPED, AttemptOutcome.LOST)


@pytest.fixture
def collecting(tmp_path: Path) -> StepLease:
    """A step that reads ``kept`` and ``lost``, and can run without ``lost``."""
    kept, lost = (ExecutorStep(name, posixpath.join, {}) for name in ("kept", "lost"))
    step = ExecutorStep("table", posixpath.join, {"needs": kept, "takes": lost.even_if_failed()})
    experiment = resolve([step], str(tmp_path))
    turns = StepLease(experiment.of(step), {"dag": "d"})
    _finish(experiment.of(kept))
    return turns


def _finish(step: ResolvedStep) -> None:
    turns = StepLease(step, {"dag": "other"})
    turn = turns.claim(turns.read().lease, lambda: step_spec(step, CodeFolder(Path("/nowhere"))))
    assert turn is not None
    store = LeaseStore(step.output_path)
    write_text(posixpath.join(step.output_path, "data"), "x")
    store.change(store.take_over(turn.attempt.job, "keeper"), phase=Phase.COMMITTED, digest=step.name, witness="data")


def _claim(turns: StepLease) -> ClaimedAttempt | None:
    return turns.claim(turns.read().lease, lambda: step_spec(turns.step, CodeFolder(Path("/nowhere"))))


def test_a_step_starts_without_the_inputs_that_it_can_do_without(collecting: StepLease) -> None:
    lost, kept = (each.output_path for each in reversed(collecting.step.dependencies))
    turn = _claim(collecting)
    assert turn is not None and dict(turn.attempt.inputs) == {kept: "kept"}
    assert not Path(lost).exists()


def test_optional_input_is_awaited_while_its_attempt_runs(collecting: StepLease) -> None:
    lost = StepLease(collecting.step.dependencies[1], {"dag": "other"})
    turn = _claim(lost)
    assert turn is not None
    with pytest.raises(MissingInputError) as missing:
        _claim(collecting)
    assert missing.value.at_work == turn.held.lease
    lost.end_unstarted(turn.attempt.job, AttemptOutcome.FAILED, AttemptError("X", "bad"))
    claimed = _claim(collecting)
    assert claimed is not None and len(claimed.attempt.inputs) == 1


def test_claim_is_released_when_missing_input_appears(collecting: StepLease) -> None:
    late = StepLease(collecting.step, {"dag": "d"}, will_claim=lambda job: _finish(collecting.step.dependencies[1]))
    assert _claim(late) is None
    turn = _claim(collecting)
    assert turn is not None and sorted(turn.attempt.inputs.values(), key=str) == ["kept", "lost"]


def test_what_a_step_needs_is_not_done_without(tmp_path: Path, collecting: StepLease) -> None:
    needed = ExecutorStep("gone", posixpath.join, {})
    step = ExecutorStep("t", posixpath.join, {"needs": needed, "takes": needed.even_if_failed()})
    turns = StepLease(resolve([step], str(tmp_path)).of(step), {"dag": "d"})
    with pytest.raises(MissingInputError, match="reads step 'gone', which has no finished output"):
        _claim(turns)
    assert turns.read().lease is None
