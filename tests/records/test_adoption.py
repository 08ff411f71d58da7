"""Adoption imports external files as an ordinary result and never replaces a result."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.claims import renewing
from tradewind.attempts.renewal import LeaseRenewer
from tradewind.records.adoption import Adoption, NothingToAdoptError, RecordsError, adopt
from tradewind.records.attempts import Attempt, AttemptOutcome, newest_attempt
from tradewind.records.lease import Lease, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseHolder, LeaseStore, OutputBusyError
from tradewind.records.lifecycle import commit_attempt, next_attempt_number
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.record import RecordState, Status, read_record, read_status, write_status
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import LeaseLostError
from tradewind.storage.files import list_names, read_text, write_text
from tradewind.storage.swap import StoredObject, write_if


@dataclass(frozen=True)
class Config:
    value: Any


@pytest.fixture
def step(prefix: str) -> ResolvedStep:
    raw = ExecutorStep("raw", None, None)
    [resolved] = resolve([ExecutorStep("train", None, Config([versioned(1), raw]))], prefix).steps[-1:]
    return resolved


def files_at(folder: str, **texts: str) -> str:
    for name, text in texts.items():
        write_text(f"{folder}/{name}", text)
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    files_at(str(tmp_path / "elsewhere"), model="weights")
    return tmp_path / "elsewhere"


def adoption_of(step: ResolvedStep, source: str, *, copies: bool = False) -> Adoption:
    return Adoption(step, "my.module.train", source, {"adopted": source, "user": "ada"}, copies=copies)


def test_files_at_output_path_become_committed_result(step: ResolvedStep) -> None:
    path = files_at(step.output_path, model="weights", log="12")
    lease = adopt(adoption_of(step, path), renewing)

    record = read_record(path)
    assert (record.state, record.lease) == (RecordState.FINISHED, lease)
    assert (lease.phase, lease.attempt, lease.version) == (Phase.COMMITTED, 1, step.digest)
    assert dict(lease.by) == {"adopted": path, "user": "ada"}
    assert read_status(path) is Status.SUCCESS
    manifest = read_manifest(path, 1)
    assert manifest is not None and [file.path for file in manifest.files] == ["log", "model"]
    assert verify_output(path, manifest, lease.digest) == []
    attempt = newest_attempt(path)
    assert attempt is not None and attempt.outcome is AttemptOutcome.SUCCEEDED
    assert attempt.spec["adopted"] == path
    info = json.loads(read_text(f"{path}/.executor_info") or "")
    assert (info["name"], info["fn_name"], info["output_path"]) == ("train", "my.module.train", path)
    assert info["dependencies"] == [step.dependencies[0].output_path]


def test_files_from_elsewhere_are_copied_without_records(step: ResolvedStep, elsewhere: Path) -> None:
    files_at(str(elsewhere), **{"deep/log": "12", ".executor_status": "FAILED"})
    (elsewhere / "a::b").write_text("an odd name")
    (elsewhere / "newest").symlink_to(elsewhere / "model")
    files_at(step.output_path, **{"half": "left by a dead attempt", ".executor_status": "FAILED"})
    adopt(adoption_of(step, str(elsewhere), copies=True), renewing)
    manifest = read_manifest(step.output_path, 1)
    assert manifest is not None and [file.path for file in manifest.files] == ["a::b", "deep/log", "model", "newest"]
    assert read_text(f"{step.output_path}/newest") == "weights"
    assert "://" in step.output_path or not Path(step.output_path, "newest").is_symlink()
    assert read_status(step.output_path) is Status.SUCCESS
    assert (elsewhere / "model").read_text() == "weights"


def test_folder_link_copied_as_link_or_refused_in_bucket(step: ResolvedStep, elsewhere: Path) -> None:
    files_at(str(elsewhere), **{"step-100/state": "1"})
    (elsewhere / "newest").symlink_to("step-100")
    adoption = adoption_of(step, str(elsewhere), copies=True)
    if "://" in step.output_path:
        with pytest.raises(RecordsError, match="newest is a link to a folder, or to nothing, which a bucket"):
            adopt(adoption, renewing)
        return
    lease = adopt(adoption, renewing)
    assert (Path(step.output_path) / "newest" / "state").read_text() == "1"
    manifest = read_manifest(step.output_path, lease.attempt)
    assert manifest is not None and [file.path for file in manifest.files] == ["model", "newest", "step-100/state"]
    assert verify_output(step.output_path, manifest, lease.digest) == []


def test_missing_or_uncopied_files_are_not_adopted(step: ResolvedStep, prefix: str) -> None:
    source = files_at(f"{prefix}/elsewhere", model="weights")
    with pytest.raises(NothingToAdoptError, match=rf"belongs at {step.output_path}: copy or move {source} there"):
        adopt(adoption_of(step, source), renewing)
    for source, copies in ((step.output_path, False), (f"{prefix}/nowhere", True)):
        with pytest.raises(NothingToAdoptError, match="There are no files"):
            adopt(adoption_of(step, source, copies=copies), renewing)
    assert LeaseStore(step.output_path).read() is None


@pytest.mark.parametrize("by_marin", [True, False])
def test_a_result_is_not_replaced(step: ResolvedStep, by_marin: bool) -> None:
    path = files_at(step.output_path, model="weights")
    if by_marin:
        write_status(path, Status.SUCCESS)
    else:
        adopt(adoption_of(step, path), renewing)
    with pytest.raises(RecordsError, match="'train' has a finished output"):
        adopt(adoption_of(step, path), renewing)


def claim_by_another(store: LeaseStore, over: HeldLease | None, attempt: int) -> HeldLease:
    held = store.claim(over, LeaseClaim(attempt, "another", "cluster", {"run": "r"}, "f" * 32))
    assert held is not None
    return held


def test_output_at_work_is_not_adopted_but_its_leftovers_are(step: ResolvedStep) -> None:
    store = LeaseStore(files_at(step.output_path, model="weights"))
    held = claim_by_another(store, None, 1)
    with pytest.raises(OutputBusyError, match="at work"):
        adopt(adoption_of(step, step.output_path), renewing)
    now = store.read()
    assert now is not None and now.lease == held.lease
    store.change(held, phase=Phase.FAILED)
    lease = adopt(adoption_of(step, step.output_path), renewing)
    assert (lease.phase, lease.attempt) == (Phase.COMMITTED, 2)


def test_lease_held_during_copy_and_lost_lease_commits_nothing(step: ResolvedStep, prefix: str) -> None:
    source = files_at(f"{prefix}/elsewhere", model="weights")
    states: list[RecordState] = []

    def lose(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        states.append(read_record(step.output_path).state)
        claim_by_another(store, held, 7)
        return renewing(store, held)

    with pytest.raises(LeaseLostError):
        adopt(adoption_of(step, source, copies=True), lose)
    assert states == [RecordState.AT_WORK]
    now = LeaseStore(step.output_path).read()
    assert now is not None and (now.lease.attempt, now.lease.phase) == (7, Phase.CLAIMED)
    assert read_status(step.output_path) is None


def test_nothing_is_copied_after_the_lease_is_lost(step: ResolvedStep, prefix: str) -> None:
    source = files_at(f"{prefix}/elsewhere", model="weights")

    @contextmanager
    def lose(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        with LeaseRenewer(store, held, end_work=lambda end: None) as renewer:
            claim_by_another(store, held, 7)
            renewer.check_lease()
            yield renewer

    with pytest.raises(LeaseLostError):
        adopt(adoption_of(step, source, copies=True), lose)
    assert "model" not in list_names(step.output_path)


def test_faster_claimer_keeps_the_lease(step: ResolvedStep, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LeaseStore(files_at(step.output_path, model="weights"))

    def number_slowly(path: str, lease: Lease | None) -> int:
        claim_by_another(store, None, 1)
        return next_attempt_number(path, lease)

    monkeypatch.setattr("tradewind.records.adoption.next_attempt_number", number_slowly)
    with pytest.raises(OutputBusyError, match="has just begun to make"):
        adopt(adoption_of(step, step.output_path), renewing)
    held = store.read()
    assert held is not None and (held.lease.job, held.lease.phase) == ("another", Phase.CLAIMED)


@pytest.mark.slow
@pytest.mark.parametrize("notices_loss", [True, False])
def test_late_adoption_leaves_winner_manifest_unchanged(step: ResolvedStep, notices_loss: bool) -> None:
    path = files_at(step.output_path, model="weights")
    winners: list[Lease] = []

    @contextmanager
    def lose(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        ended = threading.Event()
        with LeaseRenewer(store, held, end_work=lambda end: ended.set()) as renewer:
            claim_by_another(store, held, 2)
            owned = store.take_over("another", "its owner")
            files_at(path, model="better weights")
            winner = Attempt(2, "another", "cluster", {"run": "r"}, {})
            winners.append(commit_attempt(partial(store.change, owned), path, winner, lambda: None).lease)
            assert ended.wait(60) if notices_loss else not ended.is_set()
            files_at(path, late="written by the adopting process")
            yield renewer

    with pytest.raises(LeaseLostError):
        adopt(adoption_of(step, path), lose)
    manifest = read_manifest(path, 2)
    assert manifest is not None and manifest.digest == winners[0].digest
    assert list_names(f"{path}/.attempts/1") == ([] if notices_loss else ["manifest.json"])


def test_failed_adoption_ends_its_attempt(step: ResolvedStep, elsewhere: Path) -> None:
    def vanish(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        (elsewhere / "model").unlink()
        return renewing(store, held)

    with pytest.raises(FileNotFoundError):
        adopt(adoption_of(step, str(elsewhere), copies=True), vanish)
    assert read_record(step.output_path).state is RecordState.STOPPED
    files_at(str(elsewhere), model="again")
    assert adopt(adoption_of(step, str(elsewhere), copies=True), renewing).attempt == 2


@pytest.mark.slow
def test_commit_is_retried_after_a_refusal(step: ResolvedStep) -> None:
    files_at(step.output_path, model="weights")
    refused: list[str] = []

    @contextmanager
    def refuse_once(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        def write(path: str, text: str, expected: str | None) -> StoredObject | None:
            if not refused:
                refused.append(path)
                raise StoreRefusedError(f"{path}: the store answered 403")
            return write_if(path, text, expected)

        with renewing(LeaseStore(step.output_path, write=write), held) as renewer:
            yield renewer

    assert adopt(adoption_of(step, step.output_path), refuse_once).phase is Phase.COMMITTED
    assert refused


@pytest.mark.parametrize("target", ["../treasure", "../vault", "../nothing", "deep/../../treasure", "."])
def test_link_leading_outside_source_refused_before_claim(
    step: ResolvedStep, elsewhere: Path, tmp_path: Path, target: str
) -> None:
    files_at(str(tmp_path / "vault"), key="not yours")
    (tmp_path / "treasure").write_text("not yours")
    (elsewhere / "link").symlink_to(target if target != "." else tmp_path)
    with pytest.raises(RecordsError, match="link is a link, or is behind one, that leads out of"):
        adopt(adoption_of(step, str(elsewhere), copies=True), renewing)
    assert list_names(step.output_path) == []


@pytest.mark.parametrize("copied", ["link/x", "link/deep/x", "link"])
def test_adoption_copies_nothing_through_link_at_output(
    tmp_path: Path, copied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [step] = resolve([ExecutorStep("train", None, Config(versioned(1)))], str(tmp_path / "store")).steps
    source = files_at(str(tmp_path / "elsewhere"), **{copied: "weights"})
    vault = files_at(str(tmp_path / "vault"), x="not yours")

    def plant(*nothing: Any) -> None:
        (Path(step.output_path) / "link").symlink_to(f"{vault}/x" if copied == "link" else vault)

    monkeypatch.setattr("tradewind.records.adoption.remove_leftovers", plant)
    with pytest.raises(RecordsError, match="leads out of"):
        adopt(adoption_of(step, source, copies=True), renewing)
    assert (tmp_path / "vault/x").read_text() == "not yours" and list_names(vault) == ["x"]
    assert read_record(step.output_path).state is RecordState.STOPPED
