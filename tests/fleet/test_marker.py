"""Cluster lock: one operation changes a cluster at a time, even if lock owners die.

A later operation completes an interrupted one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.fleet.fleets import write_fleet
from tests.support.waiting import until
from tradewind.fleet.fleet_file import load_fleet
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

TIMES = LeaseTimes()
QUICK_S = 0.1


@dataclass
class Store:
    """One object in a store with its own clock, which loses answers on request."""

    now: float = 1000.0
    text: str | None = None
    written_at: float = 0.0
    texts: list[str] = field(default_factory=list)
    lost: int = 0
    """Number of writes that succeed but lose their answers."""
    refused: int = 0
    """Number of writes that the store refuses."""
    slow_s: float = 0.0
    """Delay of an answer."""

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

    def marker(self, clock: Callable[[], float] | None = None) -> ClusterLock:
        def pause(seconds: float) -> None:
            self.now += seconds

        clock = clock or (lambda: self.now)
        return ClusterLock("here", "marker", now=clock, clock=clock, read=self.read, write=self.write, pause=pause)


def taken(store: Store, operation: str = "restart", who: str = "ann@laptop", **more: Any) -> HeldClusterLock:
    return store.marker().take(operation, "stop", holder=who, **more)


# ---- one at a time


def test_busy_lock_reports_holder_since_and_until() -> None:
    store = Store()
    taken(store)
    store.now += 60.0
    with pytest.raises(ClusterBusyError) as busy:
        taken(store, "stop", "bob@desk")
    at = [time.strftime("%H:%M:%S", time.localtime(moment)) for moment in (1000.0, 1000.0 + TIMES.stale_s)]
    assert "Cluster here: ann@laptop is at restart since" in str(busy.value) and "phase stop" in str(busy.value)
    assert at[0] in str(busy.value) and f"{at[1]} at least. Nothing was done" in str(busy.value)


def test_what_is_done_leaves_the_cluster_to_the_next_operation() -> None:
    store = Store()
    first = taken(store)
    first.finish()
    second = taken(store, "start", "bob@desk")
    assert not second.is_resumed and second.marker.run != first.marker.run and second.marker.holder == "bob@desk"
    with pytest.raises(MarkerLostError):
        first.check()


def test_of_two_that_take_it_at_once_one_has_it() -> None:
    store = Store()
    slow = store.marker()
    read = slow._read
    winners: list[HeldClusterLock] = []

    def meanwhile(path: str) -> StoredObject | None:
        found = read(path)
        if not winners:
            winners.append(taken(store, who="bob@desk"))
        return found

    slow._read = meanwhile
    with pytest.raises(ClusterBusyError, match="bob@desk is at restart"):
        slow.take("restart", "stop")
    assert winners[0].is_held


def _race(path: str, number: int, barrier: Any, won: Any) -> None:
    barrier.wait()
    try:
        ClusterLock("here", path).take("restart", "stop", holder=str(number))
        won.put(number)
    except ClusterBusyError:
        won.put(None)


@pytest.mark.slow
def test_of_four_processes_that_take_it_at_once_one_has_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(4), context.Queue()
    path = str(tmp_path / "marker.json")
    processes = [context.Process(target=_race, args=(path, number, barrier, won)) for number in range(4)]
    for process in processes:
        process.start()
    winners = [number for number in (won.get(timeout=60) for _ in processes) if number is not None]
    for process in processes:
        process.join()
    found = ClusterLock("here", path).read()
    assert found is not None and [found.marker.holder] == [str(number) for number in winners]


# ---- renewal and expiry


def test_it_is_held_for_as_long_as_it_is_renewed() -> None:
    store = Store()
    held = taken(store)
    for _ in range(10):
        store.now += TIMES.fence_s - 1.0
        held.renew()
    assert held.is_held
    with pytest.raises(ClusterBusyError):
        taken(store)


def test_holder_that_cannot_renew_is_fenced_well_before_stale() -> None:
    store = Store()
    held = taken(store)
    store.now += TIMES.fence_s
    with pytest.raises(MarkerLostError, match="could not be renewed in time"):
        held.check()
    with pytest.raises(MarkerLostError):
        held.advance("start")
    with pytest.raises(ClusterBusyError):
        taken(store)
    store.now += TIMES.stale_s - TIMES.fence_s + 1.0
    assert taken(store).is_resumed


def test_holder_counts_lease_from_start_of_its_write() -> None:
    store = Store(slow_s=TIMES.fence_s - 1.0)
    held = taken(store)
    store.now += 2.0
    assert not held.is_held
    store.now -= 2.0
    held.renew()
    store.now += 2.0
    assert not held.is_held


def test_a_wrong_clock_of_a_machine_moves_nothing() -> None:
    store = Store()
    held = store.marker(clock=lambda: store.now + 86_400.0).take("restart", "stop")
    with pytest.raises(ClusterBusyError):
        store.marker(clock=lambda: store.now - 86_400.0).take("restart", "stop")
    assert held.is_held


def _was_renewed(held: HeldClusterLock, since: int) -> bool:
    return held.marker.counter > since


def test_a_block_renews_it_and_leaves_what_is_not_done() -> None:
    store = Store()
    with store.marker().take("restart", "stop", heartbeat_s=QUICK_S) as held:
        first = held.marker.counter
        for number in range(3):
            store.now += 1.5 * QUICK_S
            until(partial(_was_renewed, held, first + number), "its renewal")
        held.check()
    found = store.marker().read()
    assert found is not None and found.marker.state is LockState.LEFT and found.is_interrupted


# ---- interruptions


def test_interrupted_operation_resumes_at_once_from_its_phase() -> None:
    store = Store()
    with pytest.raises(KeyboardInterrupt), taken(store) as held:
        held.advance("start", disk="kept")
        raise KeyboardInterrupt
    again = taken(store, who="bob@desk", details={"disk": "other"})
    assert again.is_resumed and again.marker.run == held.marker.run
    assert (again.marker.phase, again.marker.details) == ("start", {"disk": "kept"})


def test_new_operation_needs_interrupted_one_to_be_abandoned() -> None:
    store = Store()
    with taken(store) as held:
        held.advance("start")
    with pytest.raises(InterruptedOperationError, match=r"was interrupted in phase start\. Run 'restart' again"):
        taken(store, "apply")
    anew = taken(store, "apply", is_anew=True)
    assert not anew.is_resumed and anew.marker.run != held.marker.run and anew.marker.phase == "stop"


CHILD = """
import sys, time
from tradewind.fleet.lock import ClusterLock
with ClusterLock("here", sys.argv[1]).take("restart", "stop", heartbeat_s=float(sys.argv[2])) as held:
    held.advance("start", jobs=3)
    print(held.marker.run, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_lock_of_killed_holder_is_resumed_only_once_stale(tmp_path: Path) -> None:
    path = str(tmp_path / "marker.json")
    command = [sys.executable, "-c", CHILD, path, "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        run = child.stdout.readline().strip()
        os.kill(child.pid, signal.SIGKILL)
    refused: list[ClusterBusyError] = []

    def take() -> HeldClusterLock | None:
        try:
            return ClusterLock("here", path).take("restart", "stop")
        except ClusterBusyError as busy:
            refused.append(busy)
            return None

    held = until(take)
    assert refused and held is not None and held.is_resumed
    assert (held.marker.run, held.marker.phase, held.marker.details) == (run, "start", {"jobs": 3})


# ---- a store that fails


def test_a_lost_answer_is_no_loss() -> None:
    store = Store()
    held = taken(store)
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


def test_finish_with_lost_response_counts_despite_next_operation() -> None:
    store = Store()
    held, other = taken(store), store.marker()
    store.lost = 1
    began: list[HeldClusterLock] = []
    held._store.pause = lambda seconds: began.append(other.take("start", "begin"))
    held.finish()
    ends = [json.loads(text)["operation"] for text in store.texts if json.loads(text)["state"] == "done"]
    assert ends == ["restart"] and began[0].is_held
    with pytest.raises(MarkerLostError):
        held.check()


def test_a_store_that_refuses_for_too_long_ends_the_work() -> None:
    store = Store()
    held = taken(store)
    store.refused = 1000
    with pytest.raises(StoreUnavailableError):
        held.advance("start")
    assert not held.is_held and store.now < 1000.0 + TIMES.stale_s


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"' + "x" * 100, "[" * 100_000, '{"operation": 1}', "{}", json.dumps({"state": "gone"})]
)
def test_what_is_no_marker_is_neither_taken_over_nor_followed(text: str, tmp_path: Path) -> None:
    file = tmp_path / "marker.json"
    file.write_text(text)
    with pytest.raises(BadRecordError, match=r"marker\.json cannot be read, because .* Make sure that no user"):
        ClusterLock("here", str(file)).take("restart", "stop")
    assert file.read_text() == text


@pytest.mark.parametrize("run", ["", "../other", "/tmp/abc", "..", "0" * 31, "0" * 32 + "\n", "G" * 32, "-" * 32])
def test_lock_with_invalid_run_id_is_not_resumed(run: str) -> None:
    store = Store()
    taken(store).leave()
    assert store.text is not None
    store.write("marker", json.dumps({**json.loads(store.text), "run": run}), str(len(store.texts)))
    with pytest.raises(BadRecordError, match="run"):
        taken(store)


@pytest.mark.parametrize("field", ["operation", "phase", "holder", "token", "after"])
@pytest.mark.parametrize("text", ["a\nCluster here: all is well", "\x1b[2J", "a\u202eb", "a" * 301], ids=ascii)
def test_what_would_be_told_in_other_lines_is_no_marker(field: str, text: str) -> None:
    store = Store()
    taken(store).leave()
    assert store.text is not None
    store.write("marker", json.dumps({**json.loads(store.text), field: text}), str(len(store.texts)))
    with pytest.raises(BadRecordError, match=f"its {field} is not a short text of one line"):
        taken(store)


@pytest.mark.parametrize(
    "holder", ["a" * 1000, "run\nof a dag", "\u202e", "ü" * 300, "\ud800"], ids=lambda text: ascii(text)[:9]
)
def test_any_holder_name_is_readable_by_other_users(holder: str) -> None:
    store = Store()
    taken(store, who=holder).leave()
    assert taken(store, who="next").marker.holder == "next"


def test_each_cluster_has_its_own_in_its_bucket(tmp_path: Path) -> None:
    fleet = load_fleet(write_fleet(tmp_path))
    assert lock_path(fleet.cluster()) == "gs://my-bucket/.tradewind/clusters/here/marker.json"


# ---- everything at once


class Enemy(RuleBasedStateMachine):
    """Users take, renew, advance, freeze, die and finish in any order, on a store that loses answers."""

    people: ClassVar = ("ann", "bob", "cid")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.holdings: list[HeldClusterLock] = []
        self.last_phase: dict[str, str] = {}
        self.done: set[str] = set()

    @rule(who=st.sampled_from(people), operation=st.sampled_from(["stop", "restart"]), is_anew=st.booleans())
    def take(self, who: str, operation: str, is_anew: bool) -> None:
        try:
            held = taken(self.store, operation, who, is_anew=is_anew)
        except (ClusterBusyError, InterruptedOperationError, StoreUnavailableError):
            return
        if held.is_resumed:
            assert held.marker.operation == operation and held.marker.run not in self.done
            assert held.marker.phase == self.last_phase.get(held.marker.run, "stop")
        self.holdings.append(held)

    @rule(pick=st.integers(0, 9), phase=st.sampled_from(["drain", "start"]))
    def advance(self, pick: int, phase: str) -> None:
        if self.holdings:
            held = self.holdings[-1 - pick % len(self.holdings)]
            try:
                held.advance(phase)
            except (MarkerLostError, StoreUnavailableError):
                self._note_what_is_stored(held)
                return
            self.last_phase[held.marker.run] = phase

    @rule(pick=st.integers(0, 9))
    def renew(self, pick: int) -> None:
        if self.holdings:
            held = self.holdings[-1 - pick % len(self.holdings)]
            with suppress(MarkerLostError, StoreUnavailableError):
                held.renew()

    @rule(pick=st.integers(0, 9))
    def leave(self, pick: int) -> None:
        if self.holdings:
            self.holdings.pop(-1 - pick % len(self.holdings)).leave()

    @rule(pick=st.integers(0, 9))
    def finish(self, pick: int) -> None:
        if self.holdings:
            held = self.holdings[-1 - pick % len(self.holdings)]
            try:
                held.finish()
            except (MarkerLostError, StoreUnavailableError):
                return
            self.done.add(held.marker.run)

    @rule(seconds=st.sampled_from([1.0, 29.0, 59.0, 61.0, 91.0]))
    def wait(self, seconds: float) -> None:
        self.store.now += seconds

    @rule(lost=st.integers(0, 2), refused=st.integers(0, 2))
    def trouble(self, lost: int, refused: int) -> None:
        self.store.lost, self.store.refused = lost, refused

    @invariant()
    def at_most_one_may_change_the_cluster(self) -> None:
        at_work = [held for held in self.holdings if held.is_held]
        assert len({held.marker.token for held in at_work}) <= 1

    @invariant()
    def no_text_is_written_twice(self) -> None:
        assert len(set(self.store.texts)) == len(self.store.texts)

    def _note_what_is_stored(self, held: HeldClusterLock) -> None:
        stored = json.loads(self.store.texts[-1])
        if stored["run"] == held.marker.run:
            self.last_phase[held.marker.run] = stored["phase"]


@pytest.mark.slow
def test_no_sequence_of_user_and_store_events_gives_two_holders() -> None:
    run_state_machine_as_test(
        Enemy,
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True,
                          suppress_health_check=list(HealthCheck)),
    )  # fmt: skip
