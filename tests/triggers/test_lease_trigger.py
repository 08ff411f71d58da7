"""Triggers share reads of a lease and report its end despite store errors."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.waiting import until_async
from tradewind.attempts import renewal
from tradewind.attempts.renewal import renew_while_claimed
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.record import Record, read_records
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.swap import StoredObject, write_if
from tradewind.triggers import lease as lease_trigger
from tradewind.triggers.lease import LeaseTrigger, read_record_batched, wait_for_release

OUTPUT = "memory://wait/0"
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("FIRST_PAUSE_S", "MAX_PAUSE_S"):
        monkeypatch.setattr(lease_trigger, name, 0.05)
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


class Reader:
    """Reader that records the requested paths and raises configured errors."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.errors: list[Exception] = []

    def __call__(self, paths: Sequence[str]) -> dict[str, Record]:
        self.reads.append(list(paths))
        if self.errors:
            raise self.errors.pop()
        return read_records(paths)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader()
    monkeypatch.setattr(lease_trigger, "read_records", reader)
    return reader


def begin(path: str, number: int = 1, heartbeat_s: float = 30.0) -> tuple[LeaseStore, HeldLease]:
    store = LeaseStore(path)
    claim = LeaseClaim(number, f"job-{number}", "", {}, "v", heartbeat_s)
    assert store.claim(store.read(), claim) is not None
    return store, store.take_over(f"job-{number}", f"owner-{number}")


def wait_in_background(path: str = OUTPUT) -> asyncio.Task[int]:
    return asyncio.create_task(wait_for_release(path, 1, lambda _: None))


async def test_concurrent_reads_share_one_request(reader: Reader) -> None:
    paths = [f"memory://wait/{n % 3}" for n in range(30)]
    begin(OUTPUT)
    records = await asyncio.gather(*map(read_record_batched, paths))
    assert reader.reads == [["memory://wait/0", "memory://wait/1", "memory://wait/2"]]
    assert [record.lease is not None for record in records] == [n % 3 == 0 for n in range(30)]


@pytest.mark.slow
async def test_later_read_makes_its_own_request(reader: Reader) -> None:
    assert (await read_record_batched(OUTPUT)).lease is None
    begin(OUTPUT)
    assert (await read_record_batched(OUTPUT)).lease is not None
    assert len(reader.reads) == 2


async def test_store_error_reaches_every_reader_of_a_batch(reader: Reader) -> None:
    reader.errors.append(StoreUnavailableError("503"))
    reads = (read_record_batched(f"memory://wait/{n}") for n in range(3))
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailableError] * 3


async def test_cancelled_read_does_not_affect_others_of_its_batch() -> None:
    cancelled, other = (asyncio.create_task(read_record_batched(OUTPUT)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert (await other).lease is None


@pytest.mark.slow
@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.FAILED, Phase.STOPPED])
async def test_running_attempt_is_waited_for_until_it_ends(phase: Phase) -> None:
    store, held = begin(OUTPUT)
    waiting = wait_in_background()
    done, _ = await asyncio.wait({waiting}, timeout=0.6)
    assert not done
    store.change(held, phase=phase)
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == 1


@pytest.mark.slow
async def test_stale_lease_ends_the_wait(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    begin(path)
    waiting = wait_in_background(path)
    done, _ = await asyncio.wait({waiting}, timeout=0.4)
    assert not done
    long_ago = time.time() - 100
    os.utime(lease_path(path), (long_ago, long_ago))
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == 1


@pytest.mark.slow
async def test_wait_returns_the_last_running_attempt(reader: Reader) -> None:
    begin(OUTPUT)
    waiting = wait_in_background()
    store, held = begin(OUTPUT, 2)
    await until_async(lambda: len(reader.reads) > 1, "the first read to end")
    store.change(held, phase=Phase.FAILED)
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == 2


@pytest.mark.slow
async def test_store_error_is_logged_and_read_retried(reader: Reader) -> None:
    lines: list[str] = []
    reader.errors += [StoreUnavailableError("The store is away."), StoreRefusedError("The store is away.")]
    assert await asyncio.wait_for(wait_for_release(OUTPUT, 4, lines.append), TIMEOUT_S) == 4
    assert lines == [f"Cannot read the lease of {OUTPUT}: The store is away. Retrying in 0 s."] * 2


async def test_trigger_event_has_attempt_and_original_payload() -> None:
    path, arguments = LeaseTrigger(OUTPUT, 3, payload={"is_theirs": True}).serialize()
    assert path == "tradewind.triggers.lease.LeaseTrigger"
    event = await anext(LeaseTrigger(**arguments).run())
    assert event.payload == {"attempt": 3, "is_theirs": True}


def lease() -> Lease:
    held = LeaseStore(OUTPUT).read()
    assert held is not None
    return held.lease


@pytest.mark.slow
@pytest.mark.parametrize("refusals", [0, 1])
async def test_claimed_lease_is_renewed_until_owner_takes_over(refusals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [StoreRefusedError("not now")] * refusals
    store = LeaseStore(OUTPUT)
    store.claim(None, LeaseClaim(1, "job-1", "", {}, "v", 0.05))

    def write(*args: Any) -> StoredObject | None:
        if errors:
            raise errors.pop()
        return write_if(*args)

    monkeypatch.setattr(renewal, "LeaseStore", partial(LeaseStore, write=write))
    renewing = asyncio.create_task(renew_while_claimed(OUTPUT, "job-1"))
    await until_async(lambda: lease().counter >= 4 or renewing.done())
    assert not renewing.done()
    owned = store.take_over("job-1", "owner").lease
    await asyncio.wait_for(renewing, TIMEOUT_S)
    assert lease() == owned


@pytest.mark.parametrize("job", ["job-1", "another"])
async def test_only_own_claim_is_renewed(job: str) -> None:
    _, held = begin(OUTPUT)
    await asyncio.wait_for(renew_while_claimed(OUTPUT, job), TIMEOUT_S)
    assert lease() == held.lease
