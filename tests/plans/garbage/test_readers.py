"""Removal skips the inputs of running attempts, whether the attempt or the removal began first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.plans.garbage.outputs import (
    BY,
    Config,
    aged,
    claim,
    garbage_at,
    garbage_of,
    made,
    make_raw,
    make_raw_as_marin,
    reader,
    steps,
    sweep,
)
from tests.support.claims import renewing
from tradewind.attempts.step_lease import MissingInputError, StepLease
from tradewind.plans.garbage.collection import RequiredOutputs, remove_garbage, withdraw_results
from tradewind.records.attempts import write_attempt
from tradewind.records.discovery import find_outputs
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import LEASE_FILE, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore, OutputBusyError
from tradewind.records.lifecycle import check_inputs_unchanged, input_digests
from tradewind.records.record import RecordState, read_record, read_records
from tradewind.steps import ExecutorStep, resolve, versioned
from tradewind.storage.errors import RecordsError
from tradewind.storage.files import write_text


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
