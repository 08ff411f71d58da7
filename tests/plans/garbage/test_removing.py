"""Removal deletes whole outputs and skips those that are pinned or made again meanwhile."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.plans.garbage.outputs import BY, aged, found_at, keep, made, steps
from tradewind.attempts.renewal import LeaseRenewer
from tradewind.plans.garbage.collection import remove_garbage, withdraw_results
from tradewind.records import cleanup, pins
from tradewind.records.attempts import Attempt, attempt_path, read_attempt
from tradewind.records.discovery import find_outputs
from tradewind.records.lease import LEASE_FILE, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseHolder, LeaseStore, OutputBusyError
from tradewind.records.lifecycle import claim_attempt, commit_attempt, next_attempt_number
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.pins import Pin, add_pin, is_pinned, set_pin
from tradewind.records.record import RecordState, Status, read_record, write_status
from tradewind.storage.errors import LeaseLostError
from tradewind.storage.files import write_text
from tradewind.storage.trees import list_files


def test_an_output_is_removed_whole(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage = found_at(any_prefix)
    assert garbage.files == len(list_files(path)) - (1 if path.startswith("/") else 0), "the guard does not count"
    remove_garbage(garbage, BY, keep)
    assert [file.path for file in list_files(path)] in ([], [f"{LEASE_FILE}.guard"])
    assert not Path(path, "part").exists()
    assert read_record(path).state is RecordState.NONE
    assert not find_outputs(any_prefix)


def test_marins_output_is_removed_too(any_prefix: str) -> None:
    path = f"{any_prefix}/x-123456"
    write_text(f"{path}/model", "weights")
    write_status(path, Status.SUCCESS)
    remove_garbage(found_at(any_prefix), BY, keep)
    assert not find_outputs(any_prefix)


def test_an_output_below_another_stays(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage = found_at(any_prefix)
    write_text(f"{path}/inner-654321/deep/model", "weights")
    write_status(f"{path}/inner-654321", Status.SUCCESS)
    remove_garbage(garbage, BY, keep)
    assert list(find_outputs(any_prefix)) == [f"{path}/inner-654321"]
    assert read_record(f"{path}/inner-654321").state is RecordState.FINISHED


def test_output_is_in_use_but_no_result_during_removal(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage = found_at(any_prefix)
    seen: list[RecordState] = []

    def look(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        seen.append(read_record(path).state)
        return keep(store, held)

    remove_garbage(garbage, BY, look)
    assert seen == [RecordState.AT_WORK]


def test_what_was_pinned_or_made_again_since_it_was_found_stays(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage, before = found_at(any_prefix), list_files(path)
    store = LeaseStore(path)
    seen = store.read()
    assert seen is not None
    store.claim(seen, LeaseClaim(2, "job", "cluster", {"run": "r"}, ""))
    with pytest.raises(OutputBusyError, match="was changed meanwhile"):
        remove_garbage(garbage, BY, keep)
    add_pin(any_prefix, Pin(path, "ada", "now"))
    with pytest.raises(OutputBusyError, match="was pinned meanwhile"):
        remove_garbage(garbage, BY, keep)
    assert [file.path for file in list_files(path)] == [file.path for file in before]


def test_what_was_pinned_after_it_was_marked_stays_a_result(any_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage, lease = found_at(any_prefix), read_record(path).lease
    mark = LeaseStore.mark_removing

    def then_pin(store: LeaseStore, seen: HeldLease | None, by: Mapping[str, Any]) -> HeldLease | None:
        marked = mark(store, seen, by)
        add_pin(any_prefix, Pin(path, "ada", "now"))
        return marked

    monkeypatch.setattr(LeaseStore, "mark_removing", then_pin)
    [after] = withdraw_results([garbage], BY)
    assert "was pinned meanwhile" in str(after.problem)
    record = read_record(path)
    assert record.state is RecordState.FINISHED and record.lease is not None and lease is not None
    assert record.lease.digest == lease.digest


def test_pin_between_withdrawal_and_removal_keeps_files(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    [withdrawn] = withdraw_results([found_at(any_prefix)], BY)

    def pinned(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        add_pin(any_prefix, Pin(path, "ada", "now"))
        return keep(store, held)

    with pytest.raises(OutputBusyError, match="was pinned meanwhile: its files stay"):
        remove_garbage(withdrawn, BY, pinned)
    assert "part/model" in [file.path for file in list_files(path)]
    assert read_record(path).state is RecordState.STOPPED


def test_pin_during_removal_is_refused_and_leaves_no_pin(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage, pin = found_at(any_prefix), Pin(path, "ada", "now")

    def refused(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        with pytest.raises(OutputBusyError, match="is being removed by `tradewind gc`, so it is not pinned"):
            set_pin(any_prefix, pin)
        return keep(store, held)

    remove_garbage(garbage, BY, refused)
    assert not find_outputs(any_prefix) and not is_pinned(path)


@pytest.mark.parametrize("happens", ["marked", "withdrawn"])
def test_pin_racing_with_removal_mark_is_refused_and_undone(
    happens: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(steps(prefix, 1)[0])
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
        set_pin(prefix, Pin(path, "ada", "now"))
    assert not is_pinned(path)


@pytest.mark.slow
def test_a_turn_that_is_lost_removes_nothing_more(prefix: str) -> None:
    path = made(steps(prefix, 1)[0])
    garbage, before = found_at(prefix), list_files(path)

    @contextmanager
    def lose(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        store.claim(held, LeaseClaim(7, "another", "cluster", {"run": "r"}, ""))
        ended = threading.Event()
        with LeaseRenewer(store, held, end_work=lambda end: ended.set()) as keeper:
            assert ended.wait(60)
            yield keeper

    with pytest.raises(LeaseLostError):
        remove_garbage(garbage, BY, lose)
    assert [file.path for file in list_files(path)] == [file.path for file in before]
    now = LeaseStore(path).read()
    assert now is not None and now.lease.attempt == 7


@pytest.mark.parametrize("at", ["tradewind.records.cleanup._remove", "tradewind.plans.garbage.collection.remove_if"])
def test_frozen_removal_spares_result_committed_meanwhile(
    telling_prefix: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(steps(telling_prefix, 1)[0])
    garbage = found_at(telling_prefix)
    module, _, name = at.rpartition(".")
    remove = getattr(importlib.import_module(module), name)

    def thaw_late(*arguments: Any) -> None:
        monkeypatch.setattr(at, remove)
        store, over = LeaseStore(path), LeaseStore(path).read()
        winner = Attempt(3, "job", "cluster", {"run": "r"}, {})
        assert claim_attempt(store, path, over, winner, "", 30.0)
        write_text(f"{path}/part/model", "better weights")
        commit_attempt(partial(store.change, store.take_over("job", "its keeper")), path, winner, lambda: None)
        remove(*arguments)

    monkeypatch.setattr(at, thaw_late)
    with suppress(LeaseLostError):
        remove_garbage(garbage, BY, keep)
    lease, manifest = LeaseStore(path).read(), read_manifest(path, 3)
    assert lease is not None and lease.lease.phase is Phase.COMMITTED
    assert manifest is not None and verify_output(path, manifest, lease.lease.digest) == []


@pytest.mark.slow
def test_stop_request_ends_removal_before_any_deletion(prefix: str) -> None:
    path = made(steps(prefix, 1)[0])
    garbage, before = found_at(prefix), list_files(path)

    @contextmanager
    def stop(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        store.request_stop(held.lease.job, {"user": "ada"})
        asked = threading.Event()
        with LeaseRenewer(store, held, end_work=lambda end: asked.set()) as keeper:
            assert asked.wait(60)
            yield keeper

    with pytest.raises(LeaseLostError):
        remove_garbage(garbage, BY, stop)
    assert [file.path for file in list_files(path)] == [file.path for file in before]


def test_removal_interrupted_at_start_is_stale_and_repeatable(prefix: str) -> None:
    path = made(steps(prefix, 1)[0])

    def die(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_garbage(found_at(prefix), BY, die)
    assert read_record(path).state is RecordState.AT_WORK
    aged([path])
    assert read_record(path).state is RecordState.STOPPED
    remove_garbage(found_at(prefix), BY, keep)
    assert not find_outputs(prefix)


def test_leftovers_of_partial_removal_are_no_checkpoint(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = steps(prefix, 1)[0]
    for name in ("shard-0", "shard-1", "metadata.json"):
        write_text(f"{step.output_path}/checkpoints/step-9/{name}", "whole")
    path, place = made(step), "tradewind.records.cleanup._remove"
    remove = cleanup._remove

    def die_half_way(fs: Any, protocol: str | None, tags: dict[str, str | None]) -> None:
        monkeypatch.setattr(place, remove)
        remove(fs, protocol, dict(list(tags.items())[: len(tags) // 2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(place, die_half_way)
    with pytest.raises(KeyboardInterrupt):
        remove_garbage(found_at(prefix), BY, keep)
    assert any("checkpoints" in file.path for file in list_files(path))
    aged([path])
    store = LeaseStore(path)
    over = store.read()
    assert over is not None
    number = next_attempt_number(path, over.lease)
    assert claim_attempt(store, path, over, Attempt(number, "job", "cluster", {"run": "r"}, {}), "", 30.0)
    attempt = read_attempt(attempt_path(path, number))
    assert attempt is not None and attempt.withdraws
