"""Start decisions of a step's task, one case per row of the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tradewind.attempts.decisions import (
    CancelPrevious,
    Claim,
    Finished,
    InheritFailure,
    OwnershipUnknown,
    Reattach,
    RerunRequest,
    StartDecision,
    TaskIdentity,
    WaitForOwner,
    decide_start,
    is_same_task,
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


GONE = replace(record(Phase.COMMITTED), has_output=False)
STOPPED_BY_OLD_TRY = record(Phase.RUNNING, MY_EARLIER_TRY, stop_requested={"try": 1})
ROWS = {
    "nobody was ever here": (Record(), Claim()),
    "a result, output there: green, producer named": (record(Phase.COMMITTED), Finished(lease(Phase.COMMITTED))),
    "a result that is about to be removed, whoever made it: wait": (
        record(Phase.COMMITTED, MY_EARLIER_TRY, removing={"gc": "ada"}),
        WaitForOwner(lease(Phase.COMMITTED, MY_EARLIER_TRY, removing={"gc": "ada"})),
    ),
    "a result of Marin's": (Record(Status.SUCCESS, has_output=True), Finished(None)),
    "a result whose output is gone": (GONE, Claim(withdraws=True)),
    "another's, claimed and live: wait": (record(Phase.CLAIMED), WaitForOwner(lease(Phase.CLAIMED))),
    "another's, running and live: wait": (record(Phase.RUNNING), WaitForOwner(lease(Phase.RUNNING))),
    "Marin's and live: wait": (record(None, {}), WaitForOwner(lease(None, {}))),
    "another's and stale": (record(Phase.RUNNING, age_s=STALE_S), Claim()),
    "another's claim and stale": (record(Phase.CLAIMED, age_s=STALE_S), Claim()),
    "mine from an earlier try, claimed": (
        record(Phase.CLAIMED, MY_EARLIER_TRY),
        Reattach(lease(Phase.CLAIMED, MY_EARLIER_TRY)),
    ),
    "mine from an earlier try, running": (
        record(Phase.RUNNING, MY_EARLIER_TRY),
        Reattach(lease(Phase.RUNNING, MY_EARLIER_TRY)),
    ),
    "mine and stale": (record(Phase.RUNNING, MY_EARLIER_TRY, STALE_S), Claim()),
    "mine, and asked to stop by a kill that came late": (STOPPED_BY_OLD_TRY, CancelPrevious(STOPPED_BY_OLD_TRY.lease)),  # type: ignore[arg-type]
    "mine, and cleared since": (
        record(Phase.RUNNING, {**MY_EARLIER_TRY, "max_tries": 2}),
        CancelPrevious(lease(Phase.RUNNING, {**MY_EARLIER_TRY, "max_tries": 2})),
    ),
    "of another mapped instance of this task": (
        record(Phase.RUNNING, {**ME, "map_index": 1}),
        WaitForOwner(lease(Phase.RUNNING, {**ME, "map_index": 1})),
    ),
    "failed before, and nobody waited for it": (record(Phase.FAILED), Claim()),
    "stopped before": (record(Phase.STOPPED), Claim()),
}


@pytest.mark.parametrize(("found", "start"), ROWS.values(), ids=ROWS)
def test_a_task_starts_by_what_the_record_says(found: Record, start: object) -> None:
    assert decide_start(found, TaskIdentity(ME), RerunRequest()) == start


def test_waiting_runs_inherit_failure_without_retry() -> None:
    failed = record(Phase.FAILED)
    assert decide_start(failed, TaskIdentity(ME, waited_for=5), RerunRequest()) == InheritFailure(failed.lease)
    assert decide_start(failed, TaskIdentity(ME, waited_for=4), RerunRequest()) == Claim()


def test_earlier_failure_is_inherited_when_retries_are_off() -> None:
    failed = record(Phase.FAILED)
    assert decide_start(failed, TaskIdentity(ME, retries_failures=False), RerunRequest()) == InheritFailure(
        failed.lease
    )
    of_marin = Record(Status.FAILED)
    assert decide_start(of_marin, TaskIdentity(ME, retries_failures=False), RerunRequest()) == InheritFailure(None)
    assert decide_start(record(Phase.STOPPED), TaskIdentity(ME, retries_failures=False), RerunRequest()) == Claim()


REUSE, AGAIN = Finished(lease(Phase.COMMITTED)), Claim(withdraws=True)
NOTE = RerunRequest(finished_attempt=5, tries_allowed_then=3, tries_allowed_now=3)
CLEARED = replace(NOTE, tries_allowed_now=4)
DAMAGED = RerunRequest(is_damaged=True, planned_attempt=5)
CLEARS = {
    "it crashed between note and end: the same max_tries": (NOTE, REUSE),
    "it was cleared: a higher max_tries": (CLEARED, AGAIN),
    "it was cleared after the retries were lowered: a lower max_tries": (replace(NOTE, tries_allowed_now=2), AGAIN),
    "it was cleared after the retries were lowered: the same max_tries, but a Clear in the run": (
        replace(NOTE, clears_then=1, clears_now=2),
        AGAIN,
    ),
    "cleared, and a newer attempt was committed meanwhile": (replace(CLEARED, finished_attempt=4), REUSE),
    "cleared along, and its inputs are the same": (replace(CLEARED, came_along=True), REUSE),
    "skipped by the plan, so only a person can have cleared it": (
        RerunRequest(was_reused=True, planned_attempt=5),
        AGAIN,
    ),
    "skipped by the plan, and made again meanwhile": (RerunRequest(was_reused=True, planned_attempt=4), REUSE),
    "forced": (RerunRequest(is_forced=True, planned_attempt=5), AGAIN),
    "forced, and made since by this or another run": (RerunRequest(is_forced=True, planned_attempt=4), REUSE),
    "forced, made, noted, and crashed": (replace(NOTE, is_forced=True, planned_attempt=5), REUSE),
    "found damaged by the plan": (DAMAGED, AGAIN),
    "found damaged, and made since by this or another run": (replace(DAMAGED, planned_attempt=4), REUSE),
    "found damaged, although an earlier try ended green with it": (
        replace(NOTE, is_damaged=True, planned_attempt=5),
        AGAIN,
    ),
    "found damaged, and cleared along with what it reads": (replace(DAMAGED, came_along=True), AGAIN),
    "neither asked nor planned": (RerunRequest(planned_attempt=5), REUSE),
}


@pytest.mark.parametrize(("asked", "start"), CLEARS.values(), ids=CLEARS)
def test_result_is_rerun_only_on_request_for_that_step(asked: RerunRequest, start: object) -> None:
    assert decide_start(record(Phase.COMMITTED), TaskIdentity(ME), asked) == start


def test_one_step_cleared_in_thirty_runs_is_made_once() -> None:
    asked = RerunRequest(was_reused=True, planned_attempt=5)
    assert decide_start(record(Phase.COMMITTED), TaskIdentity(ME), asked) == AGAIN
    made = record(Phase.COMMITTED, attempt=6)
    assert [decide_start(made, TaskIdentity({**ME, "run": str(n)}), asked) for n in range(29)] == [
        Finished(made.lease)
    ] * 29


def test_a_marins_result_is_made_again_when_a_person_clears_it() -> None:
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


def test_task_with_fewer_allowed_tries_counts_as_cleared() -> None:
    found = record(Phase.RUNNING, {**MY_EARLIER_TRY, "max_tries": 4})
    assert isinstance(decide_start(found, TaskIdentity(ME), RerunRequest()), CancelPrevious)


def test_a_claim_that_names_no_deployment_may_be_any_deployments() -> None:
    assert is_same_task(ME, {"deployment": PROD, **ME}) and is_same_task({"deployment": PROD, **ME}, ME)
    assert not is_same_task({"deployment": STAGING, **ME}, {"deployment": PROD, **ME})


def test_same_task_compares_dag_run_task_and_map_index() -> None:
    assert is_same_task(ME, MY_EARLIER_TRY)
    for name in ("dag", "run", "task", "map_index"):
        assert not is_same_task(ME, {**ME, name: "other"})
    assert is_same_task({"script": "a", "pid": 1}, {"script": "a", "pid": 1})
    assert not is_same_task({"script": "a"}, ME) and not is_same_task(ME, {"script": "a"})
