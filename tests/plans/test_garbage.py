"""What anybody needs is kept, however it is needed; the rest goes whole, and never from under somebody's hands."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tradewind.plans.garbage import Garbage, Needs, find_garbage, find_garbage_below, remove_garbage, withdraw_results
from tradewind.plans.withdrawal import UnreadableRecordError
from tradewind.records import pins, removal
from tradewind.records.adoption import Adoption, adopt
from tradewind.records.attempts import Attempt, attempt_path, read_attempt
from tradewind.records.errors import LeaseLostError
from tradewind.records.files import list_files
from tradewind.records.holding import KeptTurn, OutputBusyError
from tradewind.records.lease_store import Claim, Held, LeaseStore
from tradewind.records.leases import LEASE_FILE, Phase
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.outputs import find_outputs
from tradewind.records.pins import Pin, add_pin, is_pinned, remove_pin, set_pin
from tradewind.records.reading import read_record, read_records
from tradewind.records.record import RecordState
from tradewind.records.status import STATUS_FILE, Status, write_status
from tradewind.records.step_info import INFO_FILE
from tradewind.records.store import write_text
from tradewind.records.turns import check_inputs_unchanged, commit_turn, input_digests, next_number, take_turn
from tradewind.runtime.keeper import Keeper
from tradewind.runtime.spec import StepSpec
from tradewind.runtime.step_turns import MissingInputError, StepTurns, Turn
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned

BY = {"gc": "ada"}
MONTH_S = 30 * 86400.0


@dataclass(frozen=True)
class Config:
    value: Any


def keep(store: LeaseStore, held: Held) -> AbstractContextManager[KeptTurn]:
    return Keeper(store, held, end_work=lambda end: None)


def steps(prefix: str, value: Any) -> tuple[ResolvedStep, ...]:
    """``data/raw`` with the version ``value``, and ``train`` that reads it."""
    raw = ExecutorStep("data/raw", None, Config(versioned(value)))
    return resolve([ExecutorStep("train", None, Config(raw))], prefix).steps


def made(step: ResolvedStep, size: int = 100) -> str:
    """A finished output of ``step``; its path."""
    write_text(f"{step.output_path}/part/model", "x" * size)
    adopt(Adoption(step, "my.train", step.output_path, {"user": "ada"}), keep)
    return step.output_path


def aged(paths: Iterable[str]) -> None:
    """Nothing has changed there for two months, as the local disk says."""
    then = time.time() - 2 * MONTH_S
    for path in paths:
        for file in list_files(path):
            os.utime(f"{path}/{file.path}", (then, then))


def garbage_of(prefix: str, needs: Needs | None = None, **how: Any) -> list[str]:
    return [each.path for each in find_garbage(prefix, needs or Needs(), MONTH_S, **how).garbage]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture(params=["local", "memory", "gs"])
def any_prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "gs":
        request.getfixturevalue("cloud")
        return f"gs://bucket/{tmp_path.name}"
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}-garbage"


@pytest.fixture(params=["local", "gs"])
def telling_prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """On a store that tells an object from a later one of its name."""
    if request.param == "gs":
        request.getfixturevalue("cloud")
        return f"gs://bucket/{tmp_path.name}"
    return str(tmp_path / "store")


# ---- finding outputs


def test_outputs_are_found_below_folders_that_are_none_and_not_within_others(any_prefix: str) -> None:
    raw, train = map(made, steps(any_prefix, 1))
    write_text(f"{any_prefix}/by_marin/deep/x-123456/{STATUS_FILE}", "SUCCESS")
    write_text(f"{train}/inner-654321/{STATUS_FILE}", "SUCCESS")
    write_text(f"{any_prefix}/experiments/all-123456.json", "{}")
    write_text(f"{any_prefix}/no_output/notes.txt", "")
    add_pin(any_prefix, Pin(raw, "ada", "now"))
    assert list(find_outputs(any_prefix)) == [f"{any_prefix}/by_marin/deep/x-123456", raw, train]
    assert not find_outputs(f"{any_prefix}/nowhere")


# ---- what is kept


def test_what_nobody_needs_is_garbage_with_its_bytes(prefix: str) -> None:
    old, new = steps(prefix, 1), steps(prefix, 2)
    paths = [made(step, size=1000) for step in (*old, *new)]
    aged(paths)
    needs = Needs()
    for step in new:
        needs.add_step(step)
    sweep = find_garbage(prefix, needs, MONTH_S)
    assert [each.path for each in sweep.garbage] == paths[:2]
    assert [(each.name, each.state) for each in sweep.garbage] == [
        ("data/raw", RecordState.FINISHED),
        ("train", RecordState.FINISHED),
    ]
    on_disk = sum(file.size for path in paths[:2] for file in list_files(path))
    assert sweep.bytes == on_disk > 2000
    assert (sweep.outputs, sweep.needed, sweep.young) == (4, 2, 0)


def test_what_changed_lately_is_kept(prefix: str) -> None:
    old, young = (made(steps(prefix, value)[0]) for value in (1, 2))
    aged([old])
    sweep = find_garbage(prefix, Needs(), MONTH_S)
    assert ([each.path for each in sweep.garbage], sweep.young) == ([old], 1)
    assert garbage_of(prefix) == [old] and young != old


def test_what_a_pinned_output_was_made_from_is_kept_with_it(prefix: str) -> None:
    paths = [made(step) for step in steps(prefix, 1)]
    aged(paths)
    assert garbage_of(prefix) == paths
    add_pin(prefix, Pin(paths[1], "ada", "now"))
    assert garbage_of(prefix) == []


def test_what_a_pinned_output_within_another_was_made_from_is_kept(prefix: str) -> None:
    """Outputs are not looked into for others, so only what needs such a one tells where it is."""
    outer, raw = ExecutorStep("outer", None, Config(1)), ExecutorStep("data/raw", None, Config(1))
    [host] = resolve([outer], prefix).steps
    inner = ExecutorStep("inner", None, Config(raw), override_output_path=f"{host.output_path}/inner")
    paths = [made(step) for step in (host, *resolve([inner], prefix).steps)]
    aged(paths)
    assert sorted(garbage_of(prefix)) == sorted(paths[:2])
    add_pin(prefix, Pin(paths[2], "ada", "now"))
    assert garbage_of(prefix) == []


def test_a_pin_counts_wherever_it_was_set(any_prefix: str) -> None:
    """People may have pinned at a prefix below this one, or above it."""
    outer, inner = (made(steps(prefix, 1)[0]) for prefix in (any_prefix, f"{any_prefix}/team"))
    add_pin(f"{any_prefix}/team", Pin(inner, "ada", "now"))
    assert [each.path for each in find_garbage(any_prefix, Needs(), 0.0).garbage] == [outer]
    assert [each.path for each in find_garbage(f"{any_prefix}/team", Needs(), 0.0).garbage] == []
    remove_pin(f"{any_prefix}/team", inner)
    add_pin(any_prefix, Pin(inner, "ada", "now"))
    assert [each.path for each in find_garbage(f"{any_prefix}/team", Needs(), 0.0).garbage] == []


def test_what_somebody_at_work_reads_is_kept(prefix: str) -> None:
    raw, train = steps(prefix, 1)
    paths = [made(raw), made(train)]
    aged(paths)
    store = LeaseStore(train.output_path)
    store.claim(store.read(), Claim(2, "job", "cluster", {"run": "r"}, ""))
    assert garbage_of(prefix) == []


def test_an_attempt_that_died_long_ago_is_garbage(prefix: str) -> None:
    raw, _ = steps(prefix, 1)
    LeaseStore(raw.output_path).claim(None, Claim(1, "job", "cluster", {"run": "r"}, ""))
    aged([raw.output_path])
    [found] = find_garbage(prefix, Needs(), MONTH_S).garbage
    assert (found.path, found.name, found.state) == (raw.output_path, "", RecordState.STOPPED)


def test_an_output_of_marins_is_garbage_by_the_age_of_its_status(prefix: str) -> None:
    path = f"{prefix}/x-123456"
    write_text(f"{path}/model", "weights")
    write_status(path, Status.SUCCESS)
    assert garbage_of(prefix) == []
    aged([path])
    assert garbage_of(prefix) == [path]


def test_an_output_that_a_config_names_by_its_path_is_kept(prefix: str) -> None:
    paths = [made(step) for step in steps(prefix, 1)]
    aged(paths)
    reader = ExecutorStep("reader", None, Config({"shards": [f"{paths[1]}/part/*"]}))
    [resolved] = resolve([reader], prefix).steps
    needs = Needs()
    needs.add_step(resolved)
    assert garbage_of(prefix, needs) == []
    made(resolved)
    add_pin(prefix, Pin(resolved.output_path, "ada", "now"))
    aged([resolved.output_path])
    assert garbage_of(prefix) == [], "the step info tells it as the DAG does"


def test_the_same_place_may_be_spelled_in_two_ways(prefix: str) -> None:
    paths = [made(step) for step in steps(f"file://{prefix}/", 1)]
    aged([path.removeprefix("file://") for path in paths])
    assert len(garbage_of(prefix)) == 2
    assert garbage_of(prefix, Needs(paths={paths[1]})) == []


def test_the_outputs_of_a_step_whose_version_cannot_be_known_are_kept(prefix: str) -> None:
    paths = [made(step) for value in (1, 2) for step in steps(prefix, value)]
    aged(paths)
    assert garbage_of(prefix, Needs(names={"data/raw"})) == sorted([paths[1], paths[3]])


def test_of_some_steps_only_their_own_outputs_are_garbage(prefix: str) -> None:
    raw, train = (made(step) for step in steps(prefix, 1))
    aged([raw, train])
    assert garbage_of(prefix, names={"train"}) == [train]


# ---- removing it


def found_at(prefix: str, older_than_s: float = 0.0) -> Garbage:
    [garbage] = find_garbage(prefix, Needs(), older_than_s).garbage
    return garbage


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


def test_while_it_is_removed_nobody_takes_it_for_a_result_or_begins_to_make_it(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage = found_at(any_prefix)
    seen: list[RecordState] = []

    def look(store: LeaseStore, held: Held) -> AbstractContextManager[KeptTurn]:
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
    store.claim(seen, Claim(2, "job", "cluster", {"run": "r"}, ""))
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

    def then_pin(store: LeaseStore, seen: Held | None, by: Mapping[str, Any]) -> Held | None:
        marked = mark(store, seen, by)
        add_pin(any_prefix, Pin(path, "ada", "now"))
        return marked

    monkeypatch.setattr(LeaseStore, "mark_removing", then_pin)
    [after] = withdraw_results([garbage], BY)
    assert "was pinned meanwhile" in str(after.problem)
    record = read_record(path)
    assert record.state is RecordState.FINISHED and record.lease is not None and lease is not None
    assert record.lease.digest == lease.digest


def test_what_is_pinned_before_it_is_taken_for_removal_keeps_its_files(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    [withdrawn] = withdraw_results([found_at(any_prefix)], BY)

    def pinned(store: LeaseStore, held: Held) -> AbstractContextManager[KeptTurn]:
        add_pin(any_prefix, Pin(path, "ada", "now"))
        return keep(store, held)

    with pytest.raises(OutputBusyError, match="was pinned meanwhile: its files stay"):
        remove_garbage(withdrawn, BY, pinned)
    assert "part/model" in [file.path for file in list_files(path)]
    assert read_record(path).state is RecordState.STOPPED


def test_a_pin_of_what_is_being_removed_is_refused_and_leaves_no_pin(any_prefix: str) -> None:
    path = made(steps(any_prefix, 1)[0])
    garbage, pin = found_at(any_prefix), Pin(path, "ada", "now")

    def refused(store: LeaseStore, held: Held) -> AbstractContextManager[KeptTurn]:
        with pytest.raises(OutputBusyError, match="is being removed by `tradewind gc`, so it is not pinned"):
            set_pin(any_prefix, pin)
        return keep(store, held)

    remove_garbage(garbage, BY, refused)
    assert not find_outputs(any_prefix) and not is_pinned(path)


@pytest.mark.parametrize("happens", ["marked", "withdrawn"])
def test_a_pin_that_comes_just_after_the_look_for_pins_is_refused_and_taken_away(
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


def test_a_turn_that_is_lost_removes_nothing_more(prefix: str) -> None:
    path = made(steps(prefix, 1)[0])
    garbage, before = found_at(prefix), list_files(path)

    @contextmanager
    def lose(store: LeaseStore, held: Held) -> Iterator[KeptTurn]:
        store.claim(held, Claim(7, "another", "cluster", {"run": "r"}, ""))
        ended = threading.Event()
        with Keeper(store, held, end_work=lambda end: ended.set()) as keeper:
            assert ended.wait(60)
            yield keeper

    with pytest.raises(LeaseLostError):
        remove_garbage(garbage, BY, lose)
    assert [file.path for file in list_files(path)] == [file.path for file in before]
    now = LeaseStore(path).read()
    assert now is not None and now.lease.attempt == 7


@pytest.mark.parametrize("at", ["tradewind.records.removal._remove", "tradewind.plans.garbage.remove_if"])
def test_a_removal_that_was_frozen_spares_the_result_that_somebody_has_made_meanwhile(
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
        assert take_turn(store, path, over, winner, "", 30.0)
        write_text(f"{path}/part/model", "better weights")
        commit_turn(partial(store.change, store.begin("job", "its keeper")), path, winner, lambda: None)
        remove(*arguments)

    monkeypatch.setattr(at, thaw_late)
    with suppress(LeaseLostError):
        remove_garbage(garbage, BY, keep)
    lease, manifest = LeaseStore(path).read(), read_manifest(path, 3)
    assert lease is not None and lease.lease.phase is Phase.COMMITTED
    assert manifest is not None and verify_output(path, manifest, lease.lease.digest) == []


def test_a_removal_that_somebody_asks_to_stop_removes_nothing_more(prefix: str) -> None:
    path = made(steps(prefix, 1)[0])
    garbage, before = found_at(prefix), list_files(path)

    @contextmanager
    def stop(store: LeaseStore, held: Held) -> Iterator[KeptTurn]:
        store.request_stop(held.lease.job, {"user": "ada"})
        asked = threading.Event()
        with Keeper(store, held, end_work=lambda end: asked.set()) as keeper:
            assert asked.wait(60)
            yield keeper

    with pytest.raises(LeaseLostError):
        remove_garbage(garbage, BY, stop)
    assert [file.path for file in list_files(path)] == [file.path for file in before]


def test_a_removal_that_died_half_way_is_no_result_and_is_found_again(prefix: str) -> None:
    path = made(steps(prefix, 1)[0])

    def die(store: LeaseStore, held: Held) -> AbstractContextManager[KeptTurn]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_garbage(found_at(prefix), BY, die)
    assert read_record(path).state is RecordState.AT_WORK
    aged([path])
    assert read_record(path).state is RecordState.STOPPED
    remove_garbage(found_at(prefix), BY, keep)
    assert not find_outputs(prefix)


def test_what_a_removal_that_died_half_way_left_is_no_checkpoint_to_go_on_from(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = steps(prefix, 1)[0]
    for name in ("shard-0", "shard-1", "metadata.json"):
        write_text(f"{step.output_path}/checkpoints/step-9/{name}", "whole")
    path, place = made(step), "tradewind.records.removal._remove"
    remove = removal._remove

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
    number = next_number(path, over.lease)
    assert take_turn(store, path, over, Attempt(number, "job", "cluster", {"run": "r"}, {}), "", 30.0)
    attempt = read_attempt(attempt_path(path, number))
    assert attempt is not None and attempt.withdraws


# ---- whoever reads it


def reader(prefix: str, will_claim: Callable[[str], None] = lambda job: None) -> StepTurns:
    """``train`` of the version 1, as a task that is about to claim sees it."""
    return StepTurns(steps(prefix, 1)[1], {"dag": "d", "run": "r", "task": "train"}, will_claim=will_claim)


def claims(turns: StepTurns) -> Turn | None:
    spec = StepSpec("train", turns.name, turns.path, "", None, None, {"kind": "airflow_worker"}, False)
    return turns.claim(turns.read().lease, lambda: spec)


def by_marin(prefix: str) -> str:
    raw = steps(prefix, 1)[0].output_path
    write_text(f"{raw}/part", "x")
    write_status(raw, Status.SUCCESS)
    return raw


def by_us(prefix: str) -> str:
    return made(steps(prefix, 1)[0])


@pytest.mark.parametrize("make", [by_us, by_marin])
def test_what_a_step_reads_that_was_claimed_after_the_search_stays(any_prefix: str, make: Callable[[str], str]) -> None:
    raw = make(any_prefix)
    garbage, digests = found_at(any_prefix), input_digests(read_records([raw]))
    turn = claims(reader(any_prefix))
    assert turn is not None
    with pytest.raises(OutputBusyError, match="is read by an attempt that is at work"):
        remove_garbage(garbage, BY, keep)
    assert read_record(raw).state is RecordState.FINISHED
    assert input_digests(read_records([raw])) == digests
    check_inputs_unchanged(turn.attempt)


@pytest.mark.parametrize("make", [by_us, by_marin])
def test_whoever_claims_while_its_input_is_marked_ends_its_turn_unstarted(
    any_prefix: str, make: Callable[[str], str]
) -> None:
    raw = make(any_prefix)
    store = LeaseStore(raw)
    turns = reader(any_prefix, lambda job: marks.append(store.mark_removing(store.read(), BY)))
    marks: list[Held | None] = []
    assert claims(turns) is None
    assert turns.read().state is RecordState.STOPPED
    assert read_record(raw).state is RecordState.AT_WORK, "nobody reuses it now"
    with pytest.raises(MissingInputError) as missing:
        claims(turns)
    assert missing.value.at_work is not None, "it can be waited for"
    assert marks[0] is not None and store.withdraw(marks[0]) is not None
    assert read_record(raw).state is RecordState.STOPPED


def test_whoever_claims_while_its_input_is_made_again_looks_again(prefix: str) -> None:
    raw = by_us(prefix)
    digest = read_record(raw).lease
    assert digest is not None

    def make_again(job: str) -> None:
        store = LeaseStore(raw)
        held = store.claim(store.read(), Claim(2, "job", "", {"run": "r"}, ""))
        assert held is not None
        running = store.begin("job", "keeper")
        store.change(running, phase=Phase.COMMITTED, digest="another", witness=None)

    assert claims(reader(prefix, make_again)) is None
    turn = claims(reader(prefix))
    assert turn is not None and turn.attempt.inputs == {raw: "another"}


def test_a_mark_whose_maker_died_runs_out(prefix: str) -> None:
    raw = by_us(prefix)
    store = LeaseStore(raw)
    store.mark_removing(store.read(), BY)
    assert read_record(raw).state is RecordState.AT_WORK
    aged([raw])
    assert read_record(raw).state is RecordState.FINISHED
    remove_garbage(found_at(prefix), BY, keep)
    assert not find_outputs(prefix)


def test_of_many_results_those_that_nobody_reads_are_withdrawn_by_one_look(prefix: str) -> None:
    raw, unread = by_us(prefix), made(steps(prefix, 2)[0])
    garbage = find_garbage(prefix, Needs(), 0.0).garbage
    claims(reader(prefix))
    after = {each.path: each for each in withdraw_results(garbage, BY)}
    assert (after[raw].problem is None, after[unread].problem is None) == (False, True)
    remove_garbage(after[unread], BY, keep)
    with pytest.raises(OutputBusyError, match="is read by an attempt"):
        remove_garbage(after[raw], BY, keep)
    assert sorted(find_outputs(prefix)) == sorted([raw, reader(prefix).path])


def test_an_attempt_below_another_prefix_keeps_what_it_reads_where_that_prefix_is_known(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/here", f"{tmp_path}/there"
    raw = by_us(here)
    garbage = find_garbage(here, Needs(), 0.0).garbage
    input_here = ExecutorStep("data/raw", None, Config(versioned(1)), override_output_path=raw)
    reads = resolve([ExecutorStep("reads", None, Config(input_here))], there).steps[1]
    claims(StepTurns(reads, {"run": "r"}))
    [kept] = withdraw_results(garbage, BY, also_below=[there])
    assert kept.problem is not None


@pytest.mark.parametrize("file", [".attempts/1.json", LEASE_FILE])
def test_where_it_cannot_be_read_what_an_attempt_reads_everything_stays(prefix: str, file: str) -> None:
    raw = by_us(prefix)
    garbage = found_at(prefix)
    turns = reader(prefix)
    claims(turns)
    write_text(f"{turns.path}/{file}", "half a li")
    with pytest.raises(UnreadableRecordError, match="everything is kept"):
        remove_garbage(garbage, BY, keep)
    assert read_record(raw).state is RecordState.FINISHED
    with pytest.raises(UnreadableRecordError, match="everything is kept"):
        find_garbage(prefix, Needs(), 0.0)


def test_where_it_cannot_be_read_what_a_needed_output_was_made_from_everything_stays(prefix: str) -> None:
    raw, train = map(made, steps(prefix, 1))
    aged([raw, train])
    assert garbage_of(prefix, Needs({train})) == []
    write_text(f"{train}/{INFO_FILE}", "half a li")
    aged([raw, train])
    assert garbage_of(prefix, Needs({train})) == []
    assert garbage_of(prefix) == [raw], "what nobody needs tells of no need, and stays itself"


# ---- what lies elsewhere


def chain(prefix: str, elsewhere: str) -> tuple[ResolvedStep, ...]:
    """``data/raw``, what reads it and lies ``elsewhere``, and ``train`` that reads that."""
    raw = ExecutorStep("data/raw", None, Config(versioned(1)))
    middle = ExecutorStep("middle", None, Config(raw), override_output_path=elsewhere)
    return resolve([ExecutorStep("train", None, Config(middle))], prefix).steps


def test_what_an_output_elsewhere_was_made_from_is_kept(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = map(made, chain(prefix, str(tmp_path / "other" / "middle")))
    aged([raw, middle, train])
    sweep = find_garbage(prefix, Needs(paths={train}, roots={str(tmp_path / "other")}), MONTH_S)
    assert sweep.garbage == () and sweep.needed == len([raw, train])
    assert [one.path for one in find_garbage(prefix, Needs(), MONTH_S).garbage] == [raw, train]


def test_an_output_below_no_root_keeps_everything(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = map(made, chain(prefix, str(tmp_path / "other" / "middle")))
    aged([raw, middle, train])
    write_text(f"{middle}/{INFO_FILE}", "{")
    sweep = find_garbage(prefix, Needs(paths={train}), MONTH_S)
    assert sweep.garbage == () and sweep.unknown == (middle,)
    assert sweep.unread == (), "a record that may not be read was read"


def test_a_record_elsewhere_that_cannot_be_read_keeps_everything(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = map(made, chain(prefix, str(tmp_path / "other" / "middle")))
    aged([raw, middle, train])
    write_text(f"{middle}/{INFO_FILE}", "{")
    sweep = find_garbage(prefix, Needs(paths={train}, roots={middle}), MONTH_S)
    assert sweep.garbage == () and [one.file for one in sweep.unread] == [f"{middle}/{INFO_FILE}"]


def test_what_is_pinned_at_one_prefix_keeps_what_it_was_made_from_at_another(prefix: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    raw, middle, train = map(made, chain(prefix, f"{other}/middle"))
    aged([raw, middle, train])
    set_pin(other, Pin(middle, "ada", "2026-03-01T00:00:00+00:00", "for the paper"))
    [here] = find_garbage_below([prefix], Needs(), MONTH_S, also_below=[other])
    assert [one.path for one in here.garbage] == [train]
    here, there = find_garbage_below([prefix, other], Needs(), MONTH_S)
    assert ([one.path for one in here.garbage], there.garbage) == ([train], ())


def test_a_place_that_a_config_names_below_no_root_is_not_read(prefix: str, tmp_path: Path) -> None:
    far = str(tmp_path / "far" / "data")
    write_text(f"{far}/{INFO_FILE}", "{")
    [step] = resolve([ExecutorStep("train", None, Config(far))], prefix).steps
    train = made(step)
    assert find_garbage(prefix, Needs(paths={train}), MONTH_S).unread == ()
    assert find_garbage(prefix, Needs(paths={train}, roots={far}), MONTH_S).unread != ()
