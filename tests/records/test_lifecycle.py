"""Drivers write files and lease in an order that stays consistent when the owner dies at any point."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    AttemptOutcome,
    attempt_path,
    read_attempt,
    write_attempt,
)
from tradewind.records.cleanup import remove_listed
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.lifecycle import (
    InputChangedError,
    check_inputs_unchanged,
    claim_attempt,
    commit_attempt,
    complete_commit,
    end_abandoned_attempt,
    fail_attempt,
    input_digests,
    next_attempt_number,
    stop_attempt,
)
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.record import (
    STATUS_FILE,
    RecordState,
    Status,
    read_record,
    read_records,
    read_status,
    write_status,
)
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import write_text
from tradewind.storage.trees import list_files, remove_files


class Turn:
    """One attempt at ``path``, claimed and begun."""

    def __init__(self, path: str, withdraws: bool = False, inputs: dict[str, str | None] | None = None) -> None:
        self.path, self.store = path, LeaseStore(path)
        over = self.store.read()
        number = next_attempt_number(path, over.lease if over else None)
        self.attempt = Attempt(number, f"job-{number}", "", {}, {}, inputs=inputs or {}, withdraws=withdraws)
        assert claim_attempt(self.store, path, over, self.attempt, "v", 30.0) is not None

    def begin(self) -> Turn:
        self.held = self.store.take_over(self.attempt.job, f"keeper-{self.attempt.number}")
        return self

    def finish(self, **changes: Any) -> HeldLease:
        return self.store.change(self.held, **changes)

    def commit(self) -> Lease:
        write_text(f"{self.path}/data", f"of attempt {self.attempt.number}")
        return commit_attempt(self.finish, self.path, self.attempt, lambda: None).lease

    @property
    def story(self) -> Attempt | None:
        return read_attempt(attempt_path(self.path, self.attempt.number))


@pytest.fixture(params=["local", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    MemoryFileSystem.store.clear()
    yield str(tmp_path / "out") if request.param == "local" else "memory://turns/out"
    MemoryFileSystem.store.clear()


# ---- claims


def test_attempt_number_exceeds_lease_and_attempt_files(path: str) -> None:
    assert next_attempt_number(path, None) == 1
    write_attempt(path, Attempt(4, "job", "", {}, {}))
    assert next_attempt_number(path, None) == 5
    assert (
        next_attempt_number(path, Lease("w", 0.0, Phase.CLAIMED, 7)) == 8
    )  # the claimer died before it wrote the file


def test_who_is_too_late_writes_nothing(path: str) -> None:
    store = LeaseStore(path)
    winner = Turn(path)
    loser = Attempt(1, "mine", "", {}, {})
    assert claim_attempt(store, path, None, loser, "v", 30.0) is None
    assert winner.story == winner.attempt


def test_next_claim_records_dead_attempt_as_lost(path: str) -> None:
    first = Turn(path).begin()
    second = Turn(path)
    assert first.story is not None and first.story.outcome is AttemptOutcome.LOST
    assert second.story is not None and second.story.outcome is None


def test_the_end_of_a_turn_that_said_it_is_left_alone(path: str) -> None:
    first = Turn(path).begin()
    fail_attempt(first.finish, path, first.attempt, AttemptError("ValueError", "no"))
    story = first.story
    Turn(path)
    assert first.story == story and story is not None and story.outcome is AttemptOutcome.FAILED


def test_a_withdrawal_is_seen_by_older_readers_too(path: str) -> None:
    Turn(path).begin().commit()
    again = Turn(path, withdraws=True)
    assert (read_status(path), read_record(path).state) == (Status.RUNNING, RecordState.AT_WORK)
    assert again.story is not None and again.story.withdraws


def test_unstarted_withdrawal_inherited_by_next_attempt(path: str) -> None:
    Turn(path).begin().commit()
    Turn(path, withdraws=True)
    third = Turn(path)
    assert third.story is not None and third.story.withdraws
    fourth = Turn(path)
    assert fourth.story is not None and fourth.story.withdraws
    fourth.begin()
    fifth = Turn(path)
    assert fifth.story is not None and fifth.story.withdraws, "nobody says that the result has been removed"
    write_attempt(path, replace(fifth.story, has_withdrawn=True))
    sixth = Turn(path)
    assert sixth.story is not None and not sixth.story.withdraws


def test_withdrawal_remembered_if_claimer_died_before_its_file(path: str) -> None:
    Turn(path).begin().commit()
    store = LeaseStore(path)
    assert store.claim(store.read(), LeaseClaim(2, "job-2", "", {}, "v")) is not None
    third = Turn(path)
    assert third.story is not None and (third.story.number, third.story.withdraws) == (3, True)


# ---- endings


def test_commit_writes_manifest_and_legacy_status(path: str) -> None:
    turn = Turn(path).begin()
    lease = turn.commit()
    manifest = read_manifest(path, 1)
    assert manifest is not None
    assert (lease.phase, lease.digest, lease.witness) == (Phase.COMMITTED, manifest.digest, "data")
    assert turn.story is not None and turn.story.outcome is AttemptOutcome.SUCCEEDED
    assert (read_status(path), read_record(path).state) == (Status.SUCCESS, RecordState.FINISHED)


def test_whose_turn_is_over_writes_no_manifest(path: str) -> None:
    turn = Turn(path).begin()
    write_text(f"{path}/data", "x")

    def lost() -> None:
        raise LeaseLostError("while the checksums were made")

    with pytest.raises(LeaseLostError, match="while the checksums"):
        commit_attempt(turn.finish, path, turn.attempt, lost)
    assert not any(file.path.endswith("manifest.json") for file in list_files(path))


def test_late_commit_leaves_winner_manifest_unchanged(path: str) -> None:
    frozen = Turn(path).begin()
    lease = Turn(path).begin().commit()
    write_text(f"{path}/data", "of attempt 1, which thaws before it looks at its lease")
    with pytest.raises(LeaseLostError):
        commit_attempt(frozen.finish, path, frozen.attempt, lambda: None)
    manifest = read_manifest(path, lease.attempt)
    assert manifest is not None and manifest.digest == lease.digest
    assert [str(problem) for problem in verify_output(path, manifest, lease.digest)] == ["data: 54 bytes instead of 12"]


def test_a_failure_is_there_to_be_read_before_the_lease_says_so(path: str) -> None:
    turn = Turn(path).begin()
    seen: list[Attempt | None] = []

    def finish(**changes: Any) -> HeldLease:
        seen.append(turn.story)
        return turn.finish(**changes)

    fail_attempt(finish, path, turn.attempt, AttemptError("ValueError", "no"))
    assert seen[0] is not None and seen[0].error == AttemptError("ValueError", "no")
    assert (read_status(path), read_record(path).state) == (Status.FAILED, RecordState.FAILED)


def test_a_turn_that_is_stopped_is_no_failure(path: str) -> None:
    turn = Turn(path).begin()
    stop_attempt(turn.finish, path, turn.attempt, AttemptOutcome.STOPPED)
    assert turn.story is not None and turn.story.outcome is AttemptOutcome.STOPPED
    assert read_record(path).state is RecordState.STOPPED


def test_ending_abandoned_attempt_fails_after_takeover(path: str) -> None:
    left = Turn(path).begin()
    assert left.store.claim(left.store.read(), LeaseClaim(2, "job-2", "", {}, "v")) is not None
    assert not end_abandoned_attempt(left.store, path, left.held)
    assert left.story is not None and left.story.outcome is None


def test_what_a_lost_turn_made_does_not_count(path: str) -> None:
    lost = Turn(path).begin()
    winner = Turn(path).begin()
    with pytest.raises(LeaseLostError):
        lost.commit()
    assert read_record(path).state is RecordState.AT_WORK
    assert read_status(path) is not Status.SUCCESS
    assert winner.commit().attempt == 2


def test_who_lost_its_turn_does_not_even_say_that_it_stopped(path: str) -> None:
    lost = Turn(path).begin()
    Turn(path)
    story = lost.story
    with pytest.raises(LeaseLostError):
        stop_attempt(lost.finish, path, lost.attempt, AttemptOutcome.STOPPED)
    assert lost.story == story and story is not None and story.outcome is AttemptOutcome.LOST


@pytest.mark.parametrize("name", ["a::b", "x:y::z", "[a]*?#1", "s3::a/b"])
def test_an_output_is_there_whatever_its_only_file_is_called(any_folder: str, name: str) -> None:
    turn = Turn(any_folder).begin()
    fs, root = url_to_fs(any_folder)
    if any_folder.startswith("/"):
        Path(any_folder, name).parent.mkdir(parents=True, exist_ok=True)
    fs.pipe_file(f"{root}/{name}", b"text")
    lease = commit_attempt(turn.finish, any_folder, turn.attempt, lambda: None).lease
    assert (lease.witness, read_record(any_folder).state) == (name, RecordState.FINISHED)
    manifest = read_manifest(any_folder, 1)
    assert manifest is not None and verify_output(any_folder, manifest, lease.digest) == []
    remove_listed(any_folder, [file for file in list_files(any_folder) if file.path == name], lambda: None)
    assert read_record(any_folder).state is RecordState.GONE


@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_an_output_that_is_a_link_is_there_as_long_as_the_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    output = tmp_path / "out"
    turn = Turn(str(output)).begin()
    (output / "data").symlink_to(tmp_path / target)
    commit_attempt(turn.finish, str(output), turn.attempt, lambda: None)
    assert read_record(str(output)).state is RecordState.FINISHED
    (output / "data").unlink()
    assert read_record(str(output)).state is RecordState.GONE
    (output / "data").mkdir()
    assert read_record(str(output)).state is RecordState.GONE


# ---- directly after the swap


def killed_after_the_swap(turn: Turn) -> Lease:
    def finish(**changes: Any) -> HeldLease:
        turn.finish(**changes)
        raise KeyboardInterrupt

    write_text(f"{turn.path}/data", "x")
    with pytest.raises(KeyboardInterrupt):
        commit_attempt(finish, turn.path, turn.attempt, lambda: None)
    held = turn.store.read()
    assert held is not None
    return held.lease


def test_reader_completes_commit_of_owner_dead_after_swap(path: str) -> None:
    turn = Turn(path).begin()
    lease = killed_after_the_swap(turn)
    assert read_record(path).state is RecordState.FINISHED
    assert (read_status(path), turn.story) == (None, turn.attempt)
    for _ in range(2):
        complete_commit(path, lease)
        assert read_status(path) is Status.SUCCESS
        assert turn.story is not None and turn.story.outcome is AttemptOutcome.SUCCEEDED


def test_a_late_success_after_a_clear_changes_nothing(path: str) -> None:
    first = Turn(path).begin()
    lease = killed_after_the_swap(first)
    second = Turn(path, withdraws=True).begin()
    complete_commit(path, lease)  # a slow reader completes the commit
    assert read_status(path) is Status.SUCCESS
    assert read_record(path).state is RecordState.AT_WORK
    assert second.story == second.attempt
    assert second.commit().attempt == 2


def test_a_store_that_fails_after_the_swap_takes_nothing_back(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise StoreUnavailableError("503")

    monkeypatch.setattr("tradewind.records.lifecycle.complete_commit", down)
    assert Turn(path).begin().commit().phase is Phase.COMMITTED


# ---- inputs


def reads(path: str, *inputs: str) -> Attempt:
    return Attempt(1, "job", "", {}, {}, inputs=input_digests(read_records(inputs)))


def test_inputs_that_are_the_same_let_a_commit_pass(path: str) -> None:
    Turn(f"{path}/a").begin().commit()
    marins = marins_output(path)
    attempt = reads(path, f"{path}/a", marins)
    assert attempt.inputs[marins] is None
    check_inputs_unchanged(attempt)


def marins_output(path: str) -> str:
    write_text(f"{path}/marins/data", "x")
    write_status(f"{path}/marins", Status.SUCCESS)
    return f"{path}/marins"


@pytest.mark.parametrize("lost", [STATUS_FILE, "data"])
def test_an_input_of_marins_that_is_gone_refuses_the_commit(path: str, lost: str) -> None:
    marins = marins_output(path)
    attempt = reads(path, marins)
    remove_files(marins, [lost])
    with pytest.raises(InputChangedError, match="is gone, or is no result any more, while attempt 1 was at work"):
        check_inputs_unchanged(attempt)


def test_commit_refused_if_marin_input_was_rerun(path: str) -> None:
    marins = marins_output(path)
    attempt = reads(path, marins)
    Turn(marins, withdraws=True).begin().commit()
    with pytest.raises(InputChangedError, match="was made again while attempt 1 was at work"):
        check_inputs_unchanged(attempt)


def test_commit_refused_if_marin_executor_replaced_input(path: str) -> None:
    Turn(f"{path}/a").begin().commit()
    attempt = reads(path, f"{path}/a")
    remove_files(f"{path}/a", [posixpath.basename(lease_path(path))])
    assert read_record(f"{path}/a").is_marin_result
    with pytest.raises(InputChangedError):
        check_inputs_unchanged(attempt)


def test_inputs_marked_for_removal_unchanged_until_withdrawn(path: str) -> None:
    Turn(f"{path}/a").begin().commit()
    for each in (f"{path}/a", marins_output(path)):
        attempt, store = reads(path, each), LeaseStore(each)
        marked = store.mark_removing(store.read(), {"gc": "ada"})
        check_inputs_unchanged(attempt)
        assert marked is not None and store.withdraw(marked) is not None
        with pytest.raises(InputChangedError, match="was made again"):
            check_inputs_unchanged(attempt)


def test_an_input_that_was_made_again_alike_is_the_same(path: str) -> None:
    made = Turn(f"{path}/a").begin()
    write_text(f"{path}/a/data", "x")
    commit_attempt(made.finish, f"{path}/a", made.attempt, lambda: None)
    attempt = reads(path, f"{path}/a")
    again = Turn(f"{path}/a", withdraws=True).begin()
    commit_attempt(again.finish, f"{path}/a", again.attempt, lambda: None)
    check_inputs_unchanged(attempt)


def test_an_input_that_is_another_result_now_refuses_the_commit(path: str) -> None:
    Turn(f"{path}/a").begin().commit()
    reader = Turn(path, inputs=input_digests(read_records([f"{path}/a"]))).begin()
    Turn(f"{path}/a", withdraws=True).begin().commit()
    with pytest.raises(InputChangedError, match="was made again while attempt 1 was at work"):
        reader.commit()
    assert read_record(path).state is RecordState.AT_WORK


def test_an_input_that_is_withdrawn_refuses_the_commit(path: str) -> None:
    Turn(f"{path}/a").begin().commit()
    attempt = reads(path, f"{path}/a")
    Turn(f"{path}/a", withdraws=True)
    with pytest.raises(InputChangedError):
        check_inputs_unchanged(attempt)


def test_commit_refused_while_marin_input_is_being_rerun(path: str) -> None:
    write_status(f"{path}/a", Status.SUCCESS)
    attempt = reads(path, f"{path}/a")
    again = Turn(f"{path}/a", withdraws=True)
    with pytest.raises(InputChangedError):
        check_inputs_unchanged(attempt)
    again.begin().commit()
    with pytest.raises(InputChangedError):
        check_inputs_unchanged(attempt)


def test_leftover_marin_lease_at_input_is_no_withdrawal(path: str) -> None:
    write_status(f"{path}/a", Status.SUCCESS)
    write_text(f"{path}/a/data", "x")
    write_text(lease_path(f"{path}/a"), json.dumps({"worker_id": "theirs", "timestamp": 0.0}))
    assert read_record(f"{path}/a").state is RecordState.FINISHED
    check_inputs_unchanged(reads(path, f"{path}/a"))
