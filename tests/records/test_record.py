"""The lease decides the state of an output, in values and in a store; the status file counts where it has none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.record import Record, RecordState, Status, read_record, read_records, write_status
from tradewind.storage.files import write_text

OURS = {phase: Lease("w", 0.0, phase, 1, "job") for phase in Phase}
MARINS = Lease("theirs", 0.0)


@pytest.mark.parametrize("status", [None, *Status])
@pytest.mark.parametrize(
    ("phase", "age_s", "has_output", "state"),
    [
        (Phase.CLAIMED, 0.0, False, RecordState.AT_WORK),
        (Phase.CLAIMED, 90.0, True, RecordState.AT_WORK),
        (Phase.CLAIMED, 90.1, True, RecordState.STOPPED),
        (Phase.RUNNING, 90.0, True, RecordState.AT_WORK),
        (Phase.RUNNING, 90.1, True, RecordState.STOPPED),
        (Phase.COMMITTED, 1e9, True, RecordState.FINISHED),
        (Phase.COMMITTED, 0.0, False, RecordState.GONE),
        (Phase.FAILED, 0.0, True, RecordState.FAILED),
        (Phase.STOPPED, 0.0, True, RecordState.STOPPED),
    ],
)
def test_status_ignored_where_own_lease_exists(
    phase: Phase, age_s: float, has_output: bool, state: RecordState, status: Status | None
) -> None:
    assert Record(status, OURS[phase], age_s, has_output).state is state


@pytest.mark.parametrize(
    ("status", "has_output", "state"),
    [
        (None, False, RecordState.NONE),
        (Status.SUCCESS, True, RecordState.FINISHED),
        (Status.SUCCESS, False, RecordState.GONE),
        (Status.FAILED, True, RecordState.FAILED),
        (Status.DEP_FAILED, False, RecordState.FAILED),
        (Status.RUNNING, True, RecordState.STOPPED),
    ],
)
@pytest.mark.parametrize("lease", [None, MARINS], ids=["no lease", "a dead lease of Marin's"])
def test_marin_status_counts_without_live_lease(
    status: Status | None, has_output: bool, state: RecordState, lease: Lease | None
) -> None:
    assert Record(status, lease, 90.1, has_output).state is state


@pytest.mark.parametrize("status", [None, Status.RUNNING, Status.FAILED, Status.DEP_FAILED])
def test_live_marin_lease_means_at_work_until_success(status: Status | None) -> None:
    assert Record(status, MARINS, 89.0).state is RecordState.AT_WORK
    assert Record(Status.SUCCESS, MARINS, 1.0, has_output=True).state is RecordState.FINISHED


def test_marin_result_needs_success_and_files() -> None:
    assert Record(Status.SUCCESS, None, has_output=True).is_marin_result
    assert not Record(Status.SUCCESS, None, has_output=False).is_marin_result
    assert not Record(Status.FAILED, None, has_output=True).is_marin_result


def test_lease_stale_by_heartbeat_of_its_owner() -> None:
    quick = Lease("w", 0.0, Phase.RUNNING, heartbeat_s=0.2)
    assert not Record(None, quick, 0.6).is_stale
    assert Record(None, quick, 0.7).is_stale
    assert not Record(None, OURS[Phase.COMMITTED], 1e9).is_stale


# ---- records in a store


def begin(path: str) -> tuple[LeaseStore, HeldLease]:
    store = LeaseStore(path)
    assert store.claim(None, LeaseClaim(1, "job", "", {}, "v")) is not None
    return store, store.take_over("job", "me")


def commit(path: str, sentinel_file: str | None) -> None:
    store, held = begin(path)
    store.change(held, phase=Phase.COMMITTED, digest="abc", witness=sentinel_file)


def test_output_without_records_has_empty_record(local_prefix: str) -> None:
    assert read_records([]) == {}
    record = read_record(f"{local_prefix}/nothing")
    assert (record.state, record.lease, record.status) == (RecordState.NONE, None, None)


def test_committed_output_finished_while_sentinel_exists(local_prefix: str) -> None:
    for name in ("there", "gone"):
        commit(f"{local_prefix}/{name}", "data/part")
    fs, there = url_to_fs(f"{local_prefix}/there/data")
    fs.makedirs(there)
    fs.pipe_file(f"{there}/part", b"\xff\xfe\x00")  # need not be text
    write_text(f"{local_prefix}/gone/data/other", "x")
    records = read_records([f"{local_prefix}/there", f"{local_prefix}/gone"])
    assert [record.state for record in records.values()] == [RecordState.FINISHED, RecordState.GONE]


def test_committed_output_without_files_is_finished(local_prefix: str) -> None:
    commit(f"{local_prefix}/out", None)
    assert read_record(f"{local_prefix}/out").state is RecordState.FINISHED


def test_marins_outputs_are_finished_if_any_file_is_there(local_prefix: str) -> None:
    for name in ("full", "empty"):
        write_status(f"{local_prefix}/{name}", Status.SUCCESS)
        write_text(f"{local_prefix}/{name}/.executor_info", "{}")
    write_text(f"{local_prefix}/full/data", "x")
    records = read_records([f"{local_prefix}/full", f"{local_prefix}/empty"])
    assert [record.state for record in records.values()] == [RecordState.FINISHED, RecordState.GONE]


def test_store_gives_the_age_of_a_lease(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    begin(path)
    assert read_record(path).lease_age_s < 30
    long_ago = time.time() - 100
    os.utime(lease_path(path), (long_ago, long_ago))
    record = read_record(path)
    assert record.lease_age_s >= 100 and record.state is RecordState.STOPPED
