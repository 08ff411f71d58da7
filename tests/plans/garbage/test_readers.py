"""Removal skips the inputs of running attempts, whether the attempt or the removal began first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plans.garbage.outputs import (
    BY,
    Config,
    aged,
    by_marin,
    by_us,
    claims,
    found_at,
    garbage_of,
    keep,
    made,
    reader,
    steps,
)
from tradewind.attempts.step_lease import MissingInputError, StepLease
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage, remove_garbage, withdraw_results
from tradewind.plans.garbage.withdrawal import RecordsError
from tradewind.records.discovery import find_outputs
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import LEASE_FILE, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore, OutputBusyError
from tradewind.records.lifecycle import check_inputs_unchanged, input_digests
from tradewind.records.record import RecordState, read_record, read_records
from tradewind.steps import ExecutorStep, resolve, versioned
from tradewind.storage.files import write_text


@pytest.mark.parametrize("make", [by_us, by_marin])
def test_input_claimed_by_reader_after_search_is_kept(any_prefix: str, make: Callable[[str], str]) -> None:
    raw = make(any_prefix)
    garbage, digests = found_at(any_prefix), input_digests(read_records([raw]))
    turn = claims(reader(any_prefix))
    assert turn is not None
    with pytest.raises(OutputBusyError, match="is read by a running attempt"):
        remove_garbage(garbage, BY, keep)
    assert read_record(raw).state is RecordState.FINISHED
    assert input_digests(read_records([raw])) == digests
    check_inputs_unchanged(turn.attempt)


@pytest.mark.parametrize("make", [by_us, by_marin])
def test_claim_ends_unstarted_while_input_is_marked(any_prefix: str, make: Callable[[str], str]) -> None:
    raw = make(any_prefix)
    store = LeaseStore(raw)
    turns = reader(any_prefix, lambda job: marks.append(store.mark_removing(store.read(), BY)))
    marks: list[HeldLease | None] = []
    assert claims(turns) is None
    assert turns.read().state is RecordState.STOPPED
    assert read_record(raw).state is RecordState.AT_WORK, "nobody reuses it now"
    with pytest.raises(MissingInputError) as missing:
        claims(turns)
    assert missing.value.at_work is not None, "it can be waited for"
    assert marks[0] is not None and store.withdraw(marks[0]) is not None
    assert read_record(raw).state is RecordState.STOPPED


def test_claim_is_retried_when_input_is_remade_meanwhile(prefix: str) -> None:
    raw = by_us(prefix)
    digest = read_record(raw).lease
    assert digest is not None

    def make_again(job: str) -> None:
        store = LeaseStore(raw)
        held = store.claim(store.read(), LeaseClaim(2, "job", "", {"run": "r"}, ""))
        assert held is not None
        running = store.take_over("job", "keeper")
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


def test_unread_results_are_withdrawn_together_read_ones_kept(prefix: str) -> None:
    raw, unread = by_us(prefix), made(steps(prefix, 2)[0])
    garbage = find_garbage(prefix, RequiredOutputs(), 0.0).garbage
    claims(reader(prefix))
    after = {each.path: each for each in withdraw_results(garbage, BY)}
    assert (after[raw].problem is None, after[unread].problem is None) == (False, True)
    remove_garbage(after[unread], BY, keep)
    with pytest.raises(OutputBusyError, match="is read by a running attempt"):
        remove_garbage(after[raw], BY, keep)
    assert sorted(find_outputs(prefix)) == sorted([raw, reader(prefix).path])


def test_attempt_at_known_other_prefix_keeps_its_inputs(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/here", f"{tmp_path}/there"
    raw = by_us(here)
    garbage = find_garbage(here, RequiredOutputs(), 0.0).garbage
    input_here = ExecutorStep("data/raw", None, Config(versioned(1)), override_output_path=raw)
    reads = resolve([ExecutorStep("reads", None, Config(input_here))], there).steps[1]
    claims(StepLease(reads, {"run": "r"}))
    [kept] = withdraw_results(garbage, BY, also_below=[there])
    assert kept.problem is not None


@pytest.mark.parametrize("file", [".attempts/1.json", LEASE_FILE])
def test_unreadable_attempt_inputs_keep_everything(prefix: str, file: str) -> None:
    raw = by_us(prefix)
    garbage = found_at(prefix)
    turns = reader(prefix)
    claims(turns)
    write_text(f"{turns.path}/{file}", "half a li")
    with pytest.raises(RecordsError, match="everything is kept"):
        remove_garbage(garbage, BY, keep)
    assert read_record(raw).state is RecordState.FINISHED
    with pytest.raises(RecordsError, match="everything is kept"):
        find_garbage(prefix, RequiredOutputs(), 0.0)


def test_unreadable_inputs_of_required_output_keep_everything(prefix: str) -> None:
    raw, train = map(made, steps(prefix, 1))
    aged([raw, train])
    assert garbage_of(prefix, RequiredOutputs({train})) == []
    write_text(f"{train}/{INFO_FILE}", "half a li")
    aged([raw, train])
    assert garbage_of(prefix, RequiredOutputs({train})) == []
    assert garbage_of(prefix) == [raw], "what nobody needs tells of no need, and stays itself"
