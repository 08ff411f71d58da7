"""What a task does that comes back, decided from its claim and from what the cluster says."""

from __future__ import annotations

import json
import re

from tradewind.ray_jobs.claims import Attach, JobClaim, Submit, decide_submission
from tradewind.ray_jobs.details import JobDetails

CLAIM = JobClaim.first(["night", "scheduled__2026-11-21T00:00:00+00:00", "train"], tries_allowed=3)
SUBMITTED = CLAIM.submitted(1_800_000_000.0)


def job(status: str, claim: JobClaim = CLAIM) -> JobDetails:
    return JobDetails(claim.job, status)


def test_ids_are_readable_legal_and_never_given_twice() -> None:
    assert re.fullmatch(r"night-scheduled__2026-11-21T00-00-00-00-00-train-[0-9a-f]{8}-1", CLAIM.job)
    assert JobClaim.first(["a"], 0).job != JobClaim.first(["a"], 0).job
    long = JobClaim.first(["d" * 200, "r", "t1"], 0).job, JobClaim.first(["d" * 200, "r", "t2"], 0).job
    assert all(len(one) < 80 for one in long)
    assert long[0].rsplit("-", 2)[0] != long[1].rsplit("-", 2)[0]


def test_a_chosen_id_is_kept_for_the_first_attempt_and_numbered_after_it() -> None:
    claim = JobClaim.named("exp-1", 0)
    assert [claim.job, claim.next(0).job, claim.next(0).next(0).job] == ["exp-1", "exp-1-2", "exp-1-3"]


def test_a_worker_killed_before_the_submission_is_followed_by_one_under_the_same_id() -> None:
    assert decide_submission(CLAIM, None, 3) == Submit(CLAIM)


def test_a_worker_killed_after_the_submission_is_followed_by_one_that_joins() -> None:
    for claim in (CLAIM, SUBMITTED):
        for status in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"):
            assert decide_submission(claim, job(status), 3) == Attach(claim)


def test_a_job_that_the_cluster_has_forgotten_is_submitted_under_a_new_id_and_counted() -> None:
    decision = decide_submission(SUBMITTED, None, 3)
    assert decision == Submit(SUBMITTED.next(3, lost=True))
    assert decision.claim.losses == 1
    assert decision.claim.job != SUBMITTED.job


def test_a_retry_after_a_judged_failure_makes_a_new_job() -> None:
    failed = SUBMITTED.judged(succeeded=False)
    assert decide_submission(failed, job("FAILED"), 3) == Submit(failed.next(3))


def test_a_try_that_died_between_success_and_its_report_is_not_run_again() -> None:
    succeeded = SUBMITTED.judged(succeeded=True)
    assert decide_submission(succeeded, job("SUCCEEDED"), 3) == Attach(succeeded)


def test_clear_stops_what_runs_and_makes_a_new_job() -> None:
    for claim in (CLAIM, SUBMITTED, SUBMITTED.judged(succeeded=True)):
        assert decide_submission(claim, job("RUNNING"), 4) == Submit(claim.next(4), stop_first=claim.job)
        assert decide_submission(claim, job("SUCCEEDED"), 4) == Submit(claim.next(4))
        assert decide_submission(claim, None, 4) == Submit(claim.next(4))


def test_a_clear_counts_also_where_retries_were_lowered_meanwhile() -> None:
    succeeded = SUBMITTED.judged(succeeded=True, clears=1)
    for tries_allowed, clears in ((2, 1), (3, 2)):  # 3 are what the first try was allowed
        decided = decide_submission(succeeded, job("SUCCEEDED"), tries_allowed, clears=clears)
        assert decided == Submit(succeeded.next(tries_allowed))
    assert decide_submission(succeeded, job("SUCCEEDED"), 3, clears=1) == Attach(succeeded)
    older = SUBMITTED.judged(succeeded=True)
    assert decide_submission(older, job("SUCCEEDED"), 3, clears=5) == Attach(older)


def test_the_clear_of_another_task_stops_no_job_that_runs() -> None:
    assert decide_submission(SUBMITTED, job("RUNNING"), 3, clears=5) == Attach(SUBMITTED)


def test_a_person_who_clears_a_task_gives_it_all_its_losses_again() -> None:
    lost = SUBMITTED.next(3, lost=True).submitted(1.0)
    decided = decide_submission(lost, job("RUNNING", lost), 4)
    assert (lost.losses, decided.claim.losses) == (1, 0)


def test_a_job_that_is_not_durable_is_stopped_by_the_next_try() -> None:
    running = decide_submission(SUBMITTED, job("RUNNING"), 3, durable=False)
    assert running == Submit(SUBMITTED.next(3), stop_first=SUBMITTED.job)
    assert decide_submission(SUBMITTED, job("SUCCEEDED"), 3, durable=False) == Attach(SUBMITTED)


def test_a_claim_survives_being_written_down() -> None:
    claim = SUBMITTED.next(5, lost=True).judged(succeeded=True, clears=2)
    assert JobClaim.from_json(json.loads(json.dumps(claim.to_json()))) == claim


def test_a_job_that_ray_gave_up_before_its_start_goes_on_waiting_without_a_loss() -> None:
    again = SUBMITTED.next(3, lost=True).submitted(5.0).requeued()
    assert (again.attempt, again.losses, again.submitted_at, again.queued_since) == (3, 1, None, 5.0)
    assert again.submitted(900.0).queued_since == 5.0
