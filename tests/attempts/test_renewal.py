"""A lease owner renews its lease and stops before another process may take it over."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.claims import lease_at
from tests.support.waiting import until
from tradewind.attempts.renewal import LeaseEndReason, LeaseRenewer
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.swap import StoredObject, read_stored, write_if

PATH = "memory://renewal/out"
QUICK_S = 0.12
TIMEOUT_S = 30.0
OUTAGES = [StoreUnavailableError("503"), StoreRefusedError("403")]


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
        self.refusals = 0
        self.answers = threading.Event()
        self.answers.set()
        self.is_hanging = threading.Event()

    def read(self, path: str) -> StoredObject | None:
        self._inject()
        return read_stored(path)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        self._inject()
        return write_if(path, text, expected)

    def _inject(self) -> None:
        if not self.answers.is_set():
            self.is_hanging.set()
            self.answers.wait(TIMEOUT_S)
        if (error := self.error) is not None:
            self.refusals += 1
            raise error


@pytest.fixture
def faults() -> Iterator[Faults]:
    MemoryFileSystem.store.clear()
    faults = Faults()
    yield faults
    faults.answers.set()
    MemoryFileSystem.store.clear()


class Owner:
    """An owner whose renewer begins ``idle_s`` after the attempt, and the reasons for which that ended the work."""

    def __init__(self, faults: Faults, heartbeat_s: float = 30.0, idle_s: float = 0.0) -> None:
        self.clock = Clock()
        self.store = LeaseStore(PATH, clock=self.clock, read=faults.read, write=faults.write)
        assert self.store.claim(None, LeaseClaim(1, "job", "", {}, "v", heartbeat_s)) is not None
        self.held = self.store.take_over("job", "me")
        self.clock.time += idle_s
        self.ends: list[LeaseEndReason] = []
        self.renewed: list[float] = []
        self.renewer = LeaseRenewer(self.store, self.held, self.ends.append, self.renewed.append)

    def await_renewal(self) -> None:
        """Advance the clock by a heartbeat interval and wait for the renewal."""
        counter = lease_at(PATH).counter
        self.clock.time += 1.5 * QUICK_S
        until(lambda: lease_at(PATH).counter > counter)

    def assert_may_not_write(self) -> None:
        before = lease_at(PATH)
        with pytest.raises(LeaseLostError):
            self.renewer.check()
        with pytest.raises(LeaseLostError):
            self.renewer.finish(phase=Phase.COMMITTED, digest="abc")
        assert lease_at(PATH) == before


def take_over() -> None:
    store = LeaseStore(PATH)
    assert store.claim(store.read(), LeaseClaim(2, "job-2", "", {}, "v")) is not None


def end_lease() -> None:
    assert (held := LeaseStore(PATH).read()) is not None
    LeaseStore(PATH).change(held, phase=Phase.STOPPED)


def test_it_renews_until_the_end_of_the_block_and_not_after(faults: Faults) -> None:
    owner, others = Owner(faults, QUICK_S), set(threading.enumerate())
    with owner.renewer:
        for _ in range(3):
            owner.await_renewal()
    until(lambda: set(threading.enumerate()) <= others)  # the renewer's threads have ended
    assert owner.ends == []


def test_it_reads_more_often_than_it_renews(faults: Faults) -> None:
    owner = Owner(faults)
    for seconds, renewals in ((5.0, 0), (29.0, 0), (30.0, 1), (59.0, 1), (60.0, 2)):
        owner.clock.time = 1000.0 + seconds
        owner.renewer.check_lease()
        assert lease_at(PATH).counter == owner.held.lease.counter + renewals


def test_commit_ends_renewal_and_notifies_listener(faults: Faults) -> None:
    owner, others = Owner(faults, QUICK_S), set(threading.enumerate())
    with owner.renewer:
        committed = owner.renewer.finish(phase=Phase.COMMITTED, digest="abc")
        until(lambda: set(threading.enumerate()) <= others)
        assert lease_at(PATH) == committed.lease
    assert (committed.lease.phase, owner.renewer.end) == (Phase.COMMITTED, None)
    assert owner.renewed == [owner.held.written_at, math.inf], "no process is fenced any more"


def test_stop_request_is_obeyed_with_renewals_until_work_ends(faults: Faults) -> None:
    owner = Owner(faults, QUICK_S)
    with owner.renewer:
        LeaseStore(PATH).request_stop("job", {"try": 2})
        until(lambda: owner.ends)
        for _ in range(2):
            owner.await_renewal()
        assert owner.renewer.finish(phase=Phase.STOPPED).lease.stop_requested == {"try": 2}
    assert owner.ends == [LeaseEndReason.STOP_REQUESTED]


def test_stop_request_from_before_the_start_is_obeyed(faults: Faults) -> None:
    store = LeaseStore(PATH, read=faults.read, write=faults.write)
    store.claim(None, LeaseClaim(1, "job", "", {}, "v"))
    store.request_stop("job", {"try": 2})
    ends: list[LeaseEndReason] = []
    LeaseRenewer(store, store.take_over("job", "me"), ends.append).check_lease()
    assert ends == [LeaseEndReason.STOP_REQUESTED]


def test_lease_owner_stops_writing_after_takeover(faults: Faults) -> None:
    owner = Owner(faults, QUICK_S)
    with owner.renewer:
        take_over()
        until(lambda: owner.ends)
        owner.assert_may_not_write()
    assert (owner.ends, owner.renewer.end) == ([LeaseEndReason.LOST], LeaseEndReason.LOST)


def test_commit_detects_lost_lease_before_next_check(faults: Faults) -> None:
    owner = Owner(faults)
    take_over()
    taken = lease_at(PATH)
    with owner.renewer, pytest.raises(LeaseLostError):
        owner.renewer.finish(phase=Phase.COMMITTED, digest="abc")
    assert lease_at(PATH) == taken


@pytest.mark.parametrize("change", [take_over, end_lease])
def test_lease_changed_by_another_process_is_lost_at_next_check(faults: Faults, change: Callable[[], None]) -> None:
    owner = Owner(faults)
    change()
    owner.renewer.check_lease()
    assert owner.ends == [LeaseEndReason.LOST]
    owner.assert_may_not_write()


@pytest.mark.parametrize("outage", OUTAGES)
def test_store_outage_shorter_than_fencing_interval_is_survived(faults: Faults, outage: Exception) -> None:
    owner = Owner(faults)
    faults.error, owner.clock.time = outage, 1059.0
    owner.renewer.check_lease()
    owner.renewer.fence()
    faults.error = None
    owner.renewer.check_lease()
    owner.clock.time = 1118.0
    owner.renewer.fence()
    assert owner.ends == []
    assert owner.renewer.finish(phase=Phase.COMMITTED).lease.phase is Phase.COMMITTED


@pytest.mark.parametrize("outage", OUTAGES)
def test_store_outage_beyond_fencing_interval_fences_owner(faults: Faults, outage: Exception) -> None:
    owner = Owner(faults)
    faults.error, owner.clock.time = outage, 1060.0
    owner.renewer.check_lease()
    owner.renewer.fence()
    owner.renewer.fence()
    assert owner.ends == [LeaseEndReason.FENCED]
    faults.error = None
    owner.assert_may_not_write()
    assert lease_at(PATH).phase is Phase.RUNNING


def test_owner_frozen_since_start_may_not_write_past_deadline(faults: Faults) -> None:
    owner = Owner(faults, idle_s=59.0)
    owner.renewer.check()
    owner.clock.time += 1.0
    owner.assert_may_not_write()
    assert owner.renewer.end is None
    owner.renewer.fence()
    assert owner.ends == [LeaseEndReason.FENCED]


def test_late_renewal_does_not_allow_commit_after_fencing(faults: Faults) -> None:
    owner = Owner(faults)
    owner.clock.time += 59.0
    faults.answers.clear()
    renewal = threading.Thread(target=owner.renewer.check_lease)
    renewal.start()
    assert faults.is_hanging.wait(TIMEOUT_S)
    owner.clock.time += 1.0
    owner.renewer.fence()
    faults.answers.set()
    renewal.join()
    assert owner.renewer.end is LeaseEndReason.FENCED and not owner.renewer.is_over, "the renewal began in time"
    owner.assert_may_not_write()


def test_hanging_store_does_not_delay_fencing(faults: Faults) -> None:
    owner = Owner(faults, QUICK_S)
    with owner.renewer:
        faults.answers.clear()
        assert faults.is_hanging.wait(TIMEOUT_S)
        owner.clock.time += owner.held.lease.fence_s
        until(lambda: owner.ends)
        assert owner.ends == [LeaseEndReason.FENCED]
        faults.answers.set()


def test_renewal_counts_from_request_not_response(faults: Faults) -> None:
    owner = Owner(faults)

    def write_slowly(path: str, text: str, expected: str | None) -> StoredObject | None:
        written = write_if(path, text, expected)
        owner.clock.time += 25.0
        return written

    store = LeaseStore(PATH, clock=owner.clock, read=faults.read, write=write_slowly)
    renewer = LeaseRenewer(store, owner.held, owner.ends.append)
    owner.clock.time = 1030.0
    renewer.check_lease()
    owner.clock.time = 1089.0
    renewer.fence()
    assert owner.ends == []
    owner.clock.time = 1090.0
    renewer.fence()
    assert owner.ends == [LeaseEndReason.FENCED]


def test_commit_with_lost_response_is_not_a_lost_lease(faults: Faults) -> None:
    owner, responses = Owner(faults), iter([StoreUnavailableError("no answer")])

    def lose_first_response(path: str, text: str, expected: str | None) -> StoredObject | None:
        written = write_if(path, text, expected)
        if error := next(responses, None):
            raise error
        return written

    store = LeaseStore(PATH, clock=owner.clock, read=faults.read, write=lose_first_response)
    renewer = LeaseRenewer(store, owner.held, owner.ends.append)
    with pytest.raises(StoreUnavailableError):
        renewer.finish(phase=Phase.COMMITTED, digest="abc")
    renewer.check_lease()  # the owner reads a lease that its unanswered write has ended
    assert renewer.finish(phase=Phase.COMMITTED, digest="abc").lease == lease_at(PATH)


def test_one_refusal_does_not_end_the_thread_that_renews(faults: Faults) -> None:
    owner = Owner(faults, QUICK_S)
    with owner.renewer:
        faults.error = StoreRefusedError("403")
        until(lambda: faults.refusals)
        faults.error = None
        owner.await_renewal()
    assert owner.ends == []


def test_internal_error_ends_work_and_blocks_commit(faults: Faults) -> None:
    owner = Owner(faults)
    faults.error = TypeError("internal")
    owner.renewer.check_lease()
    faults.error = None
    assert owner.ends == [LeaseEndReason.BROKEN]
    owner.assert_may_not_write()


@pytest.mark.slow
@pytest.mark.parametrize("outage", OUTAGES)
def test_store_errors_are_retried_for_one_fencing_interval(faults: Faults, outage: Exception) -> None:
    owner, calls = Owner(faults, heartbeat_s=0.5), []

    def fail() -> None:
        owner.clock.time += 0.3
        calls.append(owner.clock.time)
        raise outage

    with pytest.raises(type(outage)):
        owner.renewer.retry_store(fail)
    assert calls[-1] - calls[0] == pytest.approx(1.2)  # the first multiple of 0.3 s past the fence
    assert owner.renewer.retry_store(lambda: len(calls)) == 5


@pytest.mark.parametrize("final", [LeaseLostError("lost"), TypeError("internal")])
def test_other_errors_are_not_retried(faults: Faults, final: Exception) -> None:
    calls = []

    def fail() -> None:
        calls.append(None)
        raise final

    with pytest.raises(type(final)):
        Owner(faults).renewer.retry_store(fail)
    assert len(calls) == 1
