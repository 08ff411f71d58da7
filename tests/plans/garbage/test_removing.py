"""Removal deletes whole outputs, and skips those that a user pins, or an attempt reads or changes, after the search."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.plans.garbage.outputs import (
    BY,
    Config,
    aged,
    claim,
    files_of,
    garbage_at,
    garbage_of,
    made,
    make_raw,
    make_raw_as_marin,
    reader,
    steps,
    sweep,
)
from tests.support.claims import lease_at, renewing
from tradewind.attempts.renewal import LeaseRenewer
from tradewind.attempts.step_lease import MissingInputError, StepLease
from tradewind.plans.garbage.collection import RequiredOutputs, remove_garbage, withdraw_results
from tradewind.plans.garbage.withdrawal import withdraw
from tradewind.records import cleanup, pins
from tradewind.records.attempts import Attempt, attempt_path, read_attempt, write_attempt
from tradewind.records.discovery import find_outputs
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import LEASE_FILE, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseHolder, LeaseStore, OutputBusyError
from tradewind.records.lifecycle import (
    check_inputs_unchanged,
    claim_attempt,
    commit_attempt,
    input_digests,
    next_attempt_number,
)
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.pins import Pin, add_pin, is_pinned, set_pin
from tradewind.records.record import RecordState, Status, read_record, read_records, read_status, write_status
from tradewind.steps import ExecutorStep, resolve, versioned
from tradewind.storage.errors import LeaseLostError, RecordsError
from tradewind.storage.files import write_text

GUARD = f"{LEASE_FILE}.guard"


def pin_of(path: str) -> Pin:
    return Pin(path, "ada", "now")


@pytest.mark.parametrize("make", [make_raw, make_raw_as_marin])
def test_output_is_removed_whole(any_prefix: str, make: Callable[[str], str]) -> None:
    path = make(any_prefix)
    garbage = garbage_at(any_prefix)
    assert garbage.files == len(set(files_of(path)) - {GUARD})
    remove_garbage(garbage, BY, renewing)
    assert files_of(path) in ([], [GUARD])
    assert not Path(path, "part").exists()
    assert read_record(path).state is RecordState.NONE
    assert not find_outputs(any_prefix)


def test_nested_output_survives_removal(any_prefix: str) -> None:
    path = make_raw(any_prefix)
    garbage = garbage_at(any_prefix)
    write_text(f"{path}/inner-654321/deep/model", "weights")
    write_status(f"{path}/inner-654321", Status.SUCCESS)
    remove_garbage(garbage, BY, renewing)
    assert list(find_outputs(any_prefix)) == [f"{path}/inner-654321"]
    assert read_record(f"{path}/inner-654321").state is RecordState.FINISHED


# ---- changes and pins between search and removal


def test_output_pinned_or_claimed_after_search_is_kept(any_prefix: str) -> None:
    path = make_raw(any_prefix)
    garbage, before = garbage_at(any_prefix), files_of(path)
    store = LeaseStore(path)
    store.claim(store.read(), LeaseClaim(2, "job", "cluster", {"run": "r"}, ""))
    with pytest.raises(OutputBusyError, match="was changed meanwhile"):
        remove_garbage(garbage, BY, renewing)
    add_pin(any_prefix, pin_of(path))
    with pytest.raises(OutputBusyError, match="was pinned meanwhile"):
        remove_garbage(garbage, BY, renewing)
    assert files_of(path) == before


def test_new_result_over_failed_attempt_is_not_removed(prefix: str) -> None:
    raw = steps(prefix, 1)[0]
    store = LeaseStore(raw.output_path)
    held = store.claim(None, LeaseClaim(1, "job", "", {}, raw.digest))
    assert held is not None
    store.change(held, phase=Phase.FAILED)
    garbage = garbage_at(prefix)
    aged([made(raw)])
    with pytest.raises(OutputBusyError, match="was changed meanwhile"):
        remove_garbage(garbage, BY, renewing)
    assert read_record(raw.output_path).state is RecordState.FINISHED


def test_output_pinned_after_its_mark_stays_a_result(any_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_raw(any_prefix)
    garbage, digest = garbage_at(any_prefix), lease_at(path).digest
    mark = LeaseStore.mark_removing

    def then_pin(store: LeaseStore, seen: HeldLease | None, by: Mapping[str, Any]) -> HeldLease | None:
        marked = mark(store, seen, by)
        add_pin(any_prefix, pin_of(path))
        return marked

    monkeypatch.setattr(LeaseStore, "mark_removing", then_pin)
    [after] = withdraw_results([garbage], BY)
    assert "was pinned meanwhile" in str(after.problem)
    assert read_record(path).state is RecordState.FINISHED and lease_at(path).digest == digest


def test_withdrawal_gives_up_when_its_mark_expires(prefix: str) -> None:
    path = f"{prefix}/raw"
    store = LeaseStore(path)
    held = store.claim(None, LeaseClaim(1, "job", "", {}, "", heartbeat_s=1e-6))  # the next call exceeds it
    assert held is not None
    committed = store.change(held, phase=Phase.COMMITTED, digest="abc").lease
    assert "took too long" in str(withdraw({path: committed}, [prefix], BY)[path])
    now = lease_at(path)
    assert (now.phase, now.digest, now.removing) == (Phase.COMMITTED, "abc", None)


def test_pin_between_withdrawal_and_removal_keeps_files(any_prefix: str) -> None:
    path = make_raw(any_prefix)
    [withdrawn] = withdraw_results([garbage_at(any_prefix)], BY)

    def pinned(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        add_pin(any_prefix, pin_of(path))
        return renewing(store, held)

    with pytest.raises(OutputBusyError, match="was pinned meanwhile: its files stay"):
        remove_garbage(withdrawn, BY, pinned)
    assert "part/model" in files_of(path)
    assert read_record(path).state is RecordState.STOPPED


def test_output_is_in_use_and_refuses_pins_during_removal(any_prefix: str) -> None:
    path = make_raw(any_prefix)

    def checked(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        assert read_record(path).state is RecordState.AT_WORK
        with pytest.raises(OutputBusyError, match="is being removed by `tradewind gc`, so it is not pinned"):
            set_pin(any_prefix, pin_of(path))
        return renewing(store, held)

    remove_garbage(garbage_at(any_prefix), BY, checked)
    assert not find_outputs(any_prefix) and not is_pinned(path)


@pytest.mark.parametrize("happens", ["marked", "withdrawn"])
def test_pin_racing_with_removal_mark_is_refused_and_undone(
    happens: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_raw(prefix)
    store, add = LeaseStore(path), pins.add_pin
    seen = store.read()

    def late(*arguments: Any) -> bool:
        marked = store.mark_removing(seen, BY)
        if happens == "withdrawn":
            assert marked is not None
            store.withdraw(marked)
        return add(*arguments)

    monkeypatch.setattr(pins, "add_pin", late)
    with pytest.raises(OutputBusyError, match="is not pinned"):
        set_pin(prefix, pin_of(path))
    assert not is_pinned(path)


# ---- a removal that loses its lease, or is interrupted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end_lease", "attempt"),
    [
        (lambda store, held: store.claim(held, LeaseClaim(7, "another", "cluster", {"run": "r"}, "")), 7),
        (lambda store, held: store.request_stop(held.lease.job, {"user": "ada"}), 2),
    ],
    ids=["taken over", "stop requested"],
)
def test_removal_that_loses_its_lease_deletes_nothing(
    prefix: str, end_lease: Callable[[LeaseStore, HeldLease], object], attempt: int
) -> None:
    path = make_raw(prefix)
    before = files_of(path)

    @contextmanager
    def lose(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        end_lease(store, held)
        ended = threading.Event()
        with LeaseRenewer(store, held, end_work=lambda end: ended.set()) as holder:
            assert ended.wait(60)
            yield holder

    with pytest.raises(LeaseLostError):
        remove_garbage(garbage_at(prefix), BY, lose)
    assert files_of(path) == before
    assert lease_at(path).attempt == attempt


class LeaseOfOneBatch:
    """A lease that is lost when the second batch of files is due."""

    end = None

    def __init__(self, owner: LeaseRenewer) -> None:
        self._checks = 0
        self.finish, self.retry_store = owner.finish, owner.retry_store

    def check(self) -> None:
        self._checks += 1
        if self._checks > 2:  # the first check precedes the search
            raise LeaseLostError("Another attempt holds it.")


@pytest.mark.slow
def test_status_for_marin_is_removed_before_any_file(prefix: str) -> None:
    path = steps(prefix, 1)[0].output_path
    for number in range(120):
        write_text(f"{path}/.a/{number:03}", "sorts before every record")
    make_raw(prefix)

    @contextmanager
    def lose(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        with LeaseRenewer(store, held, end_work=lambda end: None) as owner:
            yield LeaseOfOneBatch(owner)

    garbage = garbage_at(prefix)
    with pytest.raises(LeaseLostError):
        remove_garbage(garbage, BY, lose)
    assert read_status(path) is None
    assert any(file.startswith(".a/") for file in files_of(path))


@pytest.mark.parametrize("any_prefix", ["local", "gs"], indirect=True, ids=str)
@pytest.mark.parametrize("at", ["tradewind.records.cleanup._remove", "tradewind.plans.garbage.collection.remove_if"])
def test_frozen_removal_spares_result_committed_meanwhile(
    any_prefix: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_raw(any_prefix)
    module, _, name = at.rpartition(".")
    remove = getattr(importlib.import_module(module), name)

    def thaw_late(*arguments: Any) -> None:
        monkeypatch.setattr(at, remove)
        store, over = LeaseStore(path), LeaseStore(path).read()
        winner = Attempt(3, "job", "cluster", {"run": "r"}, {})
        assert claim_attempt(store, path, over, winner, "", 30.0)
        write_text(f"{path}/part/model", "better weights")
        commit_attempt(partial(store.change, store.take_over("job", "its owner")), path, winner, lambda: None)
        remove(*arguments)

    monkeypatch.setattr(at, thaw_late)
    with suppress(LeaseLostError):
        remove_garbage(garbage_at(any_prefix), BY, renewing)
    lease, manifest = lease_at(path), read_manifest(path, 3)
    assert lease.phase is Phase.COMMITTED
    assert manifest is not None and verify_output(path, manifest, lease.digest) == []


def test_removal_interrupted_at_start_is_stale_and_repeatable(prefix: str) -> None:
    path = make_raw(prefix)

    def die(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_garbage(garbage_at(prefix), BY, die)
    assert read_record(path).state is RecordState.AT_WORK
    aged([path])
    assert read_record(path).state is RecordState.STOPPED
    remove_garbage(garbage_at(prefix), BY, renewing)
    assert not find_outputs(prefix)


def test_leftovers_of_partial_removal_are_no_checkpoint(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = steps(prefix, 1)[0]
    for name in ("shard-0", "shard-1", "metadata.json"):
        write_text(f"{step.output_path}/checkpoints/step-9/{name}", "whole")
    path, remove = made(step), cleanup._remove

    def die_half_way(fs: Any, protocol: str | None, tags: dict[str, str | None]) -> None:
        monkeypatch.setattr(cleanup, "_remove", remove)
        remove(fs, protocol, dict(list(tags.items())[: len(tags) // 2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(cleanup, "_remove", die_half_way)
    with pytest.raises(KeyboardInterrupt):
        remove_garbage(garbage_at(prefix), BY, renewing)
    assert any("checkpoints" in file for file in files_of(path))
    aged([path])
    store = LeaseStore(path)
    over = store.read()
    assert over is not None
    number = next_attempt_number(path, over.lease)
    assert claim_attempt(store, path, over, Attempt(number, "job", "cluster", {"run": "r"}, {}), "", 30.0)
    attempt = read_attempt(attempt_path(path, number))
    assert attempt is not None and attempt.withdraws


# ---- inputs of running attempts, whether the attempt or the removal began first


@pytest.mark.parametrize("make", [make_raw, make_raw_as_marin])
def test_input_claimed_by_reader_after_search_is_kept(any_prefix: str, make: Callable[[str], str]) -> None:
    raw = make(any_prefix)
    garbage, digests = garbage_at(any_prefix), input_digests(read_records([raw]))
    claimed = claim(reader(any_prefix))
    assert claimed is not None
    with pytest.raises(OutputBusyError, match="is read by a running attempt"):
        remove_garbage(garbage, BY, renewing)
    assert read_record(raw).state is RecordState.FINISHED
    assert input_digests(read_records([raw])) == digests
    check_inputs_unchanged(claimed.attempt)


def test_output_is_kept_while_attempt_reads_its_file_by_path(prefix: str) -> None:
    raw = make_raw(prefix)
    garbage = garbage_at(prefix)
    step = ExecutorStep("reads", None, {"file": f"{raw}/part/model"})
    lease = StepLease(resolve([step], prefix).of(step), {"run": "r"})
    claimed = claim(lease)
    assert claimed is not None and raw not in claimed.attempt.inputs
    write_attempt(lease.path, replace(claimed.attempt, spec={"file": f"{raw}/part/model"}))
    with pytest.raises(OutputBusyError, match="is read by a running attempt"):
        remove_garbage(garbage, BY, renewing)
    assert read_record(raw).state is RecordState.FINISHED


@pytest.mark.parametrize("make", [make_raw, make_raw_as_marin])
def test_claim_ends_unstarted_while_input_is_marked(any_prefix: str, make: Callable[[str], str]) -> None:
    raw = make(any_prefix)
    store = LeaseStore(raw)
    marks: list[HeldLease | None] = []
    step = reader(any_prefix, lambda job: marks.append(store.mark_removing(store.read(), BY)))
    assert claim(step) is None
    assert step.read().state is RecordState.STOPPED
    assert read_record(raw).state is RecordState.AT_WORK, "no step reuses it now"
    with pytest.raises(MissingInputError) as missing:
        claim(step)
    assert missing.value.at_work is not None, "the reader can wait for it"
    assert marks[0] is not None and store.withdraw(marks[0]) is not None
    assert read_record(raw).state is RecordState.STOPPED


def test_claim_is_retried_when_input_is_remade_meanwhile(prefix: str) -> None:
    raw = make_raw(prefix)

    def make_again(job: str) -> None:
        store = LeaseStore(raw)
        assert store.claim(store.read(), LeaseClaim(2, "job", "", {"run": "r"}, "")) is not None
        running = store.take_over("job", "owner")
        store.change(running, phase=Phase.COMMITTED, digest="another", witness=None)

    assert claim(reader(prefix, make_again)) is None
    claimed = claim(reader(prefix))
    assert claimed is not None and claimed.attempt.inputs == {raw: "another"}


def test_mark_of_dead_collector_expires(prefix: str) -> None:
    raw = make_raw(prefix)
    store = LeaseStore(raw)
    store.mark_removing(store.read(), BY)
    assert read_record(raw).state is RecordState.AT_WORK
    aged([raw])
    assert read_record(raw).state is RecordState.FINISHED
    remove_garbage(garbage_at(prefix), BY, renewing)
    assert not find_outputs(prefix)


def test_unread_results_are_withdrawn_together_read_ones_kept(prefix: str) -> None:
    raw, unread = make_raw(prefix), made(steps(prefix, 2)[0])
    garbage = sweep(prefix, older_than_s=0.0).garbage
    claim(reader(prefix))
    after = {each.path: each for each in withdraw_results(garbage, BY)}
    assert (after[raw].problem is None, after[unread].problem is None) == (False, True)
    remove_garbage(after[unread], BY, renewing)
    with pytest.raises(OutputBusyError, match="is read by a running attempt"):
        remove_garbage(after[raw], BY, renewing)
    assert sorted(find_outputs(prefix)) == sorted([raw, reader(prefix).path])


def test_attempt_at_known_other_prefix_keeps_its_inputs(prefix: str) -> None:
    raw, other = make_raw(prefix), f"{prefix}-other"
    garbage = sweep(prefix, older_than_s=0.0).garbage
    input_here = ExecutorStep("data/raw", None, Config(versioned(1)), override_output_path=raw)
    reads = resolve([ExecutorStep("reads", None, Config(input_here))], other).steps[1]
    claim(StepLease(reads, {"run": "r"}))
    [after] = withdraw_results(garbage, BY, also_below=[other])
    assert after.problem is not None


@pytest.mark.parametrize("file", [".attempts/1.json", LEASE_FILE])
def test_unreadable_attempt_inputs_keep_everything(prefix: str, file: str) -> None:
    raw, step = make_raw(prefix), reader(prefix)
    garbage = garbage_at(prefix)
    claim(step)
    write_text(f"{step.path}/{file}", "half a li")
    with pytest.raises(RecordsError, match="everything is kept"):
        remove_garbage(garbage, BY, renewing)
    assert read_record(raw).state is RecordState.FINISHED
    with pytest.raises(RecordsError, match="everything is kept"):
        sweep(prefix)


def test_unreadable_inputs_of_required_output_keep_everything(prefix: str) -> None:
    raw, train = map(made, steps(prefix, 1))
    aged([raw, train])
    assert garbage_of(prefix, RequiredOutputs({train})) == []
    write_text(f"{train}/{INFO_FILE}", "half a li")
    aged([raw, train])
    assert garbage_of(prefix, RequiredOutputs({train})) == []
    assert garbage_of(prefix) == [raw], "an invalid record of an output that nothing requires keeps only itself"
