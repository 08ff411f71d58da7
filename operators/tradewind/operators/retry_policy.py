"""A retry policy for tasks on Ray clusters: retry errors of the infrastructure, not those of the job."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

_JOB = "tradewind.tasks.jobs.errors"
_CLUSTER = "tradewind.ray_jobs.errors"

_RETRIED = (
    f"{_JOB}.RayJobLostError",
    f"{_CLUSTER}.RayUnreachableError",
    "tradewind.tasks.errors.ClusterUnreachableError",
    "tradewind.tasks.errors.StepLostError",
)
_FINAL = (f"{_JOB}.RayJobError", f"{_CLUSTER}.RayJobsError")


def ray_retry_policy(
    delay: timedelta = timedelta(seconds=30), *, retry_failed_jobs: bool = False
) -> ExceptionRetryPolicy:
    """Return the policy: retry infrastructure errors after ``delay``; fail at once if a retry cannot help.

    It suits any task: a ``RayJobOperator`` (whose own errors it decides about), or a Python task that uses ``RayHook``.
    With ``retry_failed_jobs`` a job whose own command failed is retried too.
    """
    failed = [RetryRule(f"{_JOB}.RayJobFailedError", RetryAction.RETRY, delay, "the job failed")]
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(list(_RETRIED), RetryAction.RETRY, delay, "an infrastructure error"),
            *(failed if retry_failed_jobs else []),
            RetryRule(list(_FINAL), RetryAction.FAIL, reason="a retry would fail the same way"),
        ]
    )
