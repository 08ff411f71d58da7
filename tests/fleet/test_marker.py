"""Cluster lock: one operation changes a cluster at a time; a later one completes an interrupted one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.waiting import until
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.lock import (
    ClusterBusyError,
    ClusterLock,
    HeldClusterLock,
    InterruptedOperationError,
    LockState,
    MarkerLostError,
    lock_path,
)
from tradewind.records.lease import LeaseTimes
from tradewind.storage.backends import StoredObject
from tradewind.storage.errors import BadRecordError, StoreUnavailableError
from tradewind.text import format_time

TIMES = LeaseTimes()
QUICK_S = 0.1


@dataclass
class Store:
    """One object in a store with its own clock.

    Attributes:
        lost: Number of writes that succeed but lose their answers.
        refused: Number of writes that the store refuses.
        slow_s: Delay of an answer.
    """

    now: float = 1000.0
    text: str | None = None
    written_at: float = 0.0
    texts: list[str] = field(default_factory=list)
    lost: int = 0
    refused: int = 0
    slow_s: float = 0.0

    def read(self, path: str) -> StoredObject | None:
        return None if self.text is None else StoredObject(self.text, str(len(self.texts)), self.now - self.written_at)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        if self.refused:
            self.refused -= 1
            raise StoreUnavailableError("503")
        if (str(len(self.texts)) if self.texts else None) != expected:
            return None
        self.text, self.written_at = text, self.now
        self.texts.append(text)
        self.now += self.slow_s
        if self.lost:
            self.lost -= 1
            raise StoreUnavailableError("no answer")
        return self.read(path)

    def write_fields(self, **fields: str) -> None:
        """Change fields of the stored lock."""
        assert self.text is not None
        self.write("marker", json.dumps({**json.loads(self.text), **fields}), str(len(self.texts)))

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def lock(self, clock: Callable[[], float] | None = None) -> ClusterLock:
        clock = clock or (lambda: self.now)
        return ClusterLock("here", "marker", now=clock, clock=clock, read=self.read, write=self.write, pause=self.wait)


def take(store: Store, operation: str = "restart", who: str = "ann@laptop", **more: Any) -> HeldClusterLock:
    return store.lock().take(operation, "stop", holder=who, **more)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def held(store: Store) -> HeldClusterLock:
    return take(store)


def test_busy_lock_reports_holder_since_and_until(store: Store, held: HeldClusterLock) -> None:
    store.now += 60.0
    with pytest.raises(ClusterBusyError) as busy:
        take(store, "stop", "bob@desk")
    since = "Cluster here: ann@laptop is at restart since 1970-01-01 00:16 UTC, phase stop"
    assert since in str(busy.value)
    assert f"until {format_time(1000.0 + TIMES.stale_s)} at least. Nothing was done" in str(busy.value)


def test_finished_operation_frees_cluster_for_the_next(store: Store, held: HeldClusterLock) -> None:
    held.finish()
    second = take(store, "start", "bob@desk")
    assert not second.is_resumed and second.marker.run != held.marker.run and second.marker.holder == "bob@desk"
    with pytest.raises(MarkerLostError):
        held.check()


def test_claim_between_read_and_write_is_detected(store: Store) -> None:
    slow = store.lock()
    winners: list[HeldClusterLock] = []

    def read_then_lose(path: str) -> StoredObject | None:
        stored = store.read(path)
        if not winners:
            winners.append(take(store, who="bob@desk"))
        return stored

    slow._read = read_then_lose
    with pytest.raises(ClusterBusyError, match="bob@desk is at restart"):
        slow.take("restart", "stop")
    assert winners[0].is_held


def test_lock_is_held_while_renewed(store: Store, held: HeldClusterLock) -> None:
    for _ in range(10):
        store.now += TIMES.fence_s - 1.0
        held.renew()
    assert held.is_held
    with pytest.raises(ClusterBusyError):
        take(store)


def test_holder_that_cannot_renew_is_fenced_well_before_stale(store: Store, held: HeldClusterLock) -> None:
    store.now += TIMES.fence_s
    with pytest.raises(MarkerLostError, match="could not be renewed in time"):
        held.check()
    with pytest.raises(MarkerLostError):
        held.advance("start")
    with pytest.raises(ClusterBusyError):
        take(store)
    store.now += TIMES.stale_s - TIMES.fence_s + 1.0
    assert take(store).is_resumed


def test_holder_counts_lease_from_start_of_its_write(store: Store) -> None:
    store.slow_s = TIMES.fence_s - 1.0
    held = take(store)
    store.now += 2.0
    assert not held.is_held
    store.now -= 2.0
    held.renew()
    store.now += 2.0
    assert not held.is_held


def test_wrong_wall_clock_changes_no_expiry(store: Store) -> None:
    held = store.lock(clock=lambda: store.now + 86_400.0).take("restart", "stop")
    with pytest.raises(ClusterBusyError):
        store.lock(clock=lambda: store.now - 86_400.0).take("restart", "stop")
    assert held.is_held


def test_block_renews_and_leaves_unfinished_lock_interrupted(store: Store) -> None:
    with take(store, heartbeat_s=QUICK_S) as held:
        for number in range(held.marker.counter, held.marker.counter + 3):
            store.now += 1.5 * QUICK_S
            until(lambda number=number: held.marker.counter > number, "its renewal")
        held.check()
    left = store.lock().read()
    assert left is not None and left.marker.state is LockState.LEFT and left.is_interrupted


def test_interrupted_operation_resumes_at_once_from_its_phase(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), take(store) as held:
        held.advance("start", disk="kept")
        raise KeyboardInterrupt
    again = take(store, who="bob@desk", details={"disk": "other"})
    assert again.is_resumed and again.marker.run == held.marker.run
    assert (again.marker.phase, again.marker.details) == ("start", {"disk": "kept"})


def test_new_operation_needs_interrupted_one_to_be_abandoned(store: Store) -> None:
    with take(store) as held:
        held.advance("start")
    with pytest.raises(InterruptedOperationError, match=r"was interrupted in phase start\. Run 'restart' again"):
        take(store, "apply")
    anew = take(store, "apply", is_anew=True)
    assert not anew.is_resumed and anew.marker.run != held.marker.run and anew.marker.phase == "stop"


def test_lost_responses_lose_no_lock(store: Store, held: HeldClusterLock) -> None:
    store.lost = 1
    with pytest.raises(StoreUnavailableError):
        held.renew()
    held.renew()
    store.lost = 2
    held.advance("start")
    assert held.is_held and held.marker.phase == "start"
    store.lost = 1
    held.finish()
    assert json.loads(store.texts[-1])["state"] == "done" and len(set(store.texts)) == len(store.texts)


def test_finish_with_lost_response_counts_despite_next_operation(store: Store, held: HeldClusterLock) -> None:
    store.lost = 1
    began: list[HeldClusterLock] = []
    held._store.pause = lambda seconds: began.append(store.lock().take("start", "begin"))
    held.finish()
    ends = [json.loads(text)["operation"] for text in store.texts if json.loads(text)["state"] == "done"]
    assert ends == ["restart"] and began[0].is_held
    with pytest.raises(MarkerLostError):
        held.check()


def test_persistently_refusing_store_ends_the_operation(store: Store, held: HeldClusterLock) -> None:
    store.refused = 1000
    with pytest.raises(StoreUnavailableError):
        held.advance("start")
    assert not held.is_held and store.now < 1000.0 + TIMES.stale_s


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"' + "x" * 100, "[" * 100_000, '{"operation": 1}', "{}", json.dumps({"state": "gone"})]
)
def test_invalid_lock_object_is_neither_taken_nor_changed(text: str, tmp_path: Path) -> None:
    file = tmp_path / "marker.json"
    file.write_text(text)
    with pytest.raises(BadRecordError, match=r"marker\.json cannot be read, because .* Make sure that no user"):
        ClusterLock("here", str(file)).take("restart", "stop")
    assert file.read_text() == text


BAD_RUN_IDS = ["", "../other", "/tmp/abc", "..", "0" * 31, "0" * 32 + "\n", "G" * 32, "-" * 32]
BAD_TEXTS = ["a\nCluster here: all is well", "\x1b[2J", "a\u202eb", "a" * 301]


@pytest.mark.parametrize(
    ("name", "text"),
    [("run", text) for text in BAD_RUN_IDS]
    + [(name, text) for name in ("operation", "phase", "holder", "token", "after") for text in BAD_TEXTS],
    ids=ascii,
)
def test_lock_with_bad_run_id_or_unprintable_text_is_refused(
    name: str, text: str, store: Store, held: HeldClusterLock
) -> None:
    held.leave()
    store.write_fields(**{name: text})
    with pytest.raises(BadRecordError, match="run" if name == "run" else f"its {name} is not a short text of one line"):
        take(store)


@pytest.mark.parametrize(
    "holder", ["a" * 1000, "run\nof a dag", "\u202e", "ü" * 300, "\ud800"], ids=lambda text: ascii(text)[:9]
)
def test_any_holder_name_is_readable_by_other_users(holder: str, store: Store) -> None:
    take(store, who=holder).leave()
    assert take(store, who="next").marker.holder == "next"


def test_lock_path_is_in_the_clusters_bucket(cluster: FleetCluster) -> None:
    assert lock_path(cluster) == "gs://my-bucket/.tradewind/clusters/here/marker.json"


class Users(RuleBasedStateMachine):
    """Users take, renew, advance, freeze, die and finish in any order, on a store that loses answers."""

    names: ClassVar = ("ann", "bob", "cid")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.locks: list[HeldClusterLock] = []
        self.last_phase: dict[str, str] = {}
        self.done: set[str] = set()

    def has_locks(self) -> bool:
        return bool(self.locks)

    def chosen(self, pick: int) -> HeldClusterLock:
        return self.locks[-1 - pick % len(self.locks)]

    @rule(who=st.sampled_from(names), operation=st.sampled_from(["stop", "restart"]), is_anew=st.booleans())
    def take(self, who: str, operation: str, is_anew: bool) -> None:
        try:
            held = take(self.store, operation, who, is_anew=is_anew)
        except (ClusterBusyError, InterruptedOperationError, StoreUnavailableError):
            return
        if held.is_resumed:
            assert held.marker.operation == operation and held.marker.run not in self.done
            assert held.marker.phase == self.last_phase.get(held.marker.run, "stop")
        self.locks.append(held)

    @precondition(has_locks)
    @rule(pick=st.integers(0, 9), phase=st.sampled_from(["drain", "start"]))
    def advance(self, pick: int, phase: str) -> None:
        run = self.chosen(pick).marker.run
        try:
            self.chosen(pick).advance(phase)
        except (MarkerLostError, StoreUnavailableError):
            stored = json.loads(self.store.texts[-1])
            if stored["run"] == run:
                self.last_phase[run] = stored["phase"]
        else:
            self.last_phase[run] = phase

    @precondition(has_locks)
    @rule(pick=st.integers(0, 9))
    def renew(self, pick: int) -> None:
        with suppress(MarkerLostError, StoreUnavailableError):
            self.chosen(pick).renew()

    @precondition(has_locks)
    @rule(pick=st.integers(0, 9))
    def leave(self, pick: int) -> None:
        self.locks.pop(-1 - pick % len(self.locks)).leave()

    @precondition(has_locks)
    @rule(pick=st.integers(0, 9))
    def finish(self, pick: int) -> None:
        with suppress(MarkerLostError, StoreUnavailableError):
            self.chosen(pick).finish()
            self.done.add(self.chosen(pick).marker.run)

    @rule(seconds=st.sampled_from([1.0, 29.0, 59.0, 61.0, 91.0]))
    def wait(self, seconds: float) -> None:
        self.store.wait(seconds)

    @rule(lost=st.integers(0, 2), refused=st.integers(0, 2))
    def trouble(self, lost: int, refused: int) -> None:
        self.store.lost, self.store.refused = lost, refused

    @invariant()
    def at_most_one_may_change_the_cluster(self) -> None:
        assert len({held.marker.token for held in self.locks if held.is_held}) <= 1

    @invariant()
    def no_text_is_written_twice(self) -> None:
        assert len(set(self.store.texts)) == len(self.store.texts)


@pytest.mark.slow
def test_no_sequence_of_user_and_store_events_gives_two_holders() -> None:
    run_state_machine_as_test(
        Users,
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True,
                          suppress_health_check=list(HealthCheck)),
    )  # fmt: skip
