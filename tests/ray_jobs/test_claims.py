"""Decisions of a restarted task, from its claim and the cluster's answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

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


FAILED, DONE = SUBMITTED.judged(succeeded=False), SUBMITTED.judged(succeeded=True)
COUNTED = SUBMITTED.judged(succeeded=True, clears=1)
NOT_DURABLE = {"durable": False}
STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED")
CLEARED = [
    (claim, details, 4, {}, Submit(claim.next(4), cancel_previous=stopped))
    for claim in (CLAIM, SUBMITTED, DONE)
    for details, stopped in ((job("RUNNING"), claim.job), (job("SUCCEEDED"), None), (None, None))
]


@pytest.mark.parametrize(
    ("claim", "details", "tries_allowed", "options", "decision"),
    [
        (CLAIM, None, 3, {}, Submit(CLAIM)),  # the worker was killed before the submission
        *((claim, job(status), 3, {}, Attach(claim)) for claim in (CLAIM, SUBMITTED) for status in STATUSES),
        (SUBMITTED, job("RUNNING"), 3, {"clears": 5}, Attach(SUBMITTED)),  # the Clear of another task
        (SUBMITTED, None, 3, {}, Submit(SUBMITTED.next(3, lost=True))),
        (FAILED, job("FAILED"), 3, {}, Submit(FAILED.next(3))),
        (DONE, job("SUCCEEDED"), 3, {}, Attach(DONE)),
        *CLEARED,
        (COUNTED, job("SUCCEEDED"), 2, {"clears": 1}, Submit(COUNTED.next(2))),  # with fewer retries
        (COUNTED, job("SUCCEEDED"), 3, {"clears": 2}, Submit(COUNTED.next(3))),
        (COUNTED, job("SUCCEEDED"), 3, {"clears": 1}, Attach(COUNTED)),
        (DONE, job("SUCCEEDED"), 3, {"clears": 5}, Attach(DONE)),  # a claim of an earlier version
        (SUBMITTED, job("RUNNING"), 3, NOT_DURABLE, Submit(SUBMITTED.next(3), cancel_previous=SUBMITTED.job)),
        (SUBMITTED, job("SUCCEEDED"), 3, NOT_DURABLE, Attach(SUBMITTED)),
    ],
)
def test_decision_follows_claim_job_and_clears(
    claim: JobClaim,
    details: JobDetails | None,
    tries_allowed: int,
    options: dict[str, Any],
    decision: Attach | Submit,
) -> None:
    assert decide_submission(claim, details, tries_allowed, **options) == decision


def test_next_claim_has_new_job_and_counts_loss() -> None:
    lost = SUBMITTED.next(3, lost=True)
    assert lost.losses == 1 and lost.job != SUBMITTED.job


def test_user_clear_resets_loss_budget() -> None:
    lost = SUBMITTED.next(3, lost=True).submitted(1.0)
    decided = decide_submission(lost, job("RUNNING", lost), 4)
    assert (lost.losses, decided.claim.losses) == (1, 0)


def test_claim_survives_json() -> None:
    claim = SUBMITTED.next(5, lost=True).judged(succeeded=True, clears=2)
    assert JobClaim.from_json(json.loads(json.dumps(claim.to_json()))) == claim


def test_job_not_started_by_ray_requeued_without_loss() -> None:
    again = SUBMITTED.next(3, lost=True).submitted(5.0).requeued()
    assert (again.attempt, again.losses, again.submitted_at, again.queued_since) == (3, 1, None, 5.0)
    assert again.submitted(900.0).queued_since == 5.0
