"""Start decisions of a step's task and next actions after its job ends, one case per row of the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tradewind.attempts.decisions import (
    CancelPrevious,
    Claim,
    Finished,
    InheritFailure,
    JobResult,
    NextAction,
    OwnershipUnknown,
    Reattach,
    RerunRequest,
    StartDecision,
    TaskIdentity,
    WaitForOwner,
    decide_start,
    is_same_task,
    next_action,
)
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, Status

ME = {"dag": "d", "run": "r", "task": "t", "map_index": -1, "try": 2, "max_tries": 3}
MY_EARLIER_TRY = {**ME, "try": 1}
ANOTHER = {**ME, "run": "other", "try": 1}
FRESH_S, STALE_S = 10.0, 91.0


def lease(phase: Phase | None, by: dict[str, Any] = ANOTHER, **fields: Any) -> Lease:
    return replace(Lease("w", 0.0, phase, 5, "job-5", by=by), **fields)


def record(phase: Phase | None, by: dict[str, Any] = ANOTHER, age_s: float = FRESH_S, **fields: Any) -> Record:
    return Record(None, lease(phase, by, **fields), age_s, has_output=True)


MARKED = record(Phase.COMMITTED, MY_EARLIER_TRY, removing={"gc": "ada"})
STOP_REQUESTED = record(Phase.RUNNING, MY_EARLIER_TRY, stop_requested={"try": 1})
DECISIONS = {
    "never attempted": (Record(), Claim()),
    "result": (record(Phase.COMMITTED), Finished),
    "result marked for removal": (MARKED, WaitForOwner),
    "result of Marin's": (Record(Status.SUCCESS, has_output=True), Finished(None)),
    "result whose output is gone": (replace(record(Phase.COMMITTED), has_output=False), Claim(withdraws=True)),
    "another task's, claimed": (record(Phase.CLAIMED), WaitForOwner),
    "another task's, running": (record(Phase.RUNNING), WaitForOwner),
    "Marin's, live": (record(None, {}), WaitForOwner),
    "another task's, stale": (record(Phase.RUNNING, age_s=STALE_S), Claim()),
    "another task's claim, stale": (record(Phase.CLAIMED, age_s=STALE_S), Claim()),
    "own earlier try's, claimed": (record(Phase.CLAIMED, MY_EARLIER_TRY), Reattach),
    "own earlier try's, running": (record(Phase.RUNNING, MY_EARLIER_TRY), Reattach),
    "own, stale": (record(Phase.RUNNING, MY_EARLIER_TRY, STALE_S), Claim()),
    "own, stop requested by a late kill": (STOP_REQUESTED, CancelPrevious),
    "own, cleared since": (record(Phase.RUNNING, {**MY_EARLIER_TRY, "max_tries": 2}), CancelPrevious),
    "own, cleared with fewer retries": (record(Phase.RUNNING, {**MY_EARLIER_TRY, "max_tries": 4}), CancelPrevious),
    "another mapped instance's": (record(Phase.RUNNING, {**ME, "map_index": 1}), WaitForOwner),
    "failed, not waited for": (record(Phase.FAILED), Claim()),
    "stopped": (record(Phase.STOPPED), Claim()),
}
"""Record -> the decision, or its type if it names the record's lease."""


@pytest.mark.parametrize(("found", "start"), DECISIONS.values(), ids=DECISIONS)
def test_start_decision_follows_record(found: Record, start: Any) -> None:
    expected = start(found.lease) if isinstance(start, type) else start
    assert decide_start(found, TaskIdentity(ME), RerunRequest()) == expected


def test_waiting_runs_inherit_failure_without_retry() -> None:
    failed = record(Phase.FAILED)
    assert decide_start(failed, TaskIdentity(ME, waited_for=5), RerunRequest()) == InheritFailure(failed.lease)
    assert decide_start(failed, TaskIdentity(ME, waited_for=4), RerunRequest()) == Claim()


def test_earlier_failure_is_inherited_when_retries_are_off() -> None:
    failed, task = record(Phase.FAILED), TaskIdentity(ME, retries_failures=False)
    assert decide_start(failed, task, RerunRequest()) == InheritFailure(failed.lease)
    assert decide_start(Record(Status.FAILED), task, RerunRequest()) == InheritFailure(None), "Marin's"
    assert decide_start(record(Phase.STOPPED), task, RerunRequest()) == Claim()


REUSE, AGAIN = Finished(lease(Phase.COMMITTED)), Claim(withdraws=True)
NOTE = RerunRequest(finished_attempt=5, tries_allowed_then=3, tries_allowed_now=3)
CLEARED = replace(NOTE, tries_allowed_now=4)
DAMAGED = RerunRequest(is_damaged=True, planned_attempt=5)
REQUESTS = {
    "crashed between note and end": (NOTE, REUSE),
    "cleared": (CLEARED, AGAIN),
    "cleared, fewer retries": (replace(NOTE, tries_allowed_now=2), AGAIN),
    "cleared, same max_tries": (replace(NOTE, clears_then=1, clears_now=2), AGAIN),
    "cleared, newer attempt committed since": (replace(CLEARED, finished_attempt=4), REUSE),
    "cleared along, same inputs": (replace(CLEARED, came_along=True), REUSE),
    "skipped by the plan, so cleared": (RerunRequest(was_reused=True, planned_attempt=5), AGAIN),
    "skipped by the plan, made since": (RerunRequest(was_reused=True, planned_attempt=4), REUSE),
    "forced": (RerunRequest(is_forced=True, planned_attempt=5), AGAIN),
    "forced, made since by any run": (RerunRequest(is_forced=True, planned_attempt=4), REUSE),
    "forced, made, noted, crashed": (replace(NOTE, is_forced=True, planned_attempt=5), REUSE),
    "damaged": (DAMAGED, AGAIN),
    "damaged, made since by any run": (replace(DAMAGED, planned_attempt=4), REUSE),
    "damaged, despite a green try": (replace(NOTE, is_damaged=True, planned_attempt=5), AGAIN),
    "damaged, cleared along": (replace(DAMAGED, came_along=True), AGAIN),
    "no request": (RerunRequest(planned_attempt=5), REUSE),
}


@pytest.mark.parametrize(("rerun", "start"), REQUESTS.values(), ids=REQUESTS)
def test_result_is_rerun_only_on_request_for_that_step(rerun: RerunRequest, start: object) -> None:
    assert decide_start(record(Phase.COMMITTED), TaskIdentity(ME), rerun) == start


def test_marin_result_is_rerun_when_cleared() -> None:
    found = Record(Status.SUCCESS, has_output=True)
    assert decide_start(found, TaskIdentity(ME), RerunRequest(was_reused=True)) == AGAIN


PROD, STAGING, UNNAMED, ADDRESS = "prod", "staging", "", "http://127.0.0.1:8080"


def start_of(theirs: str, ours: str, claimed: tuple[str, ...] = ()) -> StartDecision:
    found = record(Phase.RUNNING, {"deployment": theirs, **MY_EARLIER_TRY, "max_tries": 1})
    return decide_start(found, TaskIdentity({"deployment": ours, **ME}, claimed=claimed), RerunRequest())


def test_attempt_of_other_deployment_is_awaited_not_stopped() -> None:
    assert isinstance(start_of(PROD, STAGING), WaitForOwner)
    assert isinstance(start_of(PROD, PROD), CancelPrevious)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(UNNAMED, PROD), (PROD, UNNAMED), (ADDRESS, PROD), (PROD, ADDRESS), (UNNAMED, UNNAMED), (ADDRESS, ADDRESS)],
)
def test_attempt_of_same_task_is_untouched_without_deployment(theirs: str, ours: str) -> None:
    assert isinstance(start_of(theirs, ours), OwnershipUnknown)


@pytest.mark.parametrize("name", [UNNAMED, ADDRESS])
def test_noted_claims_are_owned_without_deployment_name(name: str) -> None:
    assert isinstance(start_of(name, name, claimed=("job-4", "job-5")), CancelPrevious)


def test_claim_without_deployment_may_be_of_any() -> None:
    assert is_same_task(ME, {"deployment": PROD, **ME}) and is_same_task({"deployment": PROD, **ME}, ME)
    assert not is_same_task({"deployment": STAGING, **ME}, {"deployment": PROD, **ME})


def test_same_task_compares_dag_run_task_and_map_index() -> None:
    assert is_same_task(ME, MY_EARLIER_TRY)
    for name in ("dag", "run", "task", "map_index"):
        assert not is_same_task(ME, {**ME, name: "other"})
    assert is_same_task({"script": "a", "pid": 1}, {"script": "a", "pid": 1})
    assert not is_same_task({"script": "a"}, ME) and not is_same_task(ME, {"script": "a"})


# ---- after the end of a job


def lease_after(phase: Phase | None, job: str = "job", is_requested: bool = False) -> Lease:
    return Lease("w", 0.0, phase, 2, job, stop_requested={"try": 1} if is_requested else None)


@pytest.mark.parametrize("end", list(JobResult))
def test_lease_of_other_job_or_final_phase_decides_alone(end: JobResult) -> None:
    for phase in Phase:
        assert next_action(lease_after(phase, "another"), "job", end) is NextAction.START_OVER
    for replaced in (None, lease_after(None)):  # no lease, or one of Marin's
        assert next_action(replaced, "job", end) is NextAction.START_OVER
    assert next_action(lease_after(Phase.COMMITTED), "job", end) is NextAction.SUCCEED
    assert next_action(lease_after(Phase.FAILED), "job", end) is NextAction.FAILED


CLAIMED, RUNNING, STOPPED = Phase.CLAIMED, Phase.RUNNING, Phase.STOPPED
ROWS = {
    "stopped through the lease": (JobResult.STOPPED, STOPPED, True, NextAction.STOPPED),
    "stopped through the lease, lost in Ray": (JobResult.LOST, STOPPED, True, NextAction.STOPPED),
    "stopped gracefully by Ray": (JobResult.STOPPED, STOPPED, False, NextAction.STOPPED),
    "preempted gracefully": (JobResult.LOST, STOPPED, False, NextAction.NEXT_ATTEMPT),
    "input changed": (JobResult.SUPERSEDED, STOPPED, False, NextAction.NEXT_ATTEMPT),
    "spec changed, stopped": (JobResult.SPEC_CHANGED, STOPPED, False, NextAction.SPEC_CHANGED),
    "spec changed, claimed": (JobResult.SPEC_CHANGED, CLAIMED, False, NextAction.SPEC_CHANGED),
    "succeeded in Ray, running": (JobResult.SUCCEEDED, RUNNING, False, NextAction.CONTRADICTION),
    "succeeded in Ray, claimed": (JobResult.SUCCEEDED, CLAIMED, False, NextAction.CONTRADICTION),
    "lost before it had an owner": (JobResult.LOST, CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "lost while it ran": (JobResult.LOST, RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "fenced": (JobResult.SUPERSEDED, RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "superseded before it had an owner": (JobResult.SUPERSEDED, CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "fenced, no children left": (JobResult.CHILDREN_ENDED, RUNNING, False, NextAction.NEXT_ATTEMPT),
    "fenced, no children left, recorded": (JobResult.CHILDREN_ENDED, STOPPED, False, NextAction.NEXT_ATTEMPT),
    "environment cannot be built": (JobResult.UNRUNNABLE, CLAIMED, False, NextAction.UNRUNNABLE_JOB),
    "infeasible while it runs": (JobResult.UNRUNNABLE, RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "queued too long inside Ray": (JobResult.NOT_STARTED, CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "stopped while it queued": (JobResult.STOPPED, CLAIMED, True, NextAction.STOPPED),
    "killed by Ray while it ran": (JobResult.STOPPED, RUNNING, True, NextAction.STOPPED),
}


@pytest.mark.parametrize(("end", "phase", "is_requested", "action"), ROWS.values(), ids=ROWS)
def test_next_action_follows_lease_before_ray_ending(
    end: JobResult, phase: Phase, is_requested: bool, action: NextAction
) -> None:
    assert next_action(lease_after(phase, is_requested=is_requested), "job", end) is action


@pytest.mark.parametrize("end", list(JobResult))
def test_task_never_succeeds_without_commit(end: JobResult) -> None:
    for phase in (None, CLAIMED, RUNNING, Phase.FAILED, STOPPED):
        assert next_action(lease_after(phase), "job", end) is not NextAction.SUCCEED
