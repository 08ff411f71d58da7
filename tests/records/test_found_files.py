"""Attempts and garbage collection never remove pre-existing files."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tests.support.claims import renewing
from tradewind.attempts.step_lease import ClaimedAttempt, StepLease
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below, remove_garbage
from tradewind.records.adoption import Adoption, adopt
from tradewind.records.attempts import AttemptOutcome, attempt_path, newest_attempt
from tradewind.records.cleanup import remove_leftovers
from tradewind.records.discovery import MAX_PREEXISTING_FILES, OccupiedFolderError, list_preexisting_files
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import commit_attempt
from tradewind.records.manifests import read_manifest
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import ExecutorStep, ResolvedStep, resolve
from tradewind.storage.files import write_text
from tradewind.storage.trees import list_files, remove_files


def work(config: object) -> None: ...


@pytest.fixture
def step(prefix: str) -> ResolvedStep:
    made = ExecutorStep("made", work, {}, override_output_path="ours/made")
    return resolve([made], prefix).of(made)


def begin(step: ResolvedStep) -> ClaimedAttempt:
    """Begin the next attempt as its driver does, after the end of the earlier ones."""
    step_lease = StepLease(step, {"run": "r"})
    over = step_lease.read().lease
    claimed = step_lease.claim(over, lambda: step_spec(step, CodeFolder(Path(__file__).parents[2])))
    assert claimed is not None
    held = step_lease.store.take_over(claimed.attempt.job, "owner")
    if claimed.attempt.number > 1:
        remove_leftovers(step.output_path, (), lambda: None, claimed.attempt.found)
    return ClaimedAttempt(held, claimed.attempt)


def end(step: ResolvedStep, owned: ClaimedAttempt, phase: Phase = Phase.FAILED) -> None:
    LeaseStore(step.output_path).change(owned.held, phase=phase)


def commit(step: ResolvedStep, owned: ClaimedAttempt) -> None:
    finish = partial(LeaseStore(step.output_path).change, owned.held)
    commit_attempt(finish, step.output_path, owned.attempt, lambda: None)


def names(step: ResolvedStep) -> list[str]:
    """Return the names of all files at the output except its records."""
    return [file.path for file in list_files(step.output_path) if not file.path.startswith((".executor", ".attempts"))]


def put(step: ResolvedStep, *paths: str) -> None:
    for path in paths:
        write_text(f"{step.output_path}/{path}", path)


def test_failed_attempts_keep_only_preexisting_files(step: ResolvedStep) -> None:
    put(step, "precious", "deep/precious [1]")
    for number in (1, 2, 3):
        owned = begin(step)
        assert owned.attempt.number == number
        assert names(step) == ["deep/precious [1]", "precious"]
        put(step, f"half-{number}", "deep/half")
        end(step, owned)


@pytest.mark.parametrize("count", [0, 5])
def test_first_claim_warns_of_preexisting_files(
    step: ResolvedStep, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    put(step, *(f"precious-{number}" for number in range(count)))
    with caplog.at_level(logging.WARNING):
        assert len(begin(step).attempt.found) == count
    warning = "holds files that no step has made: precious-0, precious-1, precious-2 and 2 more"
    assert warning in caplog.text if count else caplog.text == ""


@pytest.mark.parametrize(
    "record",
    [
        "other/.executor_info", "a/b/c/.executor_status", "other/.executor_status.lock", ".hidden/.executor_info",
        "x::y/.executor_status", "[a]/.executor_status", "experiments/nightly-0a1b2c.json", ".tradewind/pins/0123.json",
    ],
)  # fmt: skip
def test_folder_with_outputs_of_other_steps_is_not_claimed(step: ResolvedStep, record: str) -> None:
    put(step, "precious")
    fs, output = url_to_fs(step.output_path)
    if step.output_path.startswith("/"):
        Path(output, record).parent.mkdir(parents=True)
    fs.pipe_file(f"{output}/{record}", b"")
    before = list_files(step.output_path)
    with pytest.raises(OccupiedFolderError, match="holds outputs of other steps.*override_output_path"):
        begin(step)
    assert list_files(step.output_path) == before


def test_output_created_below_later_does_not_block_attempt(step: ResolvedStep) -> None:
    end(step, begin(step))
    put(step, "other/.executor_info", "other/x", "half")
    begin(step)
    assert names(step) == ["other/.executor_info", "other/x"]


@pytest.mark.slow
def test_too_many_or_long_preexisting_names_are_refused(tmp_path: Path) -> None:
    many, long = tmp_path / "many", tmp_path / "long" / ("x" * 200) / ("y" * 250)
    for folder, count in ((many, MAX_PREEXISTING_FILES), (long, 600)):
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / str(number)).touch()
    assert len(list_preexisting_files(str(many), None)) == MAX_PREEXISTING_FILES
    (many / "one more").touch()
    with pytest.raises(OccupiedFolderError, match="1,001 files that no step has made"):
        list_preexisting_files(str(many), None)
    with pytest.raises(OccupiedFolderError, match="600 files"):
        list_preexisting_files(str(tmp_path / "long"), None)


def test_preexisting_files_remembered_if_claim_lost_its_file(step: ResolvedStep) -> None:
    put(step, "precious")
    owned = begin(step)
    records = [file.path for file in list_files(step.output_path)]
    remove_files(step.output_path, [path for path in records if path.startswith((".attempts", ".executor_info"))])
    end(step, owned)
    end(step, begin(step))
    begin(step)
    assert names(step) == ["precious"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"number": 2}', '{"found": 3}'])
def test_damaged_attempt_file_loses_no_preexisting_file(step: ResolvedStep, text: str) -> None:
    put(step, "precious")
    end(step, begin(step))
    put(step, "half")
    end(step, begin(step))
    write_text(attempt_path(step.output_path, 2), text)
    assert list_preexisting_files(step.output_path, None) == ("precious",)
    write_text(attempt_path(step.output_path, 1), text)
    assert list_preexisting_files(step.output_path, None) == ("precious",)


def test_leftovers_of_marin_executor_are_not_preexisting(step: ResolvedStep) -> None:
    put(step, ".executor_status", "half")
    assert list_preexisting_files(step.output_path, None) == ()


def make_beside_precious(step: ResolvedStep) -> None:
    put(step, "precious")
    owned = begin(step)
    put(step, "result")
    commit(step, owned)


def test_result_rerun_removes_result_keeps_preexisting_files(step: ResolvedStep) -> None:
    make_beside_precious(step)
    manifest = read_manifest(step.output_path, 1)
    assert manifest is not None and [file.path for file in manifest.files] == ["precious", "result"]
    begin(step)
    assert names(step) == ["precious"]


def test_garbage_collection_keeps_preexisting_files(step: ResolvedStep) -> None:
    make_beside_precious(step)
    [sweep] = find_garbage_below([step.output_path.removesuffix("/ours/made")], RequiredOutputs(), 0.0)
    [garbage] = sweep.garbage
    remove_garbage(garbage, {"gc": "test"}, renewing)
    left = [file.path for file in list_files(step.output_path)]
    assert [path for path in left if not path.endswith(".guard")] == ["precious"]


def test_adopted_files_are_removed_unless_adoption_failed(step: ResolvedStep) -> None:
    put(step, "model")
    adopt(Adoption(step, "m.f", step.output_path, {"user": "ada"}), renewing)
    attempt = newest_attempt(step.output_path)
    assert attempt is not None
    for ended, preexisting in ((attempt.ended(AttemptOutcome.LOST), ("model",)), (attempt, ())):
        write_text(attempt_path(step.output_path, 1), ended.to_json())
        assert list_preexisting_files(step.output_path, None) == preexisting
    begin(step)
    assert names(step) == []


def test_files_are_copied_beside_preexisting_ones(step: ResolvedStep, tmp_path: Path) -> None:
    put(step, "precious")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/model").write_text("weights")
    adopt(Adoption(step, "m.f", str(tmp_path / "elsewhere"), {"user": "ada"}, copies=True), renewing)
    assert names(step) == ["model", "precious"]
