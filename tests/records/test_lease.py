"""Lease changes use compare-and-swap; after a refused or lost write, the store reads the lease again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from tests.support.claims import lease_at
from tradewind.records.lease import LEASE_FILE, Lease, LeaseTimes, Phase, lease_path, new_owner_id
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.runtime.driver.process_guard import POLL_S
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.swap import StoredObject, write_if

PATH = "memory://leases/out"


@pytest.fixture
def store() -> Iterator[LeaseStore]:
    MemoryFileSystem.store.clear()
    yield LeaseStore(PATH)
    MemoryFileSystem.store.clear()


def claim(attempt: int = 1, job: str = "") -> LeaseClaim:
    return LeaseClaim(attempt, job or f"job-{attempt}", "cluster", {"dag": "d", "try": 1}, "f" * 32, 30.0)


def claimed(store: LeaseStore, attempt: int = 1) -> HeldLease:
    held = store.claim(store.read(), claim(attempt))
    assert held is not None
    return held


def begun(store: LeaseStore) -> HeldLease:
    claimed(store)
    return store.take_over("job-1", "me")


def interrupted(*, before: Callable[[], object] = lambda: None, loses_answer: bool = False) -> LeaseStore:
    """Return the store with something that happens before its first write, or without the answer to that write."""
    interruptions = [before]

    def write(path: str, text: str, expected: str | None) -> StoredObject | None:
        if not interruptions:
            return write_if(path, text, expected)
        interruptions.pop()()
        written = write_if(path, text, expected)
        if loses_answer:
            raise StoreUnavailableError("no answer")
        return written

    return LeaseStore(PATH, write=write)


# ---- lease values


def test_a_lease_is_the_same_after_it_was_written_and_read() -> None:
    lease = Lease(
        new_owner_id(), 12.5, Phase.COMMITTED, 3, "job", "cluster", {"dag": "d"}, "v", 7.0, "me", "abc", "a/b", {"x": 1}
    )
    lease = replace(lease, removing={"gc": "ada"}, counter=9)
    assert Lease.from_json(lease.to_json()) == lease
    later_version = {**json.loads(lease.to_json()), "later": True}
    assert Lease.from_json(json.dumps(later_version)) == lease


def test_lease_keeps_the_fields_that_marin_reads_and_writes() -> None:
    fields = json.loads(Lease("me", 12.5, Phase.RUNNING).to_json())
    assert (fields["worker_id"], fields["timestamp"]) == ("me", 12.5)
    assert lease_path("gs://b/out") == f"gs://b/out/{LEASE_FILE}" == "gs://b/out/.executor_status.lock"
    lease = Lease.from_json('{"worker_id": "theirs", "timestamp": 5.0}')
    assert lease.written_by_marin and lease.is_live
    assert (lease.stale_s, lease.worker_id) == (90.0, "theirs")


@pytest.mark.parametrize("phase", list(Phase))
def test_only_claimed_and_running_leases_are_live(phase: Phase) -> None:
    assert Lease("me", 0.0, phase).is_live is (phase in (Phase.CLAIMED, Phase.RUNNING))


def test_attempt_job_or_owner_identify_lease_counter_does_not() -> None:
    lease = Lease("me", 0.0, Phase.RUNNING, 1, "job", incarnation="owner")
    assert lease.is_same_attempt(lease.renewed(5.0, stop_requested={"try": 2}))
    for other in ({"attempt": 2}, {"job": "other"}, {"incarnation": "other"}, {"worker_id": "other"}):
        assert not lease.is_same_attempt(replace(lease, **other))


# ---- claims


def test_only_first_claim_over_the_same_lease_wins(store: LeaseStore) -> None:
    assert store.read() is None
    first, second = store.claim(None, claim(1, "a")), store.claim(None, claim(1, "b"))
    assert first is not None and second is None
    assert lease_at(PATH) == first.lease
    assert (first.lease.phase, first.lease.job, first.lease.counter) == (Phase.CLAIMED, "a", 1)
    store.change(first)
    assert store.claim(first, claim(2)) is None, "it has changed since"
    assert lease_at(PATH).attempt == 1


def test_claim_continues_counter_and_drops_earlier_attempt(store: LeaseStore) -> None:
    claimed(store)
    store.request_stop("job-1", {"try": 1})
    over = store.change(store.take_over("job-1", "owner"), phase=Phase.COMMITTED, digest="abc", witness="w")
    lease = claimed(store, 2).lease
    assert (lease.attempt, lease.counter, lease.worker_id == over.lease.worker_id) == (2, over.lease.counter + 1, False)
    assert (lease.digest, lease.witness, lease.incarnation, lease.stop_requested) == (None, None, None, None)


# ---- owners


def test_owner_takes_claimed_lease_over_only_once(store: LeaseStore) -> None:
    held = begun(store)
    assert (held.lease.phase, held.lease.incarnation) == (Phase.RUNNING, "me")
    assert store.take_over("job-1", "me").lease == held.lease  # the answer to the first call was lost
    with pytest.raises(LeaseLostError, match="is running already"):
        store.take_over("job-1", "another")


def test_owner_of_replaced_job_superseded_before_any_write(store: LeaseStore) -> None:
    with pytest.raises(LeaseLostError, match="is not for job 'job-1'"):
        store.take_over("job-1", "me")
    claimed(store)
    before = claimed(store, 2).lease
    with pytest.raises(LeaseLostError, match="is not for job 'job-1'"):
        store.take_over("job-1", "me")
    assert lease_at(PATH) == before


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.FAILED, Phase.STOPPED])
def test_ended_attempt_is_not_taken_over(store: LeaseStore, phase: Phase) -> None:
    store.change(claimed(store), phase=phase)
    with pytest.raises(LeaseLostError, match=f"is {phase.value} already"):
        store.take_over("job-1", "me")


def test_takeover_succeeds_during_concurrent_follower_renewal(store: LeaseStore) -> None:
    seen = claimed(store)
    held = interrupted(before=lambda: store.change(seen)).take_over("job-1", "me")
    assert (held.lease.phase, held.lease.counter) == (Phase.RUNNING, 3)


def test_follower_loses_the_lease_to_the_owner(store: LeaseStore) -> None:
    seen = claimed(store)
    store.take_over("job-1", "me")
    with pytest.raises(LeaseLostError):
        store.change(seen)
    assert lease_at(PATH).phase is Phase.RUNNING


def test_renewal_keeps_concurrent_stop_request(store: LeaseStore) -> None:
    held = begun(store)
    store.request_stop("job-1", {"try": 2})
    renewed = store.change(held)
    assert (renewed.lease.stop_requested, renewed.lease.counter) == ({"try": 2}, 4)


def test_a_commit_after_a_lost_lease_changes_nothing(store: LeaseStore) -> None:
    held = begun(store)
    before = claimed(store, 2).lease
    with pytest.raises(LeaseLostError):
        store.change(held, phase=Phase.COMMITTED, digest="abc")
    assert lease_at(PATH) == before


# ---- lost answers


@pytest.mark.parametrize("changes", [{}, {"phase": Phase.COMMITTED, "digest": "abc", "witness": None}])
def test_write_with_lost_answer_succeeds_on_retry(store: LeaseStore, changes: dict[str, Any]) -> None:
    held, faulty = begun(store), interrupted(loses_answer=True)
    with pytest.raises(StoreUnavailableError):
        faulty.change(held, **changes)
    again = faulty.change(held, **changes)
    assert (again.lease, again.lease.counter) == (lease_at(PATH), 3 if changes else 4)


def test_another_end_than_the_one_that_arrived_is_refused(store: LeaseStore) -> None:
    held, faulty = begun(store), interrupted(loses_answer=True)
    with pytest.raises(StoreUnavailableError):
        faulty.change(held, phase=Phase.COMMITTED, digest="abc")
    for changes in ({"phase": Phase.STOPPED}, {}):
        with pytest.raises(LeaseLostError, match="has ended"):
            faulty.change(held, **changes)
    assert lease_at(PATH).phase is Phase.COMMITTED


# ---- stop requests


def test_first_stop_request_of_the_running_attempt_is_kept(store: LeaseStore) -> None:
    assert store.request_stop("job-1", {}) is None
    claimed(store)
    assert store.request_stop("job-2", {}) is None
    assert store.request_stop("job-1", {"try": 1}) is not None
    again = store.request_stop("job-1", {"try": 2})
    assert again is not None and (again.lease.stop_requested, again.lease.counter) == ({"try": 1}, 2)
    store.change(again, phase=Phase.FAILED)
    assert store.request_stop("job-1", {}) is None


def test_unstarted_attempt_can_be_ended_and_never_starts(store: LeaseStore) -> None:
    claimed(store)
    assert not store.end_unstarted("job-2", Phase.STOPPED)
    assert lease_at(PATH).phase is Phase.CLAIMED
    assert store.end_unstarted("job-1", Phase.STOPPED)
    assert store.end_unstarted("job-1", Phase.STOPPED)  # a repeated call succeeds
    with pytest.raises(LeaseLostError):
        store.take_over("job-1", "me")
    assert not store.end_unstarted("job-1", Phase.FAILED)


def test_owned_attempt_is_not_ended_as_unstarted(store: LeaseStore) -> None:
    begun(store)
    assert not store.end_unstarted("job-1", Phase.STOPPED)
    assert not store.end_unstarted("job-2", Phase.STOPPED)
    assert lease_at(PATH).phase is Phase.RUNNING


# ---- clocks


def test_machine_clock_recorded_but_not_used_for_lease_age(store: LeaseStore) -> None:
    past, future = LeaseStore(PATH, now=lambda: 0.0), LeaseStore(PATH, now=lambda: 1e12)
    held = future.change(claimed(past))
    assert held.lease.timestamp == 1e12
    seen = past.read()
    assert seen is not None and seen.age_s < 5.0


def test_lease_age_measured_from_before_its_write(store: LeaseStore) -> None:
    times = iter([10.0, 50.0])
    timed = LeaseStore(PATH, clock=lambda: next(times))
    held = timed.claim(None, claim())
    assert held is not None and held.written_at == 10.0
    seen = timed.read()
    assert seen is not None and seen.written_at == 50.0 - seen.age_s


# ---- times: fencing ends an owner before another process may take over


HEARTBEATS = st.floats(1.0, 3600.0)


@pytest.mark.slow
@given(HEARTBEATS, st.floats(0.0, 3600.0), st.floats(0.0, 3600.0))
def test_polls_and_graceful_shutdown_fit_before_takeover(
    heartbeat_s: float, grace_s: float, stop_requested_at: float
) -> None:
    times = LeaseTimes(heartbeat_s)
    driver_ends = times.fence_s + times.fence_poll_s
    guard_ends = min(stop_requested_at + grace_s, times.fence_s) + POLL_S  # fencing limits the grace period
    assert max(driver_ends, guard_ends) <= times.kill_s < times.stale_s


@given(HEARTBEATS)
def test_owner_can_renew_and_poll_before_fencing(heartbeat_s: float) -> None:
    times = LeaseTimes(heartbeat_s)
    assert heartbeat_s + times.poll_s < times.fence_s
    assert times.kill_s == 1.25 * times.fence_s  # hosts know only the fencing interval


@given(HEARTBEATS)
def test_lease_has_the_times_of_its_own_heartbeat(heartbeat_s: float) -> None:
    lease, times = Lease("me", 0.0, heartbeat_s=heartbeat_s), LeaseTimes(heartbeat_s)
    assert (lease.fence_s, lease.stale_s) == (times.fence_s, times.stale_s)


def test_default_lease_times_match_marin_thirty_second_heartbeat() -> None:
    assert (LeaseTimes().fence_s, LeaseTimes().kill_s, LeaseTimes().stale_s) == (60.0, 75.0, 90.0)
