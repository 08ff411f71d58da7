"""Two deployments with one prefix and equal run and task names keep their leases apart."""

from __future__ import annotations

import posixpath
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from tradewind import ExecutorStep, on_airflow_worker
from tradewind.operators.step import StepOperator
from tradewind.records.lease import Lease
from tradewind.records.lease_store import LeaseStore
from tradewind.serialization.spec import StepSpec
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.errors import UnnamedDeploymentError
from tradewind.tasks.step_try import Progress
from tradewind.triggers.lease import LeaseTrigger

NIGHT = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "AIRFLOW__TRADEWIND__DEPLOYMENT"


class Notes(dict[str, Any]):
    """Entries of a task in the task state store of its own deployment."""

    set = dict.__setitem__


class Airflow:
    """One of two deployments, as a task of the nightly run sees it."""

    def __init__(self, name: str, prefix: Path) -> None:
        self.name, self.notes = name, Notes()
        with DAG("nightly") as self.dag:
            step = ExecutorStep("train", posixpath.join, {}, resources=on_airflow_worker())
            settings = ExperimentSettings(prefix=str(prefix))
            self.task = StepOperator(task_id="train", step=step, settings=settings, plan_task_id="", deferrable=True)

    def context(self, try_number: int, max_tries: int = 3) -> Any:
        ti = SimpleNamespace(dag_id="nightly", run_id="scheduled__1", task_id="train", map_index=-1)
        ti.try_number, ti.max_tries = try_number, max_tries
        ti.xcom_push = ti.xcom_pull = lambda **_: None
        run = SimpleNamespace(data_interval_start=NIGHT, data_interval_end=None, partition_key=None, run_after=NIGHT)
        run.clear_number = 0
        return {"ti": ti, "dag": self.dag, "dag_run": run, "params": {}, "task_state_store": self.notes}

    def is_at_work(self, monkeypatch: pytest.MonkeyPatch) -> LeaseStore:
        """Claim the lease in the first try and start its lease owner."""
        monkeypatch.setenv(NAME, self.name)
        turns = self.task._new_try(self.context(1), Progress()).step_lease
        spec = StepSpec("train", turns.name, turns.path, "", None, None, {"kind": "airflow_worker"}, False)
        turn = turns.claim(None, lambda: spec)
        assert turn is not None
        turns.store.take_over(turn.attempt.job, "keeper")
        return turns.store

    def starts(self, monkeypatch: pytest.MonkeyPatch, try_number: int, max_tries: int = 3) -> None:
        monkeypatch.setenv(NAME, self.name)
        self.task.execute(self.context(try_number, max_tries))


def lease_of(store: LeaseStore) -> Lease:
    held = store.read()
    assert held is not None
    return held.lease


def test_a_clear_in_staging_stops_nothing_in_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Airflow("prod", tmp_path).is_at_work(monkeypatch)
    with pytest.raises(TaskDeferred) as deferred:
        Airflow("staging", tmp_path).starts(monkeypatch, try_number=2, max_tries=4)
    assert isinstance(deferred.value.trigger, LeaseTrigger), "it waits for the other's turn"
    assert lease_of(store).stop_requested is None
    assert lease_of(store).by["deployment"] == "prod"


@pytest.mark.parametrize(("theirs", "ours"), [("", "staging"), ("prod", ""), ("", "")])
def test_foreign_lease_is_refused_for_unnamed_deployment(
    theirs: str, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Airflow(theirs, tmp_path).is_at_work(monkeypatch)
    with pytest.raises(UnnamedDeploymentError, match=r"set `\[tradewind\] deployment` to a name of its own in each"):
        Airflow(ours, tmp_path).starts(monkeypatch, try_number=2, max_tries=4)
    assert lease_of(store).stop_requested is None


def test_unnamed_deployment_recognizes_own_lease_of_earlier_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow("", tmp_path)
    store = airflow.is_at_work(monkeypatch)
    with pytest.raises(TaskDeferred):  # the task waits for an earlier try that still runs in a worker
        airflow.starts(monkeypatch, try_number=2)
    assert lease_of(store).attempt == 1
