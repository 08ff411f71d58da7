"""Batched record reads return the same records as single reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from fsspec.core import url_to_fs

from tradewind.records.lease import Phase, lease_path
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.record import RecordState, Status, read_record, read_records, write_status
from tradewind.storage.files import write_text


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
    write_text(f"{local_prefix}/there/data/part", "x")
    write_text(f"{local_prefix}/gone/data/other", "x")
    records = read_records([f"{local_prefix}/there", f"{local_prefix}/gone"])
    assert [record.state for record in records.values()] == [RecordState.FINISHED, RecordState.GONE]


def test_sentinel_file_need_not_be_text(local_prefix: str) -> None:
    commit(f"{local_prefix}/out", "weights")
    fs, out = url_to_fs(f"{local_prefix}/out")
    fs.pipe_file(f"{out}/weights", b"\xff\xfe\x00")
    assert read_record(f"{local_prefix}/out").state is RecordState.FINISHED


def test_committed_output_without_files_is_finished(local_prefix: str) -> None:
    commit(f"{local_prefix}/out", None)
    assert read_record(f"{local_prefix}/out").state is RecordState.FINISHED


def test_success_status_without_commit_is_ignored(local_prefix: str) -> None:
    store, held = begin(f"{local_prefix}/out")
    write_text(f"{local_prefix}/out/file", "x")
    write_status(f"{local_prefix}/out", Status.SUCCESS)
    assert read_record(f"{local_prefix}/out").state is RecordState.AT_WORK
    store.change(held, phase=Phase.FAILED)
    assert read_record(f"{local_prefix}/out").state is RecordState.FAILED


def test_commit_without_success_status_counts(local_prefix: str) -> None:
    commit(f"{local_prefix}/out", "file")
    write_text(f"{local_prefix}/out/file", "x")
    write_status(f"{local_prefix}/out", Status.RUNNING)
    assert read_record(f"{local_prefix}/out").state is RecordState.FINISHED


def test_marins_outputs_are_finished_if_any_file_is_there(local_prefix: str) -> None:
    for name in ("full", "empty"):
        write_status(f"{local_prefix}/{name}", Status.SUCCESS)
        write_text(f"{local_prefix}/{name}/.executor_info", "{}")
    write_text(f"{local_prefix}/full/data", "x")
    records = read_records([f"{local_prefix}/full", f"{local_prefix}/empty"])
    assert [record.state for record in records.values()] == [RecordState.FINISHED, RecordState.GONE]


def test_fresh_marin_lease_respected_despite_timestamp(local_prefix: str) -> None:
    write_text(lease_path(f"{local_prefix}/out"), json.dumps({"worker_id": "theirs", "timestamp": 0.0}))
    assert read_record(f"{local_prefix}/out").state is RecordState.AT_WORK


def test_store_gives_the_age_of_a_lease(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    begin(path)
    assert read_record(path).lease_age_s < 30
    long_ago = time.time() - 100
    os.utime(lease_path(path), (long_ago, long_ago))
    record = read_record(path)
    assert record.lease_age_s >= 100 and record.state is RecordState.STOPPED
