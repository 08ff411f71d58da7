"""The repair lock: among repairs that share a folder, one at a time deletes, even if its owner dies."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tradewind.cloud_tpu.api import CALL_TIMEOUT_S
from tradewind.cloud_tpu.repair.records import HOLD_S, STALE_S, RepairLock
from tradewind.storage.swap import StoredObject


@dataclass
class Store:
    """One object in a store with its own clock."""

    now: float = 0.0
    text: str | None = None
    written_at: float = 0.0
    texts: list[str] = field(default_factory=list)

    def read(self, path: str) -> StoredObject | None:
        return None if self.text is None else StoredObject(self.text, str(len(self.texts)), self.now - self.written_at)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        if (str(len(self.texts)) if self.texts else None) != expected:
            return None
        self.text, self.written_at = text, self.now
        self.texts.append(text)
        return self.read(path)

    def lock(self) -> RepairLock:
        return RepairLock("turn", self.read, self.write, clock=lambda: self.now)


def test_repair_lock_is_exclusive_until_released() -> None:
    store = Store()
    one, another = store.lock(), store.lock()
    assert one.acquire() and one.is_held
    assert not another.acquire() and not another.is_held
    one.release()
    assert not one.is_held
    assert another.acquire() and another.is_held and not one.acquire()


def test_second_acquisition_renews_the_lock_fully() -> None:
    store = Store()
    one = store.lock()
    for _ in range(2):
        assert one.acquire()
        store.now += HOLD_S - 1.0
    assert one.is_held


def test_expired_repair_lock_holder_stops_before_takeover() -> None:
    store = Store()
    one, another = store.lock(), store.lock()
    assert one.acquire()
    store.now += HOLD_S
    assert not one.is_held and not another.acquire(), "what it sent last may not have been answered yet"
    store.now += CALL_TIMEOUT_S
    assert STALE_S >= HOLD_S + CALL_TIMEOUT_S
    assert another.acquire() and another.is_held
    one.release()
    assert another.is_held and not store.lock().acquire(), "what was taken over is not given back"


def test_concurrent_acquisitions_have_one_winner() -> None:
    store = Store()
    one, another = store.lock(), store.lock()

    def meanwhile(path: str) -> StoredObject | None:
        found = store.read(path)
        assert another.acquire()
        return found

    one._read = meanwhile
    assert not one.acquire() and not one.is_held and another.is_held


def test_no_text_is_written_twice() -> None:
    store = Store()
    for lock in (store.lock(), store.lock(), store.lock()):
        assert lock.acquire()
        lock.release()
    assert len(set(store.texts)) == len(store.texts) == 6
    assert [bool(json.loads(text)["holder"]) for text in store.texts] == [True, False] * 3
