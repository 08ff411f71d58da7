"""A lease owner renews its lease and stops before another process may take it over."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.waiting import until
from tradewind.attempts.renewal import LeaseEndReason, LeaseRenewer
from tradewind.machine import boot_time
from tradewind.records.lease import Lease, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.swap import StoredObject, read_stored, write_if

PATH = "memory://kept/out"
QUICK_S = 0.12
PATIENCE_S = 30.0


class Clock:
    """Clock that changes only when the test sets it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Faults:
    """Store under fault injection: it raises errors, or hangs until the test releases it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.refused = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.hangs = threading.Event()

    def read(self, path: str) -> StoredObject | None:
        self._pass()
        return read_stored(path)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        self._pass()
        return write_if(path, text, expected)

    def _pass(self) -> None:
        if not self.goes_on.is_set():
            self.hangs.set()
            self.goes_on.wait(PATIENCE_S)
        if (error := self.error) is not None:
            self.refused += 1
            raise error


@pytest.fixture
def faults() -> Iterator[Faults]:
    MemoryFileSystem.store.clear()
    faults = Faults()
    yield faults
    faults.goes_on.set()
    MemoryFileSystem.store.clear()


def begun(
    faults: Faults, heartbeat_s: float = 30.0, clock: Callable[[], float] = boot_time
) -> tuple[LeaseStore, HeldLease]:
    store = LeaseStore(PATH, clock=clock, read=faults.read, write=faults.write)
    assert store.claim(store.read(), LeaseClaim(1, "job", "", {}, "v", heartbeat_s)) is not None
    return store, store.take_over("job", "me")


def take_over() -> None:
    store = LeaseStore(PATH)
    assert store.claim(store.read(), LeaseClaim(2, "job-2", "", {}, "v")) is not None


def lease() -> Lease:
    held = LeaseStore(PATH).read()
    assert held is not None
    return held.lease


def until_renewed(clock: Clock) -> None:
    """Advance the clock by a heartbeat interval and wait for the renewal."""
    counter = lease().counter
    clock.time += 1.5 * QUICK_S
    until(lambda: lease().counter > counter)


def test_it_renews_until_the_end_of_the_block_and_not_after(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, QUICK_S, clock)
    ends: list[LeaseEndReason] = []
    others = set(threading.enumerate())
    with LeaseRenewer(store, held, ends.append):
        for _ in range(3):
            until_renewed(clock)
    until(lambda: set(threading.enumerate()) <= others)  # the renewer's thread has ended
    assert ends == []


def test_it_reads_more_often_than_it_renews(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    keeper = LeaseRenewer(store, held, lambda end: None)
    for seconds, renewals in ((5.0, 0), (29.0, 0), (30.0, 1), (59.0, 1), (60.0, 2)):
        clock.time = 1000.0 + seconds
        keeper.check_lease()
        assert lease().counter == held.lease.counter + renewals


def test_it_commits_and_then_leaves_the_lease_alone(faults: Faults) -> None:
    store, held = begun(faults, QUICK_S, Clock())
    others = set(threading.enumerate())
    with LeaseRenewer(store, held, lambda end: None) as keeper:
        committed = keeper.finish(phase=Phase.COMMITTED, digest="abc")
        until(lambda: set(threading.enumerate()) <= others)
        assert lease() == committed.lease
    assert (committed.lease.phase, keeper.end) == (Phase.COMMITTED, None)


def test_renewal_listener_is_notified_when_lease_ends(faults: Faults) -> None:
    store, held = begun(faults)
    heard: list[float] = []
    with LeaseRenewer(store, held, lambda end: None, heard.append) as keeper:
        keeper.finish(phase=Phase.COMMITTED, digest="abc")
    assert heard == [held.written_at, math.inf], "nothing is cut off any more"


def test_stop_request_is_obeyed_with_renewals_until_work_ends(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, QUICK_S, clock)
    ends: list[LeaseEndReason] = []
    with LeaseRenewer(store, held, ends.append) as keeper:
        LeaseStore(PATH).request_stop("job", {"try": 2})
        until(lambda: ends)
        for _ in range(2):
            until_renewed(clock)
        assert keeper.finish(phase=Phase.STOPPED).lease.stop_requested == {"try": 2}
    assert ends == [LeaseEndReason.STOP_REQUESTED]


def test_it_finds_a_request_of_the_time_before_it_began(faults: Faults) -> None:
    store = LeaseStore(PATH, read=faults.read, write=faults.write)
    store.claim(None, LeaseClaim(1, "job", "", {}, "v"))
    store.request_stop("job", {"try": 2})
    ends: list[LeaseEndReason] = []
    LeaseRenewer(store, store.take_over("job", "me"), ends.append).check_lease()
    assert ends == [LeaseEndReason.STOP_REQUESTED]


def test_lease_owner_stops_writing_after_takeover(faults: Faults) -> None:
    store, held = begun(faults, QUICK_S, Clock())
    ends: list[LeaseEndReason] = []
    with LeaseRenewer(store, held, ends.append) as keeper:
        take_over()
        taken = lease()
        until(lambda: ends)
        with pytest.raises(LeaseLostError):
            keeper.finish(phase=Phase.COMMITTED, digest="abc")
    assert (ends, keeper.end, lease()) == ([LeaseEndReason.LOST], LeaseEndReason.LOST, taken)


def test_commit_detects_lost_lease_before_next_check(faults: Faults) -> None:
    store, held = begun(faults)
    with LeaseRenewer(store, held, lambda end: None) as keeper:
        take_over()
        taken = lease()
        with pytest.raises(LeaseLostError):
            keeper.finish(phase=Phase.COMMITTED, digest="abc")
    assert lease() == taken


TROUBLES = [StoreUnavailableError("503"), StoreRefusedError("403")]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_store_outage_shorter_than_fencing_interval_is_survived(faults: Faults, trouble: Exception) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    ends: list[LeaseEndReason] = []
    keeper = LeaseRenewer(store, held, ends.append)
    faults.error, clock.time = trouble, 1059.0
    keeper.check_lease()
    keeper.fence()
    faults.error = None
    keeper.check_lease()
    clock.time = 1118.0
    keeper.fence()
    assert ends == []
    assert keeper.finish(phase=Phase.COMMITTED).lease.phase is Phase.COMMITTED


@pytest.mark.parametrize("trouble", TROUBLES)
def test_store_outage_beyond_fencing_interval_fences_owner(faults: Faults, trouble: Exception) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    ends: list[LeaseEndReason] = []
    keeper = LeaseRenewer(store, held, ends.append)
    faults.error, clock.time = trouble, 1060.0
    keeper.check_lease()
    keeper.fence()
    keeper.fence()
    assert ends == [LeaseEndReason.FENCED]
    faults.error = None
    with pytest.raises(LeaseLostError):
        keeper.finish(phase=Phase.COMMITTED)
    assert lease().phase is Phase.RUNNING


def test_commit_is_refused_past_fencing_deadline(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    keeper = LeaseRenewer(store, held, lambda end: None)
    clock.time = 1060.0  # the owner was frozen past its fencing deadline
    with pytest.raises(LeaseLostError):
        keeper.finish(phase=Phase.COMMITTED)


def test_no_removal_or_write_past_fencing_deadline(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    keeper = LeaseRenewer(store, held, lambda end: None)
    keeper.check()
    clock.time += held.lease.fence_s
    assert keeper.end is None
    with pytest.raises(LeaseLostError):
        keeper.check()


def test_late_renewal_does_not_allow_commit_after_fencing(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    keeper = LeaseRenewer(store, held, lambda end: None)
    clock.time += 59.0
    faults.goes_on.clear()
    looking = threading.Thread(target=keeper.check_lease)
    looking.start()
    assert faults.hangs.wait(PATIENCE_S)
    clock.time += 1.0
    keeper.fence()
    faults.goes_on.set()
    looking.join()
    assert keeper.end is LeaseEndReason.FENCED and not keeper.is_over, "it was asked for in time"
    with pytest.raises(LeaseLostError):
        keeper.finish(phase=Phase.COMMITTED)


def test_who_has_lost_its_turn_removes_and_writes_nothing_more(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    keeper = LeaseRenewer(store, held, lambda end: None)
    take_over()
    keeper.check_lease()
    with pytest.raises(LeaseLostError):
        keeper.check()


def test_lease_ended_by_another_process_is_lost_at_next_check(faults: Faults) -> None:
    store, held = begun(faults)
    ends: list[LeaseEndReason] = []
    LeaseStore(PATH).change(held, phase=Phase.STOPPED)
    LeaseRenewer(store, held, ends.append).check_lease()
    assert ends == [LeaseEndReason.LOST]


def test_a_store_that_hangs_does_not_keep_it_from_fencing(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, QUICK_S, clock)
    ends: list[LeaseEndReason] = []
    with LeaseRenewer(store, held, ends.append):
        faults.goes_on.clear()
        assert faults.hangs.wait(PATIENCE_S)
        clock.time += held.lease.fence_s
        until(lambda: ends)
        assert ends == [LeaseEndReason.FENCED]
        faults.goes_on.set()


def test_time_spent_asleep_between_claim_and_keeper_counts(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)
    clock.time = 1061.0
    ends: list[LeaseEndReason] = []
    LeaseRenewer(store, held, ends.append).fence()
    assert ends == [LeaseEndReason.FENCED]


def test_renewal_counts_from_request_not_response(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, clock=clock)

    def slow(path: str, text: str, expected: str | None) -> StoredObject | None:
        written = write_if(path, text, expected)
        clock.time += 25.0
        return written

    store = LeaseStore(PATH, clock=clock, read=faults.read, write=slow)
    ends: list[LeaseEndReason] = []
    keeper = LeaseRenewer(store, held, ends.append)
    clock.time = 1030.0
    keeper.check_lease()
    clock.time = 1089.0
    keeper.fence()
    assert ends == []
    clock.time = 1090.0
    keeper.fence()
    assert ends == [LeaseEndReason.FENCED]


def test_commit_with_lost_response_is_not_a_lost_lease(faults: Faults) -> None:
    store, held = begun(faults)
    lost = [True]

    def unheard(path: str, text: str, expected: str | None) -> StoredObject | None:
        written = write_if(path, text, expected)
        if lost.pop() if lost else False:
            raise StoreUnavailableError("no answer")
        return written

    keeper = LeaseRenewer(LeaseStore(PATH, read=faults.read, write=unheard), held, lambda end: None)
    with pytest.raises(StoreUnavailableError):
        keeper.finish(phase=Phase.COMMITTED, digest="abc")
    keeper.check_lease()  # the owner reads a lease that its unanswered write has ended
    assert keeper.finish(phase=Phase.COMMITTED, digest="abc").lease == lease()


def test_one_refusal_does_not_end_the_thread_that_renews(faults: Faults) -> None:
    clock = Clock()
    store, held = begun(faults, QUICK_S, clock)
    ends: list[LeaseEndReason] = []
    with LeaseRenewer(store, held, ends.append):
        faults.error = StoreRefusedError("403")
        until(lambda: faults.refused)
        faults.error = None
        until_renewed(clock)
    assert ends == []


def test_internal_error_ends_work_and_blocks_commit(faults: Faults) -> None:
    store, held = begun(faults)
    ends: list[LeaseEndReason] = []
    keeper = LeaseRenewer(store, held, ends.append)
    faults.error = TypeError("ours")
    keeper.check_lease()
    faults.error = None
    assert ends == [LeaseEndReason.BROKEN]
    for write in (keeper.finish, keeper.check):
        with pytest.raises(LeaseLostError):
            write()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_store_errors_are_retried_for_one_fencing_interval(faults: Faults, trouble: Exception) -> None:
    clock = Clock()
    store, held = begun(faults, heartbeat_s=0.5, clock=clock)
    keeper = LeaseRenewer(store, held, lambda end: None)
    asked: list[float] = []

    def refused() -> None:
        clock.time += 0.3
        asked.append(clock.time)
        raise trouble

    with pytest.raises(type(trouble)):
        keeper.retry_store(refused)
    assert asked[-1] - asked[0] == pytest.approx(1.2)  # the first multiple of 0.3 s past the fence
    assert keeper.retry_store(lambda: asked.append(0.0) or len(asked)) == 6


@pytest.mark.parametrize("final", [LeaseLostError("lost"), TypeError("ours")])
def test_what_is_no_trouble_of_the_store_is_not_tried_again(faults: Faults, final: Exception) -> None:
    store, held = begun(faults)
    calls: list[None] = []

    def fails() -> None:
        calls.append(None)
        raise final

    with pytest.raises(type(final)):
        LeaseRenewer(store, held, lambda end: None).retry_store(fails)
    assert len(calls) == 1
