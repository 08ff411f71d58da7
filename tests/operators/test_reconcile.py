"""Which jobs nobody waits for."""

from __future__ import annotations

import pytest

from tradewind.operators.reconcile import orphans, task_of
from tradewind.operators.task_key import TaskKey
from tradewind.ray_jobs.details import JobDetails

KEY = TaskKey("dag", "run", "task", -1, 1)
MAPPED = TaskKey("dag", "run", "many", 2, 1)


def job(key: TaskKey, waits: bool = True) -> JobDetails:
    return JobDetails(f"{key.task}-job", "RUNNING", metadata=key.metadata(waits=waits))


def stopped(states: dict[str, dict[str, dict[str, str | None]]], knows_all: bool = False) -> list[str]:
    return [one.job for one in orphans([(job(KEY), KEY), (job(MAPPED), MAPPED)], states, knows_all=knows_all)]


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_a_task_that_has_ended_waits_for_nothing(state: str) -> None:
    assert stopped({"dag": {"run": {"task": state, "many_2": "deferred"}}}) == ["task-job"]
    assert stopped({"dag": {"run": {"task": "deferred", "many_2": state}}}) == ["many-job"]


@pytest.mark.parametrize("state", ["deferred", "running", "queued", "scheduled", "up_for_retry", "restarting", None])
def test_a_task_that_lives_or_comes_back_waits_for_its_job(state: str | None) -> None:
    assert stopped({"dag": {"run": {"task": state, "many_2": state}}}) == []


def test_the_jobs_of_deleted_runs_are_stopped_only_where_the_deployment_has_a_name() -> None:
    assert stopped({}) == []
    assert stopped({}, knows_all=True) == ["task-job", "many-job"]


def test_a_job_says_in_its_metadata_whose_it_is() -> None:
    assert task_of(job(KEY)) == KEY
    assert task_of(job(MAPPED)) == MAPPED
    assert task_of(job(KEY, waits=False)) is None
    assert task_of(JobDetails("theirs", "RUNNING", metadata={"owner": "somebody"})) is None
    elsewhere = {**KEY.metadata(), "airflow_deployment": "another"}
    assert task_of(JobDetails("theirs", "RUNNING", metadata=elsewhere)) is None
