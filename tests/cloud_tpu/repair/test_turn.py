"""Of the repairs that share a folder, one deletes at a time, whatever becomes of the one whose turn it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tradewind.cloud_tpu.api import CALL_TIMEOUT_S
from tradewind.cloud_tpu.repair.turn import HOLD_S, STALE_S, RepairTurn


@dataclass(frozen=True)
class Stored:
    text: str
    tag: str
    age_s: float


@dataclass
class Store:
    """One object in a store with a clock of its own."""

    now: float = 0.0
    text: str | None = None
    written_at: float = 0.0
    texts: list[str] = field(default_factory=list)

    def read(self, path: str) -> Stored | None:
        return None if self.text is None else Stored(self.text, str(len(self.texts)), self.now - self.written_at)

    def write(self, path: str, text: str, expected: str | None) -> Stored | None:
        if (str(len(self.texts)) if self.texts else None) != expected:
            return None
        self.text, self.written_at = text, self.now
        self.texts.append(text)
        return self.read(path)

    def turn(self) -> RepairTurn:
        return RepairTurn("turn", self.read, self.write, clock=lambda: self.now)


def test_one_repair_has_the_turn_and_the_next_gets_it_when_it_is_given_back() -> None:
    store = Store()
    one, another = store.turn(), store.turn()
    assert one.take() and one.is_ours
    assert not another.take() and not another.is_ours
    one.give_back()
    assert not one.is_ours
    assert another.take() and another.is_ours and not one.take()


def test_who_has_it_can_have_it_for_its_whole_time_again() -> None:
    store = Store()
    one = store.turn()
    assert one.take()
    store.now += HOLD_S - 1.0
    assert one.take()
    store.now += HOLD_S - 1.0
    assert one.is_ours


def test_who_has_it_for_too_long_sends_nothing_more_before_another_one_takes_it_over() -> None:
    store = Store()
    one, another = store.turn(), store.turn()
    assert one.take()
    store.now += HOLD_S
    assert not one.is_ours and not another.take(), "what it sent last may not have been answered yet"
    store.now += CALL_TIMEOUT_S
    assert STALE_S >= HOLD_S + CALL_TIMEOUT_S
    assert another.take() and another.is_ours
    one.give_back()
    assert another.is_ours and not store.turn().take(), "what was taken over is not given back"


def test_of_two_that_take_it_at_once_one_has_it() -> None:
    store = Store()
    one, another = store.turn(), store.turn()

    def meanwhile(path: str) -> Stored | None:
        found = store.read(path)
        assert another.take()
        return found

    one._read = meanwhile
    assert not one.take() and not one.is_ours and another.is_ours


def test_no_text_is_written_twice() -> None:
    store = Store()
    for turn in (store.turn(), store.turn(), store.turn()):
        assert turn.take()
        turn.give_back()
    assert len(set(store.texts)) == len(store.texts) == 6
    assert [bool(json.loads(text)["holder"]) for text in store.texts] == [True, False] * 3
