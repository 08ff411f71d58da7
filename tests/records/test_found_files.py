"""Attempts and garbage collection never remove pre-existing files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.records.test_adoption import keep
from tradewind.attempts.step_lease import ClaimedAttempt, StepLease
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below, remove_garbage
from tradewind.records.adoption import Adoption, adopt
from tradewind.records.attempts import Attempt, AttemptOutcome, attempt_path, newest_attempt, read_attempt
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
from tradewind.storage.trees import list_files

Begin = Callable[[], ClaimedAttempt]


def work(config: object) -> None: ...


@pytest.fixture(params=["local", "memory", "gs"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> ResolvedStep:
    if request.param == "gs":
        request.getfixturevalue("cloud")
    store = {"local": f"{tmp_path}/store", "memory": f"memory://{tmp_path.name}", "gs": f"gs://bucket/{tmp_path.name}"}
    made = ExecutorStep("made", work, {}, override_output_path="ours/made")
    return resolve([made], store[request.param]).of(made)


def begin(step: ResolvedStep) -> ClaimedAttempt:
    """Begin the next attempt as its driver does, after the end of the earlier ones."""
    turns = StepLease(step, {"run": "r"})
    record = turns.read()
    turn = turns.claim(record.lease, lambda: step_spec(step, CodeFolder(Path(__file__).parents[2])))
    assert turn is not None
    held = turns.store.take_over(turn.attempt.job, "keeper")
    if turn.attempt.number > 1:
        remove_leftovers(step.output_path, (), lambda: None, turn.attempt.found)
    return ClaimedAttempt(held, turn.attempt)


def end(step: ResolvedStep, turn: ClaimedAttempt, phase: Phase = Phase.FAILED) -> None:
    LeaseStore(step.output_path).change(turn.held, phase=phase)


def names(step: ResolvedStep) -> list[str]:
    """Return the names of all files at the output except its records."""
    return [file.path for file in list_files(step.output_path) if not file.path.startswith((".executor", ".attempts"))]


def put(step: ResolvedStep, *paths: str) -> None:
    for path in paths:
        write_text(f"{step.output_path}/{path}", path)


def test_failed_attempts_keep_only_preexisting_files(step: ResolvedStep) -> None:
    put(step, "precious", "deep/precious [1]")
    for number in (1, 2, 3):
        turn = begin(step)
        assert turn.attempt.number == number
        assert names(step) == ["deep/precious [1]", "precious"]
        put(step, f"half-{number}", "deep/half")
        end(step, turn)


def test_a_first_claim_says_what_it_found(step: ResolvedStep, caplog: pytest.LogCaptureFixture) -> None:
    put(step, *(f"precious-{number}" for number in range(5)))
    with caplog.at_level(logging.WARNING):
        begin(step)
    assert "holds files that no step has made: precious-0, precious-1, precious-2 and 2 more" in caplog.text


def test_an_empty_folder_is_claimed_without_a_word(step: ResolvedStep, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert begin(step).attempt.found == ()
    assert caplog.text == ""


@pytest.mark.parametrize(
    "record",
    [
        "other/.executor_info",
        "a/b/.executor_status",
        "other/.executor_status.lock",
        "experiments/nightly-0a1b2c.json",
        ".tradewind/pins/0123.json",
    ],
)
def test_a_folder_with_the_outputs_of_others_is_not_claimed(step: ResolvedStep, record: str) -> None:
    put(step, record, "precious")
    before = list_files(step.output_path)
    with pytest.raises(OccupiedFolderError, match="holds outputs of other steps"):
        begin(step)
    assert list_files(step.output_path) == before


def test_output_created_below_later_does_not_block_attempt(step: ResolvedStep) -> None:
    end(step, begin(step))
    put(step, "other/.executor_info", "other/x", "half")
    begin(step)
    assert names(step) == ["other/.executor_info", "other/x"]


@pytest.mark.slow
def test_more_files_of_others_than_a_record_can_list_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(MAX_PREEXISTING_FILES):
        (folder / str(number)).touch()
    assert len(list_preexisting_files(str(folder), None)) == MAX_PREEXISTING_FILES
    (folder / "one more").touch()
    with pytest.raises(OccupiedFolderError, match="1,001 files that no step has made"):
        list_preexisting_files(str(folder), None)


def test_long_names_of_others_do_not_make_the_record_long(tmp_path: Path) -> None:
    for number in range(600):
        deep = tmp_path / "many" / ("x" * 200) / ("y" * 250) / str(number)
        deep.parent.mkdir(parents=True, exist_ok=True)
        deep.touch()
    with pytest.raises(OccupiedFolderError, match="600 files"):
        list_preexisting_files(str(tmp_path / "many"), None)


def test_preexisting_files_remembered_if_claim_lost_its_file(step: ResolvedStep) -> None:
    put(step, "precious")
    turn = begin(step)
    for file in list_files(step.output_path):
        if file.path.startswith((".attempts", ".executor_info")):
            remove(step, file.path)
    end(step, turn)
    end(step, begin(step))
    begin(step)
    assert names(step) == ["precious"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"number": 2}', '{"found": 3}'])
def test_a_damaged_file_of_an_attempt_costs_nobody_a_file(step: ResolvedStep, text: str) -> None:
    put(step, "precious")
    end(step, begin(step))
    put(step, "half")
    end(step, begin(step))
    write_text(attempt_path(step.output_path, 2), text)
    assert list_preexisting_files(step.output_path, None) == ("precious",)
    write_text(attempt_path(step.output_path, 1), text)
    assert list_preexisting_files(step.output_path, None) == ("precious",)


def test_what_marins_executor_left_half_made_is_a_leftover(step: ResolvedStep) -> None:
    put(step, ".executor_status", "half")
    assert list_preexisting_files(step.output_path, None) == ()


def test_result_rerun_removes_result_keeps_preexisting_files(step: ResolvedStep) -> None:
    put(step, "precious")
    turn = begin(step)
    put(step, "result")
    commit(step, turn)
    manifest = read_manifest(step.output_path, 1)
    assert manifest is not None and [file.path for file in manifest.files] == ["precious", "result"]
    begin(step)
    assert names(step) == ["precious"]


def test_garbage_is_removed_without_what_was_there_before(step: ResolvedStep) -> None:
    put(step, "precious")
    turn = begin(step)
    put(step, "result")
    commit(step, turn)
    [sweep] = find_garbage_below([step.output_path.removesuffix("/ours/made")], RequiredOutputs(), 0.0)
    [garbage] = sweep.garbage
    remove_garbage(garbage, {"gc": "test"}, keep)
    left = [file.path for file in list_files(step.output_path)]
    assert [path for path in left if not path.endswith(".guard")] == ["precious"]


def test_adopted_result_rerun_removes_adopted_files(step: ResolvedStep) -> None:
    put(step, "model")
    adopt(Adoption(step, "m.f", step.output_path, {"user": "ada"}), keep)
    begin(step)
    assert names(step) == []


def test_files_of_failed_adoption_stay_preexisting(step: ResolvedStep) -> None:
    put(step, "model")
    adopt(Adoption(step, "m.f", step.output_path, {"user": "ada"}), keep)
    attempt = newest_attempt(step.output_path)
    assert attempt is not None
    write_text(attempt_path(step.output_path, 1), attempt.ended(AttemptOutcome.LOST).to_json())
    assert list_preexisting_files(step.output_path, None) == ("model",)


def test_files_are_copied_beside_what_was_there(step: ResolvedStep, tmp_path: Path) -> None:
    put(step, "precious")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/model").write_text("weights")
    adopt(Adoption(step, "m.f", str(tmp_path / "elsewhere"), {"user": "ada"}, copies=True), keep)
    assert names(step) == ["model", "precious"]


def test_older_attempts_say_nothing_of_it(tmp_path: Path) -> None:
    fields = json.loads(Attempt(1, "j", "", {}, {}).to_json())
    del fields["found"]
    write_text(str(tmp_path / "1.json"), json.dumps(fields))
    attempt = read_attempt(str(tmp_path / "1.json"))
    assert attempt is not None and attempt.found == ()


def commit(step: ResolvedStep, turn: ClaimedAttempt) -> None:
    store = LeaseStore(step.output_path)
    commit_attempt(lambda **changes: store.change(turn.held, **changes), step.output_path, turn.attempt, lambda: None)


def remove(step: ResolvedStep, path: str) -> None:
    from tradewind.storage.trees import remove_files

    remove_files(step.output_path, [path])
