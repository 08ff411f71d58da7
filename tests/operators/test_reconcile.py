"""Reconciliation cancels jobs without a waiting task and continues past a cluster with an outage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.operators.loopback_head import LoopbackHead
from tradewind.operators.reconcile import RayReconcileOperator, orphans
from tradewind.ray_jobs.details import JobDetails
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.tasks.address import TaskKey
from tradewind.tasks.errors import ClusterRefusedError, ClusterUnreachableError

KEY = TaskKey("dag", "run", "task", -1, 1)
MAPPED = TaskKey("dag", "run", "many", 2, 1)


class Tasks:
    """The tasks of an Airflow as its API reports them: by id, and by map index if it is not negative.

    Attributes:
        questions: Number of requests.
    """

    def __init__(self, **states: dict[int, str]) -> None:
        self.questions = 0
        self.xcoms: dict[str, Any] = {}
        self._states = states

    def get_task_states(self, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str]]:
        self.questions += 1
        rows = [(task, index, state) for task in task_ids for index, state in self._states.get(task, {}).items()]
        return {"run": {task if index < 0 else f"{task}_{index}": state for task, index, state in rows}}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHead]:
    server = LoopbackHead()
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_THERE", json.dumps({"conn_type": "ray", "host": server.url}))
    monkeypatch.setenv("AIRFLOW_CONN_SILENT", json.dumps({"conn_type": "ray", "host": "http://127.0.0.1:9"}))
    yield server
    server.stop()


def has_job(head: LoopbackHead, key: TaskKey) -> str:
    name = f"{key.task}-{key.map_index}"
    head.has(name, "RUNNING", metadata=key.metadata())
    return name


def reconcile(tasks: Tasks, *clusters: str) -> list[str]:
    return RayReconcileOperator(task_id="reconcile", ray_conn_ids=clusters).execute({"ti": tasks})  # type: ignore[typeddict-item]


def job(key: TaskKey, waits: bool = True) -> JobDetails:
    return JobDetails(f"{key.task}-job", "RUNNING", metadata=key.metadata(waits=waits))


def stopped(states: dict[TaskKey, str | None], knows_all: bool = False) -> list[str]:
    known = {key.address: state for key, state in states.items()}
    return [one.job for one in orphans([(job(KEY), KEY), (job(MAPPED), MAPPED)], known, knows_all=knows_all)]


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_a_task_that_has_ended_waits_for_nothing(state: str) -> None:
    assert stopped({KEY: state, MAPPED: "deferred"}) == ["task-job"]
    assert stopped({KEY: "deferred", MAPPED: state}) == ["many-job"]


@pytest.mark.parametrize("state", ["deferred", "running", "queued", "scheduled", "up_for_retry", "restarting", None])
def test_a_task_that_lives_or_comes_back_waits_for_its_job(state: str | None) -> None:
    assert stopped({KEY: state, MAPPED: state}) == []


def test_jobs_of_deleted_runs_stop_only_in_named_deployment() -> None:
    assert stopped({}) == []
    assert stopped({}, knows_all=True) == ["task-job", "many-job"]
    assert stopped({replace(KEY, run="another"): "failed"}) == []


def test_a_job_says_in_its_metadata_whose_it_is() -> None:
    assert TaskKey.from_metadata(job(KEY).metadata) == KEY
    assert TaskKey.from_metadata(job(MAPPED).metadata) == MAPPED
    assert TaskKey.from_metadata(job(KEY, waits=False).metadata) is None
    assert TaskKey.from_metadata(JobDetails("theirs", "RUNNING", metadata={"owner": "somebody"}).metadata) is None
    elsewhere = {**KEY.metadata(), "airflow_deployment": "another"}
    assert TaskKey.from_metadata(JobDetails("theirs", "RUNNING", metadata=elsewhere).metadata) is None


@pytest.mark.slow
def test_reconcile_separates_mapped_task_from_same_named_plain(
    head: LoopbackHead,
) -> None:
    plain, first = TaskKey("dag", "run", "train_1", -1, 1), TaskKey("dag", "run", "train", 1, 1)
    for key in (plain, first, TaskKey("dag", "run", "other", -1, 1)):
        has_job(head, key)
    done = Tasks(train={0: "running", 1: "success"}, train_1={-1: "deferred"}, other={-1: "running"})
    assert reconcile(done, "there") == ["train-1"]
    assert done.questions == 2, "only what is in doubt is asked about alone"
    alive = Tasks(train={0: "running", 1: "deferred"}, train_1={-1: "failed"}, other={-1: "running"})
    assert reconcile(alive, "there") == ["train_1--1"]
    assert [name for name, details in head.jobs.items() if details["status"] == "RUNNING"] == ["other--1"]


def test_a_dry_run_only_tells(head: LoopbackHead) -> None:
    unwanted = has_job(head, KEY)
    task = RayReconcileOperator(task_id="reconcile", ray_conn_ids=["there"], dry_run=True)
    assert task.execute({"ti": Tasks(task={-1: "failed"})}) == [unwanted]  # type: ignore[typeddict-item]
    assert head.jobs[unwanted]["status"] == "RUNNING"


@pytest.mark.slow
def test_unreachable_clusters_are_reported_after_others(head: LoopbackHead) -> None:
    unwanted, tasks = has_job(head, KEY), Tasks(task={-1: "failed"})
    with pytest.raises(ClusterUnreachableError) as caught:
        reconcile(tasks, "silent", "unknown", "there")
    assert "127.0.0.1:9" in str(caught.value) and "no connection 'unknown'" in str(caught.value)
    assert head.jobs[unwanted]["status"] == "STOPPED"
    assert tasks.xcoms == {"return_value": [unwanted]}


def test_a_cluster_that_refuses_is_not_asked_again_by_airflow(head: LoopbackHead) -> None:
    with pytest.raises(ClusterRefusedError, match="no connection 'unknown'"):
        reconcile(Tasks(), "unknown", "there")


def test_a_job_that_the_head_lists_twice_is_stopped_once(head: LoopbackHead) -> None:
    unwanted = has_job(head, KEY)
    head.jobs["again"] = head.jobs[unwanted]
    assert reconcile(Tasks(task={-1: "failed"}), "there") == [unwanted]


@pytest.mark.parametrize("output_path", ["\x00", "s3://", "nonsense://out"])
def test_job_with_unreadable_lease_is_stopped_through_ray(head: LoopbackHead, output_path: str) -> None:
    head.has("step", "RUNNING", metadata={**KEY.metadata(), "step": "s", "output_path": output_path})
    assert reconcile(Tasks(task={-1: "failed"}), "there") == ["step"]
    assert head.jobs["step"]["status"] == "STOPPED"


@pytest.mark.slow
def test_invalid_answer_of_one_cluster_does_not_block_others(
    head: LoopbackHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    mad = LoopbackHead()
    mad.jobs["no-status"] = {"submission_id": "no-status"}
    mad.start()
    try:
        monkeypatch.setenv("AIRFLOW_CONN_MAD", json.dumps({"conn_type": "ray", "host": mad.url}))
        unwanted, tasks = has_job(head, KEY), Tasks(task={-1: "failed"})
        with pytest.raises(ClusterUnreachableError, match="'mad'"):
            reconcile(tasks, "mad", "there")
    finally:
        mad.stop()
    assert tasks.xcoms == {"return_value": [unwanted]}


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "is_stopped"), [("prod", False), ("staging", True), (None, True)])
def test_job_with_lease_of_other_deployment_is_not_stopped(
    head: LoopbackHead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: str | None, is_stopped: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__DEPLOYMENT", "staging")
    output = str(tmp_path / "out")
    by = {"dag": "dag", "run": "run", "task": "task", **({"deployment": owner} if owner else {})}
    LeaseStore(output).claim(None, LeaseClaim(1, "step", "there", by, "v"))
    head.has("step", "RUNNING", metadata={**KEY.metadata(), "step": "s", "output_path": output})
    assert reconcile(Tasks(task={-1: "failed"}), "there") == (["step"] if is_stopped else [])
    assert head.jobs["step"]["status"] == ("STOPPED" if is_stopped else "RUNNING")
    held = LeaseStore(output).read()
    assert held is not None and held.lease.is_live is not is_stopped
