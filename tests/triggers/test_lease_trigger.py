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
from tradewind.attempts import renewal as claimed_lease
from tradewind.attempts.renewal import renew_while_claimed
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.record import Record, read_records
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.swap import StoredObject, write_if
from tradewind.triggers import lease as lease_reader
from tradewind.triggers import lease as lease_trigger
from tradewind.triggers.lease import LeaseTrigger, read_record_batched, wait_for_release

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("FIRST_PAUSE_S", "MAX_PAUSE_S"):
        monkeypatch.setattr(lease_trigger, name, 0.05)
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


class Asked:
    """Reader that records the requested paths and raises configured errors."""

    def __init__(self) -> None:
        self.questions: list[list[str]] = []
        self.errors: list[Exception] = []

    def __call__(self, paths: Sequence[str]) -> dict[str, Record]:
        self.questions.append(list(paths))
        if self.errors:
            raise self.errors.pop()
        return read_records(paths)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr(lease_reader, "read_records", asked)
    return asked


def begun(path: str, number: int = 1, heartbeat_s: float = 30.0) -> tuple[LeaseStore, HeldLease]:
    store = LeaseStore(path)
    claim = LeaseClaim(number, f"job-{number}", "", {}, "v", heartbeat_s)
    assert store.claim(store.read(), claim) is not None
    return store, store.take_over(f"job-{number}", f"keeper-{number}")


async def event_of(trigger: LeaseTrigger) -> object:
    async for event in trigger.run():
        return event.payload
    return None


# ---- shared reads


async def test_those_who_ask_within_a_moment_share_one_question(asked: Asked) -> None:
    paths = [f"memory://wait/{n % 3}" for n in range(30)]
    begun("memory://wait/0")
    records = await asyncio.gather(*map(read_record_batched, paths))
    assert asked.questions == [["memory://wait/0", "memory://wait/1", "memory://wait/2"]]
    assert [record.lease is not None for record in records] == [n % 3 == 0 for n in range(30)]


@pytest.mark.slow
async def test_who_asks_later_gets_an_answer_of_his_own(asked: Asked) -> None:
    assert (await read_record_batched("memory://wait/0")).lease is None
    begun("memory://wait/0")
    assert (await read_record_batched("memory://wait/0")).lease is not None
    assert len(asked.questions) == 2


async def test_everybody_hears_that_the_store_does_not_answer(asked: Asked) -> None:
    asked.errors.append(StoreUnavailableError("503"))
    answers = await asyncio.gather(
        *(read_record_batched(f"memory://wait/{n}") for n in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 3


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    gone, stays = (asyncio.create_task(read_record_batched("memory://wait/0")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays).lease is None


# ---- end of a lease


@pytest.mark.slow
@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.FAILED, Phase.STOPPED])
async def test_a_turn_is_waited_for_until_it_ends(phase: Phase) -> None:
    store, held = begun("memory://wait/0")
    waiting = asyncio.create_task(wait_for_release("memory://wait/0", 1, lambda _: None))
    done, _ = await asyncio.wait({waiting}, timeout=0.6)
    assert not done
    store.change(held, phase=phase)
    assert await asyncio.wait_for(waiting, PATIENCE_S) == 1


@pytest.mark.slow
async def test_a_turn_that_runs_out_has_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    begun(path)
    waiting = asyncio.create_task(wait_for_release(path, 1, lambda _: None))
    done, _ = await asyncio.wait({waiting}, timeout=0.4)
    assert not done
    long_ago = time.time() - 100
    os.utime(lease_path(path), (long_ago, long_ago))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == 1


@pytest.mark.slow
async def test_the_attempt_that_is_told_is_the_last_that_was_at_work(asked: Asked) -> None:
    begun("memory://wait/0")
    waiting = asyncio.create_task(wait_for_release("memory://wait/0", 1, lambda _: None))
    store, held = begun("memory://wait/0", 2)
    await until_async(lambda: len(asked.questions) > 1, "the first look to be answered")
    store.change(held, phase=Phase.FAILED)
    assert await asyncio.wait_for(waiting, PATIENCE_S) == 2


@pytest.mark.slow
async def test_a_store_that_does_not_answer_or_refuses_is_asked_again(asked: Asked) -> None:
    said: list[str] = []
    asked.errors += [StoreUnavailableError("The store is away."), StoreRefusedError("The store is away.")]
    assert await asyncio.wait_for(wait_for_release("memory://wait/0", 4, said.append), PATIENCE_S) == 4
    assert said == ["Cannot read the lease of memory://wait/0: The store is away. Retrying in 0 s."] * 2


async def test_trigger_event_has_attempt_and_original_payload() -> None:
    trigger = LeaseTrigger("memory://wait/0", 3, payload={"is_theirs": True})
    path, arguments = trigger.serialize()
    assert path == "tradewind.triggers.lease.LeaseTrigger"
    assert await event_of(LeaseTrigger(**arguments)) == {"attempt": 3, "is_theirs": True}


# ---- renewal of a claimed lease


def lease(path: str) -> Lease:
    held = LeaseStore(path).read()
    assert held is not None
    return held.lease


async def test_claimed_lease_is_renewed_until_owner_takes_over() -> None:
    path = "memory://wait/0"
    store = LeaseStore(path)
    store.claim(None, LeaseClaim(1, "job-1", "", {}, "v", 0.05))
    renewing = asyncio.create_task(renew_while_claimed(path, "job-1"))
    await until_async(lambda: lease(path).counter >= 4)
    begun_at = store.take_over("job-1", "keeper").lease
    await asyncio.wait_for(renewing, PATIENCE_S)
    assert lease(path) == begun_at


@pytest.mark.slow
async def test_a_claimed_lease_is_renewed_after_a_refusal_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    path, refusals = "memory://wait/0", [StoreRefusedError("not now")]
    store = LeaseStore(path)
    store.claim(None, LeaseClaim(1, "job-1", "", {}, "v", 0.05))

    def write(*args: Any) -> StoredObject | None:
        if refusals:
            raise refusals.pop()
        return write_if(*args)

    monkeypatch.setattr(claimed_lease, "LeaseStore", partial(LeaseStore, write=write))
    renewing = asyncio.create_task(renew_while_claimed(path, "job-1"))
    await until_async(lambda: lease(path).counter >= 3 or renewing.done())
    assert not renewing.done()
    store.take_over("job-1", "keeper")
    await asyncio.wait_for(renewing, PATIENCE_S)


@pytest.mark.parametrize("job", ["job-1", "another"])
async def test_only_ones_own_claim_is_renewed(job: str) -> None:
    path = "memory://wait/0"
    _, held = begun(path)
    await asyncio.wait_for(renew_while_claimed(path, job), PATIENCE_S)
    assert lease(path) == held.lease
