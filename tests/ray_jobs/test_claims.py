"""Decisions of a restarted task, from its claim and the cluster's answer."""

from __future__ import annotations

import json
import re

from tradewind.ray_jobs.claims import Attach, JobClaim, Submit, decide_submission
from tradewind.ray_jobs.details import JobDetails

CLAIM = JobClaim.first(["daily", "scheduled__2026-11-21T00:00:00+00:00", "train"], tries_allowed=3)
SUBMITTED = CLAIM.submitted(1_800_000_000.0)


def job(status: str, claim: JobClaim = CLAIM) -> JobDetails:
    return JobDetails(claim.job, status)


def test_ids_are_readable_legal_and_unique() -> None:
    assert re.fullmatch(r"daily-scheduled__2026-11-21T00-00-00-00-00-train-[0-9a-f]{8}-1", CLAIM.job)
    assert JobClaim.first(["a"], 0).job != JobClaim.first(["a"], 0).job
    long = JobClaim.first(["d" * 200, "r", "t1"], 0).job, JobClaim.first(["d" * 200, "r", "t2"], 0).job
    assert all(len(one) < 80 for one in long)
    assert long[0].rsplit("-", 2)[0] != long[1].rsplit("-", 2)[0]


def test_chosen_submission_id_kept_first_then_numbered() -> None:
    claim = JobClaim.named("exp-1", 0)
    assert [claim.job, claim.next(0).job, claim.next(0).next(0).job] == ["exp-1", "exp-1-2", "exp-1-3"]


def test_worker_killed_before_submission_reuses_submission_id() -> None:
    assert decide_submission(CLAIM, None, 3) == Submit(CLAIM)


def test_worker_killed_after_submission_reattaches_to_job() -> None:
    for claim in (CLAIM, SUBMITTED):
        for status in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"):
            assert decide_submission(claim, job(status), 3) == Attach(claim)
    cleared_others = decide_submission(SUBMITTED, job("RUNNING"), 3, clears=5)
    assert cleared_others == Attach(SUBMITTED), "the Clear of another task stops no running job"


def test_job_unknown_to_cluster_resubmitted_and_counted_as_loss() -> None:
    decision = decide_submission(SUBMITTED, None, 3)
    assert decision == Submit(SUBMITTED.next(3, lost=True))
    assert decision.claim.losses == 1
    assert decision.claim.job != SUBMITTED.job


def test_judged_failure_is_resubmitted_and_success_is_not() -> None:
    failed, succeeded = SUBMITTED.judged(succeeded=False), SUBMITTED.judged(succeeded=True)
    assert decide_submission(failed, job("FAILED"), 3) == Submit(failed.next(3))
    assert decide_submission(succeeded, job("SUCCEEDED"), 3) == Attach(succeeded)


def test_clear_stops_running_job_and_makes_new_one() -> None:
    for claim in (CLAIM, SUBMITTED, SUBMITTED.judged(succeeded=True)):
        assert decide_submission(claim, job("RUNNING"), 4) == Submit(claim.next(4), cancel_previous=claim.job)
        assert decide_submission(claim, job("SUCCEEDED"), 4) == Submit(claim.next(4))
        assert decide_submission(claim, None, 4) == Submit(claim.next(4))


def test_clear_detected_when_retries_lowered() -> None:
    succeeded = SUBMITTED.judged(succeeded=True, clears=1)
    for tries_allowed, clears in ((2, 1), (3, 2)):  # the first try was allowed 3
        decided = decide_submission(succeeded, job("SUCCEEDED"), tries_allowed, clears=clears)
        assert decided == Submit(succeeded.next(tries_allowed))
    assert decide_submission(succeeded, job("SUCCEEDED"), 3, clears=1) == Attach(succeeded)
    older = SUBMITTED.judged(succeeded=True)
    assert decide_submission(older, job("SUCCEEDED"), 3, clears=5) == Attach(older)


def test_user_clear_resets_loss_budget() -> None:
    lost = SUBMITTED.next(3, lost=True).submitted(1.0)
    decided = decide_submission(lost, job("RUNNING", lost), 4)
    assert (lost.losses, decided.claim.losses) == (1, 0)


def test_job_that_is_not_durable_is_stopped_by_next_try() -> None:
    running = decide_submission(SUBMITTED, job("RUNNING"), 3, durable=False)
    assert running == Submit(SUBMITTED.next(3), cancel_previous=SUBMITTED.job)
    assert decide_submission(SUBMITTED, job("SUCCEEDED"), 3, durable=False) == Attach(SUBMITTED)


def test_claim_survives_json() -> None:
    claim = SUBMITTED.next(5, lost=True).judged(succeeded=True, clears=2)
    assert JobClaim.from_json(json.loads(json.dumps(claim.to_json()))) == claim


def test_job_not_started_by_ray_requeued_without_loss() -> None:
    again = SUBMITTED.next(3, lost=True).submitted(5.0).requeued()
    assert (again.attempt, again.losses, again.submitted_at, again.queued_since) == (3, 1, None, 5.0)
    assert again.submitted(900.0).queued_since == 5.0
