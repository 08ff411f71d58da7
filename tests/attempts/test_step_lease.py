"""Claims of a step and ends of its attempts: the lease decides, and the attempt's file follows it."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.claims import lease_at
from tradewind import ExecutorStep
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease
from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ResolvedStep, resolve
from tradewind.storage.errors import RecordTooLargeError
from tradewind.storage.files import write_text
from tradewind.storage.swap import StoredObject, write_if


@pytest.fixture
def made(tmp_path: Path) -> StepLease:
    step = ExecutorStep("made", posixpath.join, {})
    return StepLease(resolve([step], str(tmp_path)).of(step), {"dag": "d"})


@pytest.fixture
def claimed(made: StepLease) -> ClaimedAttempt:
    claimed = claim(made)
    assert claimed is not None
    return claimed


def claim(step_lease: StepLease) -> ClaimedAttempt | None:
    return step_lease.claim(step_lease.read().lease, lambda: spec_of(step_lease))


def spec_of(step_lease: StepLease) -> StepSpec:
    return step_spec(step_lease.step, CodeFolder(Path("/nowhere")))


def outcome_of(step_lease: StepLease) -> AttemptOutcome | None:
    attempt = step_lease.attempt(1)
    assert attempt is not None
    return attempt.outcome


def phase_of(step_lease: StepLease) -> Phase | None:
    return lease_at(step_lease.path).phase


def test_claim_fails_over_lease_changed_since_read(made: StepLease, claimed: ClaimedAttempt) -> None:
    store = LeaseStore(made.path)
    store.change(store.take_over(claimed.attempt.job, "owner"), phase=Phase.COMMITTED, digest="abc")
    for read_before in (None, claimed.held.lease):
        assert made.claim(read_before, lambda: spec_of(made)) is None
    lease = lease_at(made.path)
    assert (lease.phase, lease.digest) == (Phase.COMMITTED, "abc")


@pytest.mark.slow
def test_too_large_attempt_is_not_claimed(made: StepLease) -> None:
    large = replace(spec_of(made), config={"text": "x" * (33 << 20)})
    with pytest.raises(RecordTooLargeError, match="write large values to a file"):
        made.claim(None, lambda: large)
    assert made.store.read() is None


def test_unstarted_attempt_ends_with_its_reason(made: StepLease, claimed: ClaimedAttempt) -> None:
    assert not made.end_unstarted("another", AttemptOutcome.LOST)
    assert outcome_of(made) is None
    error = AttemptError("RUNTIME_ENV", "no such package")
    assert made.end_unstarted(claimed.attempt.job, AttemptOutcome.FAILED, error)
    attempt = made.attempt(1)
    assert attempt is not None and (attempt.outcome, attempt.error) == (AttemptOutcome.FAILED, error)
    assert phase_of(made) is Phase.FAILED


def test_lease_owner_starting_while_ended_is_not_recorded_lost(made: StepLease, claimed: ClaimedAttempt) -> None:
    def write(path: str, text: str, expected: str | None) -> StoredObject | None:
        LeaseStore(made.path).take_over(claimed.attempt.job, "owner")
        return write_if(path, text, expected)

    made.store = LeaseStore(made.path, write=write)
    assert not made.end_unstarted(claimed.attempt.job, AttemptOutcome.LOST)
    assert (outcome_of(made), phase_of(made)) == (None, Phase.RUNNING)


def test_next_claim_records_failure_after_interrupted_ending(made: StepLease, claimed: ClaimedAttempt) -> None:
    assert made.store.end_unstarted(claimed.attempt.job, Phase.FAILED)  # the process died before it wrote the file
    assert claim(made) is not None
    assert outcome_of(made) is AttemptOutcome.FAILED


def test_end_lost_attempt_matches_exited_owner_only(made: StepLease, claimed: ClaimedAttempt) -> None:
    owned = LeaseStore(made.path).take_over(claimed.attempt.job, "owner").lease
    for other in (claimed.held.lease, replace(owned, incarnation="another")):
        assert not made.end_lost_attempt(other)
        assert outcome_of(made) is None
    assert made.end_lost_attempt(owned)
    assert (phase_of(made), outcome_of(made)) == (Phase.STOPPED, AttemptOutcome.LOST)


@pytest.fixture
def table(tmp_path: Path) -> StepLease:
    """A step that reads ``kept`` and ``lost``, and can run without ``lost``."""
    kept, lost = (ExecutorStep(name, posixpath.join, {}) for name in ("kept", "lost"))
    step = ExecutorStep("table", posixpath.join, {"needs": kept, "takes": lost.even_if_failed()})
    experiment = resolve([step], str(tmp_path))
    commit(experiment.of(kept))
    return StepLease(experiment.of(step), {"dag": "d"})


def commit(step: ResolvedStep) -> None:
    claimed = claim(StepLease(step, {"dag": "other"}))
    assert claimed is not None
    store = LeaseStore(step.output_path)
    write_text(posixpath.join(step.output_path, "data"), "x")
    store.change(store.take_over(claimed.attempt.job, "owner"), phase=Phase.COMMITTED, digest=step.name, witness="data")


def test_step_starts_without_optional_input(table: StepLease) -> None:
    kept, lost = (each.output_path for each in table.step.dependencies)
    claimed = claim(table)
    assert claimed is not None and dict(claimed.attempt.inputs) == {kept: "kept"}
    assert not Path(lost).exists()


def test_optional_input_is_awaited_while_its_attempt_runs(table: StepLease) -> None:
    lost = StepLease(table.step.dependencies[1], {"dag": "other"})
    running = claim(lost)
    assert running is not None
    with pytest.raises(MissingInputError) as missing:
        claim(table)
    assert missing.value.at_work == running.held.lease
    lost.end_unstarted(running.attempt.job, AttemptOutcome.FAILED, AttemptError("X", "bad"))
    claimed = claim(table)
    assert claimed is not None and len(claimed.attempt.inputs) == 1


def test_claim_is_released_when_missing_input_appears(table: StepLease) -> None:
    late = StepLease(table.step, {"dag": "d"}, will_claim=lambda job: commit(table.step.dependencies[1]))
    assert claim(late) is None
    claimed = claim(table)
    assert claimed is not None and sorted(claimed.attempt.inputs.values(), key=str) == ["kept", "lost"]


def test_step_does_not_start_without_required_input(tmp_path: Path) -> None:
    needed = ExecutorStep("gone", posixpath.join, {})
    step = ExecutorStep("t", posixpath.join, {"needs": needed, "takes": needed.even_if_failed()})
    step_lease = StepLease(resolve([step], str(tmp_path)).of(step), {"dag": "d"})
    with pytest.raises(MissingInputError, match="reads step 'gone', which has no finished output"):
        claim(step_lease)
    assert step_lease.read().lease is None
