"""The ending of a job decides whether Airflow retries at once, by the task's policy, or never."""

from __future__ import annotations

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowFailException

from tradewind.operators.retry_policy import ray_retry_policy
from tradewind.ray_jobs.errors import BadRequestError, RayAuthenticationError, RayUnreachableError
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind
from tradewind.tasks.errors import ClusterUnreachableError
from tradewind.tasks.jobs.errors import LOSSES, RayJobError, RayJobFailedError, job_error

FINAL = [
    EndingKind.USER_ERROR,
    EndingKind.RUNTIME_ENV,
    EndingKind.INFEASIBLE,
    EndingKind.STOPPED,
    EndingKind.TIMED_OUT,
    EndingKind.QUEUE_TIMED_OUT,
]
LOST = [*sorted(LOSSES, key=lambda kind: kind.name), EndingKind.NOT_STARTED, EndingKind.UNKNOWN]


def error_of(kind: EndingKind, *, at_once: bool) -> RayJobError:
    return job_error(Ending(kind, "what happened"), at_once=at_once)


def decision_on(error: BaseException, **options: bool) -> RetryAction:
    return ray_retry_policy(**options).evaluate(error, 1, 3).action


def test_every_ending_but_success_is_final_or_retried() -> None:
    assert set(EndingKind) == {*FINAL, *LOST, EndingKind.SUCCEEDED}


@pytest.mark.parametrize("kind", FINAL)
def test_failure_of_the_job_is_not_retried(kind: EndingKind) -> None:
    error = error_of(kind, at_once=True)
    assert isinstance(error, AirflowFailException) and isinstance(error, RayJobError)
    assert (str(error), error.ending.kind) == ("what happened", kind)
    for_policy = error_of(kind, at_once=False)
    assert not isinstance(for_policy, AirflowFailException)
    assert type(error).__name__ == type(for_policy).__name__
    assert decision_on(for_policy) is RetryAction.FAIL


@pytest.mark.parametrize("kind", LOST)
def test_loss_of_infrastructure_is_retried(kind: EndingKind) -> None:
    error = error_of(kind, at_once=True)
    assert not isinstance(error, AirflowFailException)
    assert decision_on(error) is RetryAction.RETRY


def test_a_policy_can_retry_failed_jobs_too() -> None:
    failed = error_of(EndingKind.USER_ERROR, at_once=False)
    assert isinstance(failed, RayJobFailedError)
    assert decision_on(failed, retry_failed_jobs=True) is RetryAction.RETRY
    assert decision_on(error_of(EndingKind.INFEASIBLE, at_once=False), retry_failed_jobs=True) is RetryAction.FAIL


def test_policy_knows_errors_of_tasks_that_use_the_hook() -> None:
    for error in (RayUnreachableError("silent"), ClusterUnreachableError("silent")):
        assert decision_on(error) is RetryAction.RETRY
    for refusal in (RayAuthenticationError("refused"), BadRequestError("empty")):
        assert decision_on(refusal) is RetryAction.FAIL
    assert decision_on(KeyError("of the task itself")) is RetryAction.DEFAULT
