"""Batched record reads return the same records as single reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.records.lease import Phase, lease_path
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.record import RecordState, Status, read_record, read_records, write_status
from tradewind.storage.files import write_text


@pytest.fixture(params=["local", "memory"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    MemoryFileSystem.store.clear()
    yield str(tmp_path) if request.param == "local" else "memory://reading"
    MemoryFileSystem.store.clear()


def begun(path: str, number: int = 1) -> tuple[LeaseStore, HeldLease]:
    store = LeaseStore(path)
    assert store.claim(store.read(), LeaseClaim(number, "job", "", {}, "v")) is not None
    return store, store.take_over("job", "me")


def commit(path: str, witness: str | None) -> None:
    store, held = begun(path)
    store.change(held, phase=Phase.COMMITTED, digest="abc", witness=witness)


def test_every_output_that_was_asked_for_has_a_record(prefix: str) -> None:
    assert read_records([]) == {}
    record = read_record(f"{prefix}/nothing")
    assert (record.state, record.lease, record.status) == (RecordState.NONE, None, None)


def test_committed_output_finished_while_sentinel_exists(prefix: str) -> None:
    for name in ("there", "gone"):
        commit(f"{prefix}/{name}", "data/part")
    write_text(f"{prefix}/there/data/part", "x")
    write_text(f"{prefix}/gone/data/other", "x")
    records = read_records([f"{prefix}/there", f"{prefix}/gone"])
    assert [record.state for record in records.values()] == [RecordState.FINISHED, RecordState.GONE]


def test_a_witness_need_not_be_text(prefix: str) -> None:
    commit(f"{prefix}/out", "weights")
    fs = MemoryFileSystem() if prefix.startswith("memory") else None
    if fs is not None:
        fs.pipe_file("/reading/out/weights", b"\xff\xfe\x00")
    else:
        Path(prefix, "out/weights").write_bytes(b"\xff\xfe\x00")
    assert read_record(f"{prefix}/out").state is RecordState.FINISHED


def test_a_step_that_leaves_no_file_has_nothing_to_lose(prefix: str) -> None:
    commit(f"{prefix}/out", None)
    assert read_record(f"{prefix}/out").state is RecordState.FINISHED


def test_a_success_without_a_committed_lease_is_not_believed(prefix: str) -> None:
    store, held = begun(f"{prefix}/out")
    write_text(f"{prefix}/out/file", "x")
    write_status(f"{prefix}/out", Status.SUCCESS)
    assert read_record(f"{prefix}/out").state is RecordState.AT_WORK
    store.change(held, phase=Phase.FAILED)
    assert read_record(f"{prefix}/out").state is RecordState.FAILED


def test_a_commit_without_a_success_is_believed(prefix: str) -> None:
    commit(f"{prefix}/out", "file")
    write_text(f"{prefix}/out/file", "x")
    write_status(f"{prefix}/out", Status.RUNNING)
    assert read_record(f"{prefix}/out").state is RecordState.FINISHED


def test_marins_outputs_are_finished_if_any_file_is_there(prefix: str) -> None:
    for name in ("full", "empty"):
        write_status(f"{prefix}/{name}", Status.SUCCESS)
        write_text(f"{prefix}/{name}/.executor_info", "{}")
    write_text(f"{prefix}/full/data", "x")
    records = read_records([f"{prefix}/full", f"{prefix}/empty"])
    assert [record.state for record in records.values()] == [RecordState.FINISHED, RecordState.GONE]


def test_fresh_marin_lease_respected_despite_timestamp(prefix: str) -> None:
    write_text(lease_path(f"{prefix}/out"), json.dumps({"worker_id": "theirs", "timestamp": 0.0}))
    assert read_record(f"{prefix}/out").state is RecordState.AT_WORK


def test_the_age_of_a_lease_is_told_by_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    begun(path)
    assert read_record(path).lease_age_s < 30
    long_ago = time.time() - 100
    os.utime(lease_path(path), (long_ago, long_ago))
    record = read_record(path)
    assert record.lease_age_s >= 100 and record.state is RecordState.STOPPED
