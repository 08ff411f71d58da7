"""Drivers write files and lease in an order that stays consistent when the owner dies at any point."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.core import url_to_fs

from tests.support.claims import lease_at
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, attempt_path, read_attempt, write_attempt
from tradewind.records.cleanup import remove_listed
from tradewind.records.lease import LEASE_FILE, Lease, Phase, lease_path
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


class Owner:
    """The owner of an attempt at ``path``: it claims, begins, and ends in some way."""

    def __init__(self, path: str, withdraws: bool = False, inputs: dict[str, str | None] | None = None) -> None:
        self.path, self.store = path, LeaseStore(path)
        over = self.store.read()
        number = next_attempt_number(path, over.lease if over else None)
        self.attempt = Attempt(number, f"job-{number}", "", {}, {}, inputs=inputs or {}, withdraws=withdraws)
        assert claim_attempt(self.store, path, over, self.attempt, "v", 30.0) is not None

    def begin(self) -> Owner:
        self.held = self.store.take_over(self.attempt.job, f"owner-{self.attempt.number}")
        return self

    def finish(self, **changes: Any) -> HeldLease:
        return self.store.change(self.held, **changes)

    def commit(self) -> Lease:
        write_text(f"{self.path}/data", f"of attempt {self.attempt.number}")
        return commit_attempt(self.finish, self.path, self.attempt, lambda: None).lease

    @property
    def recorded(self) -> Attempt:
        attempt = read_attempt(attempt_path(self.path, self.attempt.number))
        assert attempt is not None
        return attempt


@pytest.fixture
def path(local_prefix: str) -> str:
    return f"{local_prefix}/out"


# ---- claims


def test_attempt_number_exceeds_lease_and_attempt_files(path: str) -> None:
    assert next_attempt_number(path, None) == 1
    write_attempt(path, Attempt(4, "job", "", {}, {}))
    assert next_attempt_number(path, None) == 5
    claimed = Lease("w", 0.0, Phase.CLAIMED, 7)  # the claimer died before it wrote the file
    assert next_attempt_number(path, claimed) == 8


def test_slower_claimer_writes_nothing(path: str) -> None:
    winner = Owner(path)
    assert claim_attempt(LeaseStore(path), path, None, Attempt(1, "slow", "", {}, {}), "v", 30.0) is None
    assert winner.recorded == winner.attempt


def test_next_claim_records_dead_attempt_as_lost_keeps_ended(path: str) -> None:
    dead, second = Owner(path).begin(), Owner(path).begin()
    assert (dead.recorded.outcome, second.recorded.outcome) == (AttemptOutcome.LOST, None)
    fail_attempt(second.finish, path, second.attempt, AttemptError("ValueError", "no"))
    ended = second.recorded
    Owner(path)
    assert second.recorded == ended and ended.outcome is AttemptOutcome.FAILED


def test_older_readers_see_a_withdrawal(path: str) -> None:
    Owner(path).begin().commit()
    again = Owner(path, withdraws=True)
    assert (read_status(path), read_record(path).state) == (Status.RUNNING, RecordState.AT_WORK)
    assert again.recorded.withdraws


def test_unstarted_withdrawal_inherited_by_next_attempt(path: str) -> None:
    Owner(path).begin().commit()
    Owner(path, withdraws=True)
    assert Owner(path).recorded.withdraws
    fourth = Owner(path)
    assert fourth.recorded.withdraws
    fourth.begin()
    fifth = Owner(path).recorded
    assert fifth.withdraws, "no record says that the result has been removed"
    write_attempt(path, replace(fifth, has_withdrawn=True))
    assert not Owner(path).recorded.withdraws


def test_withdrawal_remembered_if_claimer_died_before_its_file(path: str) -> None:
    Owner(path).begin().commit()
    store = LeaseStore(path)
    assert store.claim(store.read(), LeaseClaim(2, "job-2", "", {}, "v")) is not None
    third = Owner(path).recorded
    assert (third.number, third.withdraws) == (3, True)


# ---- endings


def test_commit_writes_manifest_and_legacy_status(path: str) -> None:
    owner = Owner(path).begin()
    lease = owner.commit()
    manifest = read_manifest(path, 1)
    assert manifest is not None
    assert (lease.phase, lease.digest, lease.witness) == (Phase.COMMITTED, manifest.digest, "data")
    assert owner.recorded.outcome is AttemptOutcome.SUCCEEDED
    assert (read_status(path), read_record(path).state) == (Status.SUCCESS, RecordState.FINISHED)


def test_lease_lost_during_checksums_writes_no_manifest(path: str) -> None:
    owner = Owner(path).begin()
    write_text(f"{path}/data", "x")

    def lose() -> None:
        raise LeaseLostError("while the checksums were made")

    with pytest.raises(LeaseLostError, match="while the checksums"):
        commit_attempt(owner.finish, path, owner.attempt, lose)
    assert not any(file.path.endswith("manifest.json") for file in list_files(path))


def test_late_commit_leaves_winner_manifest_unchanged(path: str) -> None:
    frozen = Owner(path).begin()
    lease = Owner(path).begin().commit()
    write_text(f"{path}/data", "of attempt 1, which thaws before it reads its lease")
    with pytest.raises(LeaseLostError):
        commit_attempt(frozen.finish, path, frozen.attempt, lambda: None)
    manifest = read_manifest(path, lease.attempt)
    assert manifest is not None and manifest.digest == lease.digest
    assert [str(problem) for problem in verify_output(path, manifest, lease.digest)] == ["data: 51 bytes instead of 12"]


def test_failure_is_readable_before_the_lease_names_it(path: str) -> None:
    owner, error = Owner(path).begin(), AttemptError("ValueError", "no")
    recorded: list[Attempt] = []

    def finish(**changes: Any) -> HeldLease:
        recorded.append(owner.recorded)
        return owner.finish(**changes)

    fail_attempt(finish, path, owner.attempt, error)
    assert recorded[0].error == error
    assert (read_status(path), read_record(path).state) == (Status.FAILED, RecordState.FAILED)


def test_stopped_attempt_is_no_failure(path: str) -> None:
    owner = Owner(path).begin()
    stop_attempt(owner.finish, path, owner.attempt, AttemptOutcome.STOPPED)
    assert (owner.recorded.outcome, read_record(path).state) == (AttemptOutcome.STOPPED, RecordState.STOPPED)


def test_ending_abandoned_attempt_fails_after_takeover(path: str) -> None:
    abandoned = Owner(path).begin()
    assert abandoned.store.claim(abandoned.store.read(), LeaseClaim(2, "job-2", "", {}, "v")) is not None
    assert not end_abandoned_attempt(abandoned.store, path, abandoned.held)
    assert abandoned.recorded.outcome is None


def test_superseded_attempt_neither_commits_nor_records_a_stop(path: str) -> None:
    lost, winner = Owner(path).begin(), Owner(path).begin()
    with pytest.raises(LeaseLostError):
        lost.commit()
    with pytest.raises(LeaseLostError):
        stop_attempt(lost.finish, path, lost.attempt, AttemptOutcome.STOPPED)
    assert lost.recorded.outcome is AttemptOutcome.LOST
    assert read_record(path).state is RecordState.AT_WORK
    assert read_status(path) is not Status.SUCCESS
    assert winner.commit().attempt == 2


@pytest.mark.parametrize("name", ["a::b", "x:y::z", "[a]*?#1", "s3::a/b"])
def test_output_exists_whatever_its_only_file_is_called(any_folder: str, name: str) -> None:
    owner = Owner(any_folder).begin()
    fs, root = url_to_fs(any_folder)
    if any_folder.startswith("/"):
        Path(any_folder, name).parent.mkdir(parents=True, exist_ok=True)
    fs.pipe_file(f"{root}/{name}", b"text")
    lease = commit_attempt(owner.finish, any_folder, owner.attempt, lambda: None).lease
    assert (lease.witness, read_record(any_folder).state) == (name, RecordState.FINISHED)
    manifest = read_manifest(any_folder, 1)
    assert manifest is not None and verify_output(any_folder, manifest, lease.digest) == []
    remove_listed(any_folder, [file for file in list_files(any_folder) if file.path == name], lambda: None)
    assert read_record(any_folder).state is RecordState.GONE


@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_output_that_is_a_link_exists_as_long_as_the_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    output = tmp_path / "out"
    owner = Owner(str(output)).begin()
    (output / "data").symlink_to(tmp_path / target)
    commit_attempt(owner.finish, str(output), owner.attempt, lambda: None)
    assert read_record(str(output)).state is RecordState.FINISHED
    (output / "data").unlink()
    assert read_record(str(output)).state is RecordState.GONE
    (output / "data").mkdir()
    assert read_record(str(output)).state is RecordState.GONE


# ---- directly after the swap


def die_after_swap(owner: Owner) -> Lease:
    def finish(**changes: Any) -> HeldLease:
        owner.finish(**changes)
        raise KeyboardInterrupt

    write_text(f"{owner.path}/data", "x")
    with pytest.raises(KeyboardInterrupt):
        commit_attempt(finish, owner.path, owner.attempt, lambda: None)
    return lease_at(owner.path)


def test_reader_completes_commit_of_owner_dead_after_swap(path: str) -> None:
    owner = Owner(path).begin()
    lease = die_after_swap(owner)
    assert read_record(path).state is RecordState.FINISHED
    assert (read_status(path), owner.recorded) == (None, owner.attempt)
    for _ in range(2):
        complete_commit(path, lease)
        assert (read_status(path), owner.recorded.outcome) == (Status.SUCCESS, AttemptOutcome.SUCCEEDED)


def test_late_completion_after_a_rerun_changes_nothing(path: str) -> None:
    lease = die_after_swap(Owner(path).begin())
    second = Owner(path, withdraws=True).begin()
    complete_commit(path, lease)  # a slow reader completes the commit
    assert (read_status(path), read_record(path).state) == (Status.SUCCESS, RecordState.AT_WORK)
    assert second.recorded == second.attempt
    assert second.commit().attempt == 2


def test_store_outage_after_the_swap_keeps_the_commit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("503")

    monkeypatch.setattr("tradewind.records.lifecycle.complete_commit", fail)
    assert Owner(path).begin().commit().phase is Phase.COMMITTED


# ---- inputs


def make(path: str) -> None:
    Owner(path).begin().commit()


def make_by_marin(path: str) -> None:
    write_text(f"{path}/data", "x")
    write_status(path, Status.SUCCESS)


def withdraw(path: str) -> None:
    Owner(path, withdraws=True)


def rerun(path: str) -> None:
    Owner(path, withdraws=True).begin().commit()


def rerun_alike(path: str) -> None:
    again = Owner(path, withdraws=True).begin()
    write_text(f"{path}/data", "of attempt 1")
    commit_attempt(again.finish, path, again.attempt, lambda: None)


def mark(path: str) -> HeldLease:
    store = LeaseStore(path)
    marked = store.mark_removing(store.read(), {"gc": "ada"})
    assert marked is not None
    return marked


def collect(path: str) -> None:
    assert LeaseStore(path).withdraw(mark(path)) is not None


def remove(name: str) -> Callable[[str], None]:
    return lambda path: remove_files(path, [name])


def leave_marin_lease(path: str) -> None:
    write_text(lease_path(path), json.dumps({"worker_id": "theirs", "timestamp": 0.0}))


def reader_of(*inputs: str) -> Attempt:
    return Attempt(1, "job", "", {}, {}, inputs=input_digests(read_records(inputs)))


GONE, AGAIN = "is gone, or is no result any more,", "was made again"
CHANGES = {
    "rerun": (make, rerun, AGAIN),
    "withdrawn for a rerun": (make, withdraw, AGAIN),
    "collected": (make, collect, AGAIN),
    "replaced by Marin's executor": (make, remove(LEASE_FILE), GONE),
    "Marin's, status gone": (make_by_marin, remove(STATUS_FILE), GONE),
    "Marin's, file gone": (make_by_marin, remove("data"), GONE),
    "Marin's, rerun": (make_by_marin, rerun, AGAIN),
    "Marin's, withdrawn for a rerun": (make_by_marin, withdraw, AGAIN),
    "Marin's, collected": (make_by_marin, collect, AGAIN),
}


@pytest.mark.parametrize(("make_input", "change", "what"), CHANGES.values(), ids=CHANGES)
def test_changed_input_refuses_commit(
    path: str, make_input: Callable[[str], None], change: Callable[[str], None], what: str
) -> None:
    make_input(f"{path}/a")
    attempt = reader_of(f"{path}/a")
    change(f"{path}/a")
    with pytest.raises(InputChangedError, match=f"{what} while attempt 1 was at work"):
        check_inputs_unchanged(attempt)


@pytest.mark.parametrize(
    ("make_input", "change"),
    [
        (make, lambda path: None),
        (make, mark),
        (make, rerun_alike),
        (make_by_marin, lambda path: None),
        (make_by_marin, mark),
        (make_by_marin, leave_marin_lease),
    ],
)
def test_unchanged_input_allows_commit(
    path: str, make_input: Callable[[str], None], change: Callable[[str], None]
) -> None:
    make_input(f"{path}/a")
    attempt = reader_of(f"{path}/a")
    assert (attempt.inputs[f"{path}/a"] is None) is (make_input is make_by_marin)
    change(f"{path}/a")
    check_inputs_unchanged(attempt)


def test_commit_with_changed_input_is_no_result(path: str) -> None:
    make(f"{path}/a")
    reader = Owner(path, inputs=dict(reader_of(f"{path}/a").inputs)).begin()
    rerun(f"{path}/a")
    with pytest.raises(InputChangedError, match="was made again while attempt 1 was at work"):
        reader.commit()
    assert read_record(path).state is RecordState.AT_WORK
