"""Decisions of a job restore, by the state of the same job on the new head."""

from __future__ import annotations

import json

import pytest

from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.job_backup import LABEL_SELECTOR, SavedJob
from tradewind.ray_jobs.job_restore import RestoreAction, RestoreResult, decide_restore, resolve_restored_job

JOB = SavedJob("a", "RUNNING", "true")


@pytest.mark.parametrize(
    ("status", "waited_s", "is_ended_here", "action"),
    [
        (None, 0, False, RestoreAction.SUBMIT),
        ("FAILED", 0, False, RestoreAction.SUBMIT),
        ("SUCCEEDED", 0, False, RestoreAction.LEAVE_ALONE),
        ("STOPPED", 0, False, RestoreAction.LEAVE_ALONE),
        ("STOPPED", 0, True, RestoreAction.SUBMIT),
        ("RUNNING", 5, False, RestoreAction.WAIT),
        ("PENDING", 5, False, RestoreAction.WAIT),
        ("RUNNING", 25, False, RestoreAction.WAIT),
        ("RUNNING", 95, False, RestoreAction.LEAVE_ALONE),
        ("PENDING", 25, False, RestoreAction.END),
        ("PENDING", 25, True, RestoreAction.END),
    ],
)
def test_job_resubmitted_only_when_previous_ended_or_unknown(
    status: str | None, waited_s: float, is_ended_here: bool, action: RestoreAction
) -> None:
    found = None if status is None else JobDetails("a", status)
    assert decide_restore(JOB, found, waited_s=waited_s, is_ended_here=is_ended_here)[0] is action


def test_job_with_lost_package_is_not_restored() -> None:
    job = SavedJob("a", "RUNNING", "true", missing=("gcs://x.zip",))
    what, why = decide_restore(job, None, waited_s=0, is_ended_here=False)
    assert what is RestoreAction.LOST and "gcs://x.zip" in why


def test_restore_result_is_one_sentence() -> None:
    assert RestoreResult("a", "a-r-1").sentence == "Job a is restored as a-r-1."
    assert RestoreResult("a", why="a user stopped it").sentence == "Job a needs no restore: a user stopped it."
    assert RestoreResult("a", why="it is gone", is_lost=True).sentence == "Job a is not restored: it is gone."


@pytest.mark.parametrize(
    ("found", "is_lost", "says"),
    [
        (JobDetails("a-r-1", "PENDING"), False, "Job a is restored as a-r-1."),
        (JobDetails("a-r-1", "SUCCEEDED"), False, "Job a is restored as a-r-1."),
        (JobDetails("a-r-1", "STOPPED"), False, "Job a is restored as a-r-1."),
        (
            JobDetails("a-r-1", "FAILED", error_type="JOB_ENTRYPOINT_COMMAND_ERROR", exit_code=3),
            False,
            "Job a is restored as a-r-1, and has ended: Ray job 'a-r-1' failed with exit code 3: correct what",
        ),
        (
            JobDetails("a-r-1", "FAILED", "failed to get job supervisor", error_type="JOB_SUPERVISOR_ACTOR_DIED"),
            True,
            "Job a is restored as a-r-1, and has ended: Ray job 'a-r-1' lost its supervisor process",
        ),
        (JobDetails("a-r-1", "FAILED", error_type="RUNTIME_ENV_SETUP_FAILURE"), True, "Ray job 'a-r-1' never ran"),
    ],
)
def test_restored_job_ending_reported_and_cluster_fault_is_loss(found: JobDetails, is_lost: bool, says: str) -> None:
    result = resolve_restored_job("a", found)
    assert (result.job, result.new, result.is_lost, result.is_retryable) == ("a", "a-r-1", is_lost, False)
    assert says in result.sentence and not result.sentence.endswith("..")


def test_job_running_only_in_head_memory_is_restored() -> None:
    found = JobDetails("a", "RUNNING")
    for waited_s, what in ((25, RestoreAction.WAIT), (95, RestoreAction.SUBMIT)):
        assert decide_restore(JOB, found, waited_s=waited_s, is_ended_here=False, is_node_gone=True)[0] is what


@pytest.mark.parametrize("labels", ["{oops", "[" * 100_000, "[1]", '"a"', '{"a": 1}'], ids=lambda text: text[:9])
def test_job_with_invalid_labels_not_restored_others_unaffected(labels: str) -> None:
    job = SavedJob("a", "RUNNING", "true", metadata={LABEL_SELECTOR: labels})
    what, why = decide_restore(job, None, waited_s=0, is_ended_here=False)
    assert what is RestoreAction.LOST and LABEL_SELECTOR in why


@pytest.mark.parametrize("labels", ["", "{}", '{"ray.io/market-type": "spot"}'])
def test_job_is_restored_with_its_labels(labels: str) -> None:
    job = SavedJob("a", "RUNNING", "true", metadata={LABEL_SELECTOR: labels})
    assert decide_restore(job, None, waited_s=0, is_ended_here=False)[0] is RestoreAction.SUBMIT
    assert job.submission("1")["entrypoint_label_selector"] == (json.loads(labels) if labels else None)
