"""Lease changes use compare-and-swap; after a refused or lost write, the store reads the lease again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.records.lease import LEASE_FILE, Lease, Phase, lease_path, new_owner_id
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.swap import StoredObject, read_stored, write_if

PATH = "memory://leases/out"


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


def claim(attempt: int = 1, job: str = "") -> LeaseClaim:
    return LeaseClaim(attempt, job or f"job-{attempt}", "cluster", {"dag": "d", "try": 1}, "f" * 32, 30.0)


def claimed(store: LeaseStore, attempt: int = 1) -> HeldLease:
    held = store.claim(store.read(), claim(attempt))
    assert held is not None
    return held


def read(store: LeaseStore) -> Lease:
    held = store.read()
    assert held is not None
    return held.lease


@dataclass
class Faulty:
    """A store that fails some writes."""

    before: Callable[[], object] | None = None
    lost_answers: int = 0
    refusals: int = 0

    def read(self, path: str) -> StoredObject | None:
        return read_stored(path)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        if self.before is not None:
            happen, self.before = self.before, None
            happen()
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailableError("503")
        written = write_if(path, text, expected)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailableError("no answer")
        return written


def through(faults: Faulty, **clocks: Any) -> LeaseStore:
    return LeaseStore(PATH, read=faults.read, write=faults.write, **clocks)


# ---- lease values


def test_a_lease_is_the_same_after_it_was_written_and_read() -> None:
    lease = Lease(
        new_owner_id(), 12.5, Phase.COMMITTED, 3, "job", "cluster", {"dag": "d"}, "v", 7.0, "me", "abc", "a/b", {"x": 1}
    )
    lease = replace(lease, removing={"gc": "ada"}, counter=9)
    assert Lease.from_json(lease.to_json()) == lease


def test_marins_executor_finds_the_fields_that_it_reads() -> None:
    fields = json.loads(Lease("me", 12.5, Phase.RUNNING).to_json())
    assert (fields["worker_id"], fields["timestamp"]) == ("me", 12.5)
    assert lease_path("gs://b/out") == f"gs://b/out/{LEASE_FILE}" == "gs://b/out/.executor_status.lock"


def test_a_lease_of_marins_has_no_phase_and_is_live() -> None:
    lease = Lease.from_json('{"worker_id": "theirs", "timestamp": 5.0}')
    assert lease.written_by_marin and lease.is_live
    assert (lease.stale_s, lease.worker_id) == (90.0, "theirs")


def test_fields_of_a_later_version_are_passed_over() -> None:
    lease = Lease("me", 1.0, Phase.CLAIMED, 2)
    assert Lease.from_json(json.dumps({**json.loads(lease.to_json()), "later": True})) == lease


def test_an_owner_ends_itself_well_before_others_may_take_over() -> None:
    lease = Lease("me", 0.0, heartbeat_s=30.0)
    assert (lease.fence_s, lease.stale_s) == (60.0, 90.0)


@pytest.mark.parametrize("phase", list(Phase))
def test_only_claimed_and_running_leases_are_live(phase: Phase) -> None:
    assert Lease("me", 0.0, phase).is_live is (phase in (Phase.CLAIMED, Phase.RUNNING))


def test_attempt_job_or_owner_identify_lease_counter_does_not() -> None:
    lease = Lease("me", 0.0, Phase.RUNNING, 1, "job", incarnation="keeper")
    assert lease.is_same_attempt(lease.renewed(5.0, stop_requested={"try": 2}))
    for other in ({"attempt": 2}, {"job": "other"}, {"incarnation": "other"}, {"worker_id": "other"}):
        assert not lease.is_same_attempt(replace(lease, **other))


# ---- claims


def test_of_two_who_claim_after_the_same_lease_one_wins() -> None:
    store = LeaseStore(PATH)
    assert store.read() is None
    first, second = store.claim(None, claim(1, "a")), store.claim(None, claim(1, "b"))
    assert first is not None and second is None
    assert read(store) == first.lease
    assert (first.lease.phase, first.lease.job, first.lease.counter) == (Phase.CLAIMED, "a", 1)


def test_a_claim_after_a_lease_that_has_changed_since_is_refused() -> None:
    store = LeaseStore(PATH)
    seen = claimed(store)
    store.change(seen)
    assert store.claim(seen, claim(2)) is None
    assert read(store).attempt == 1


def test_a_claim_goes_on_counting_and_forgets_the_turn_before() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    store.request_stop("job-1", {"try": 1})
    over = store.change(store.take_over("job-1", "keeper"), phase=Phase.COMMITTED, digest="abc", witness="w")
    lease = claimed(store, 2).lease
    assert (lease.attempt, lease.counter, lease.worker_id == over.lease.worker_id) == (2, over.lease.counter + 1, False)
    assert (lease.digest, lease.witness, lease.incarnation, lease.stop_requested) == (None, None, None, None)


# ---- renewals


def test_the_keeper_makes_a_claimed_lease_running_and_only_once() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    held = store.take_over("job-1", "me")
    assert (held.lease.phase, held.lease.incarnation) == (Phase.RUNNING, "me")
    assert store.take_over("job-1", "me").lease == held.lease  # the answer to the first call was lost
    with pytest.raises(LeaseLostError, match="is running already"):
        store.take_over("job-1", "another")


def test_owner_of_replaced_job_superseded_before_any_write() -> None:
    store = LeaseStore(PATH)
    with pytest.raises(LeaseLostError, match="is not for job 'job-1'"):
        store.take_over("job-1", "me")
    claimed(store)
    claimed(store, 2)
    before = read(store)
    with pytest.raises(LeaseLostError, match="is not for job 'job-1'"):
        store.take_over("job-1", "me")
    assert read(store) == before


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.FAILED, Phase.STOPPED])
def test_a_turn_that_has_ended_is_not_begun(phase: Phase) -> None:
    store = LeaseStore(PATH)
    store.change(claimed(store), phase=phase)
    with pytest.raises(LeaseLostError, match=f"is {phase.value} already"):
        store.take_over("job-1", "me")


def test_takeover_succeeds_during_concurrent_follower_renewal() -> None:
    seen = claimed(LeaseStore(PATH))
    store = through(Faulty(before=lambda: LeaseStore(PATH).change(seen)))
    held = store.take_over("job-1", "me")
    assert (held.lease.phase, held.lease.counter) == (Phase.RUNNING, 3)


def test_the_follower_loses_the_lease_to_the_keeper() -> None:
    store = LeaseStore(PATH)
    seen = claimed(store)
    store.take_over("job-1", "me")
    with pytest.raises(LeaseLostError):
        store.change(seen)
    assert read(store).phase is Phase.RUNNING


def test_renewal_keeps_concurrent_stop_request() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    held = store.take_over("job-1", "me")
    store.request_stop("job-1", {"try": 2})
    renewed = store.change(held)
    assert renewed.lease.stop_requested == {"try": 2}
    assert renewed.lease.counter == 4


def test_a_commit_after_a_lost_lease_changes_nothing() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    held = store.take_over("job-1", "me")
    claimed(store, 2)
    before = read(store)
    with pytest.raises(LeaseLostError):
        store.change(held, phase=Phase.COMMITTED, digest="abc")
    assert read(store) == before


# ---- lost answers


def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    faults = Faulty(lost_answers=1)
    claimed(LeaseStore(PATH))
    held = LeaseStore(PATH).take_over("job-1", "me")
    with pytest.raises(StoreUnavailableError):
        through(faults).change(held)
    assert through(faults).change(held).lease.counter == 4


def test_commit_with_lost_response_found_done_on_retry() -> None:
    claimed(LeaseStore(PATH))
    held = LeaseStore(PATH).take_over("job-1", "me")
    store = through(Faulty(lost_answers=1))
    with pytest.raises(StoreUnavailableError):
        store.change(held, phase=Phase.COMMITTED, digest="abc", witness=None)
    committed = store.change(held, phase=Phase.COMMITTED, digest="abc", witness=None)
    assert (committed.lease, committed.lease.counter) == (read(store), 3)


def test_another_end_than_the_one_that_arrived_is_refused() -> None:
    claimed(LeaseStore(PATH))
    held = LeaseStore(PATH).take_over("job-1", "me")
    store = through(Faulty(lost_answers=1))
    with pytest.raises(StoreUnavailableError):
        store.change(held, phase=Phase.COMMITTED, digest="abc")
    with pytest.raises(LeaseLostError, match="has ended"):
        store.change(held, phase=Phase.STOPPED)
    with pytest.raises(LeaseLostError, match="has ended"):
        store.change(held)
    assert read(store).phase is Phase.COMMITTED


# ---- stop requests


def test_the_first_request_to_stop_is_kept() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    assert store.request_stop("job-1", {"try": 1}) is not None
    again = store.request_stop("job-1", {"try": 2})
    assert again is not None and again.lease.stop_requested == {"try": 1}
    assert read(store).counter == 2


def test_stop_not_requested_for_other_or_ended_attempt() -> None:
    store = LeaseStore(PATH)
    assert store.request_stop("job-1", {}) is None
    held = claimed(store)
    assert store.request_stop("job-2", {}) is None
    store.change(held, phase=Phase.FAILED)
    assert store.request_stop("job-1", {}) is None


def test_unstarted_attempt_can_be_ended_and_never_starts() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    assert store.end_unstarted("job-1", Phase.STOPPED)
    assert store.end_unstarted("job-1", Phase.STOPPED)  # a repeated call succeeds
    with pytest.raises(LeaseLostError):
        store.take_over("job-1", "me")
    assert not store.end_unstarted("job-1", Phase.FAILED)


def test_lease_claimed_for_other_job_not_ended_as_unstarted() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    assert not store.end_unstarted("job-2", Phase.STOPPED)
    assert read(store).phase is Phase.CLAIMED


def test_a_turn_that_has_a_keeper_is_not_ended_by_others() -> None:
    store = LeaseStore(PATH)
    claimed(store)
    store.take_over("job-1", "me")
    assert not store.end_unstarted("job-1", Phase.STOPPED)
    assert not store.end_unstarted("job-2", Phase.STOPPED)
    assert read(store).phase is Phase.RUNNING


# ---- clocks


def test_machine_clock_recorded_but_not_used_for_lease_age() -> None:
    past, future = LeaseStore(PATH, now=lambda: 0.0), LeaseStore(PATH, now=lambda: 1e12)
    held = future.change(claimed(past))
    assert held.lease.timestamp == 1e12
    seen = past.read()
    assert seen is not None and seen.age_s < 5.0


def test_lease_age_measured_from_before_its_write() -> None:
    times = iter([10.0, 50.0])
    store = through(Faulty(), clock=lambda: next(times))
    held = store.claim(None, claim())
    assert held is not None and held.written_at == 10.0
    seen = store.read()
    assert seen is not None and seen.written_at == 50.0 - seen.age_s
