"""Withdrawal detects changes between search and removal; ``test_removing`` covers the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.plans.garbage.outputs import BY, aged, by_us, claims, found_at, keep, made, steps
from tradewind.attempts.renewal import LeaseRenewer
from tradewind.attempts.step_lease import StepLease
from tradewind.plans.garbage.collection import remove_garbage
from tradewind.plans.garbage.withdrawal import withdraw
from tradewind.records.attempts import write_attempt
from tradewind.records.lease import Lease, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseHolder, LeaseStore, OutputBusyError
from tradewind.records.record import RecordState, read_record, read_status
from tradewind.steps import ExecutorStep, resolve
from tradewind.storage.errors import LeaseLostError
from tradewind.storage.files import write_text
from tradewind.storage.trees import list_files


def lease_of(path: str) -> Lease:
    held = LeaseStore(path).read()
    assert held is not None
    return held.lease


def test_who_was_slow_over_a_mark_gives_up(prefix: str) -> None:
    store = LeaseStore(f"{prefix}/raw")
    held = store.claim(None, LeaseClaim(1, "job", "", {}, "", heartbeat_s=1e-6))  # the next call exceeds it
    assert held is not None
    committed = store.change(held, phase=Phase.COMMITTED, digest="abc").lease
    ends = withdraw({f"{prefix}/raw": committed}, [prefix], BY)
    assert "took too long" in str(ends[f"{prefix}/raw"])
    now = lease_of(f"{prefix}/raw")
    assert (now.phase, now.digest, now.removing) == (Phase.COMMITTED, "abc", None)


def test_output_is_kept_while_attempt_reads_its_file_by_path(prefix: str) -> None:
    raw = by_us(prefix)
    garbage = found_at(prefix)
    reads = ExecutorStep("reads", None, {"file": f"{raw}/part/model"})
    turns = StepLease(resolve([reads], prefix).of(reads), {"run": "r"})
    turn = claims(turns)
    assert turn is not None and raw not in turn.attempt.inputs
    write_attempt(turns.path, replace(turn.attempt, spec={"file": f"{raw}/part/model"}))
    with pytest.raises(OutputBusyError, match="is read by a running attempt"):
        remove_garbage(garbage, BY, keep)
    assert read_record(raw).state is RecordState.FINISHED


def test_new_result_over_failed_attempt_is_not_removed(prefix: str) -> None:
    raw = steps(prefix, 1)[0]
    store = LeaseStore(raw.output_path)
    held = store.claim(None, LeaseClaim(1, "job", "", {}, raw.digest))
    assert held is not None
    store.change(held, phase=Phase.FAILED)
    garbage = found_at(prefix)
    made(raw)
    aged([raw.output_path])
    with pytest.raises(OutputBusyError, match="was changed meanwhile"):
        remove_garbage(garbage, BY, keep)
    assert read_record(raw.output_path).state is RecordState.FINISHED


class TurnOfOneBatch:
    """A lease that is lost when the second batch of files is due."""

    end = None

    def __init__(self, keeper: LeaseRenewer) -> None:
        self._keeper = keeper
        self._checks = 0
        self.finish, self.retry_store = keeper.finish, keeper.retry_store

    def check(self) -> None:
        self._checks += 1
        if self._checks > 2:  # the first check precedes the search
            raise LeaseLostError("Somebody else holds it.")


@pytest.mark.slow
def test_what_marins_executor_believes_goes_before_any_file(prefix: str) -> None:
    path = steps(prefix, 1)[0].output_path
    for number in range(120):
        write_text(f"{path}/.a/{number:03}", "sorts before every record")
    by_us(prefix)

    @contextmanager
    def lose(store: LeaseStore, held: HeldLease) -> Iterator[LeaseHolder]:
        with LeaseRenewer(store, held, end_work=lambda end: None) as keeper:
            yield TurnOfOneBatch(keeper)

    garbage = found_at(prefix)
    with pytest.raises(LeaseLostError):
        remove_garbage(garbage, BY, lose)
    assert read_status(path) is None
    assert any(file.path.startswith(".a/") for file in list_files(path))
