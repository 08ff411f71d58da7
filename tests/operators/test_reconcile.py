"""Reconciliation cancels jobs without a waiting task and continues past a cluster with an outage."""

from __future__ import annotations

import json
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
    """The tasks of an Airflow as its API reports them: by id, and by map index if it is not negative."""

    def __init__(self, **states: dict[int, str]) -> None:
        self.requests = 0
        self.xcoms: dict[str, Any] = {}
        self._states = states

    def get_task_states(self, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str]]:
        self.requests += 1
        rows = [(task, index, state) for task in task_ids for index, state in self._states.get(task, {}).items()]
        return {"run": {task if index < 0 else f"{task}_{index}": state for task, index, state in rows}}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


def add_job(head: LoopbackHead, key: TaskKey) -> str:
    name = f"{key.task}-{key.map_index}"
    head.has(name, "RUNNING", metadata=key.metadata())
    return name


def reconcile(tasks: Tasks, *clusters: str) -> list[str]:
    return RayReconcileOperator(task_id="reconcile", ray_conn_ids=clusters).execute({"ti": tasks})  # type: ignore[typeddict-item]


def job(key: TaskKey) -> JobDetails:
    return JobDetails(f"{key.task}-job", "RUNNING", metadata=key.metadata())


def orphaned(states: dict[TaskKey, str | None], knows_all: bool = False) -> list[str]:
    known = {key.address: state for key, state in states.items()}
    return [one.job for one in orphans([(job(KEY), KEY), (job(MAPPED), MAPPED)], known, knows_all=knows_all)]


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_job_of_ended_task_is_orphaned(state: str) -> None:
    assert orphaned({KEY: state, MAPPED: "deferred"}) == ["task-job"]
    assert orphaned({KEY: "deferred", MAPPED: state}) == ["many-job"]


@pytest.mark.parametrize("state", ["deferred", "running", "queued", "scheduled", "up_for_retry", "restarting", None])
def test_job_of_active_or_retried_task_is_kept(state: str | None) -> None:
    assert orphaned({KEY: state, MAPPED: state}) == []


def test_jobs_of_deleted_runs_stop_only_in_named_deployment() -> None:
    assert orphaned({}) == []
    assert orphaned({}, knows_all=True) == ["task-job", "many-job"]
    assert orphaned({replace(KEY, run="another"): "failed"}) == []


def test_job_metadata_names_waiting_task_of_this_deployment() -> None:
    assert TaskKey.from_metadata(KEY.metadata()) == KEY
    assert TaskKey.from_metadata(MAPPED.metadata()) == MAPPED
    elsewhere = {**KEY.metadata(), "airflow_deployment": "another"}
    for metadata in (KEY.metadata(waits=False), {"owner": "another user"}, elsewhere):
        assert TaskKey.from_metadata(metadata) is None


@pytest.mark.slow
def test_reconcile_separates_mapped_task_from_same_named_plain(head: LoopbackHead) -> None:
    plain, first = TaskKey("dag", "run", "train_1", -1, 1), TaskKey("dag", "run", "train", 1, 1)
    for key in (plain, first, TaskKey("dag", "run", "other", -1, 1)):
        add_job(head, key)
    done = Tasks(train={0: "running", 1: "success"}, train_1={-1: "deferred"}, other={-1: "running"})
    assert reconcile(done, "head") == ["train-1"]
    assert done.requests == 2, "only ambiguous ids have their own request"
    alive = Tasks(train={0: "running", 1: "deferred"}, train_1={-1: "failed"}, other={-1: "running"})
    assert reconcile(alive, "head") == ["train_1--1"]
    assert [name for name, details in head.jobs.items() if details["status"] == "RUNNING"] == ["other--1"]


def test_dry_run_only_reports(head: LoopbackHead) -> None:
    unwanted = add_job(head, KEY)
    task = RayReconcileOperator(task_id="reconcile", ray_conn_ids=["head"], dry_run=True)
    assert task.execute({"ti": Tasks(task={-1: "failed"})}) == [unwanted]  # type: ignore[typeddict-item]
    assert head.jobs[unwanted]["status"] == "RUNNING"


@pytest.mark.slow
def test_unreachable_clusters_are_reported_after_others(head: LoopbackHead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SILENT", json.dumps({"conn_type": "ray", "host": "http://127.0.0.1:9"}))
    unwanted, tasks = add_job(head, KEY), Tasks(task={-1: "failed"})
    with pytest.raises(ClusterUnreachableError) as caught:
        reconcile(tasks, "silent", "unknown", "head")
    assert "127.0.0.1:9" in str(caught.value) and "no connection 'unknown'" in str(caught.value)
    assert head.jobs[unwanted]["status"] == "STOPPED"
    assert tasks.xcoms == {"return_value": [unwanted]}


def test_refusing_cluster_costs_no_retry(head: LoopbackHead) -> None:
    with pytest.raises(ClusterRefusedError, match="no connection 'unknown'"):
        reconcile(Tasks(), "unknown", "head")


def test_job_listed_twice_is_stopped_once(head: LoopbackHead) -> None:
    unwanted = add_job(head, KEY)
    head.jobs["again"] = head.jobs[unwanted]
    assert reconcile(Tasks(task={-1: "failed"}), "head") == [unwanted]


@pytest.mark.parametrize("output_path", ["\x00", "s3://", "nonsense://out"])
def test_job_with_unreadable_lease_is_stopped_through_ray(head: LoopbackHead, output_path: str) -> None:
    head.has("step", "RUNNING", metadata={**KEY.metadata(), "step": "s", "output_path": output_path})
    assert reconcile(Tasks(task={-1: "failed"}), "head") == ["step"]
    assert head.jobs["step"]["status"] == "STOPPED"


@pytest.mark.slow
def test_invalid_answer_of_one_cluster_does_not_block_others(
    head: LoopbackHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    invalid = LoopbackHead()
    invalid.jobs["no-status"] = {"submission_id": "no-status"}
    unwanted, tasks = add_job(head, KEY), Tasks(task={-1: "failed"})
    with (
        invalid.connected(monkeypatch, "invalid"),
        pytest.raises(ClusterUnreachableError, match="'invalid'"),
    ):
        reconcile(tasks, "invalid", "head")
    assert tasks.xcoms == {"return_value": [unwanted]}


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "is_stopped"), [("prod", False), ("staging", True), (None, True)])
def test_job_with_lease_of_other_deployment_is_not_stopped(
    head: LoopbackHead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: str | None, is_stopped: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__DEPLOYMENT", "staging")
    output = str(tmp_path / "out")
    by = {"dag": "dag", "run": "run", "task": "task", **({"deployment": owner} if owner else {})}
    LeaseStore(output).claim(None, LeaseClaim(1, "step", "head", by, "v"))
    head.has("step", "RUNNING", metadata={**KEY.metadata(), "step": "s", "output_path": output})
    assert reconcile(Tasks(task={-1: "failed"}), "head") == (["step"] if is_stopped else [])
    assert head.jobs["step"]["status"] == ("STOPPED" if is_stopped else "RUNNING")
    held = LeaseStore(output).read()
    assert held is not None and held.lease.is_live is not is_stopped
