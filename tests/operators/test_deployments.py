"""Two deployments with one prefix and equal run and task names keep their leases apart."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from tests.operators.contexts import Notes, step_task
from tradewind import ExecutorStep, on_airflow_worker
from tradewind.records.lease import Lease, lease_path
from tradewind.records.lease_store import LeaseStore
from tradewind.serialization.spec import StepSpec
from tradewind.tasks.errors import BadInputError, UnnamedDeploymentError
from tradewind.tasks.step_try import Progress
from tradewind.triggers.lease import LeaseTrigger

STEP = ExecutorStep("train", posixpath.join, {}, resources=on_airflow_worker())


class Airflow:
    """One of two deployments, as a task of the nightly run sees it."""

    def __init__(self, name: str, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.notes, self._monkeypatch = name, Notes(), monkeypatch
        self.task, self._context = step_task(prefix, step=STEP, deferrable=True)

    def context(self, try_number: int, max_tries: int = 3) -> Any:
        """Return the context of a try, after this deployment's settings were made current."""
        self._monkeypatch.setenv("AIRFLOW__TRADEWIND__DEPLOYMENT", self.name)
        vars(self._context["ti"]).update(try_number=try_number, max_tries=max_tries)
        return {**self._context, "task_state_store": self.notes}

    def begin(self) -> LeaseStore:
        """Claim the lease in the first try and start its lease owner."""
        step_lease = self.task._new_try(self.context(1), Progress()).step_lease
        spec = StepSpec("train", step_lease.name, step_lease.path, "", None, None, {"kind": "airflow_worker"}, False)
        claimed = step_lease.claim(None, lambda: spec)
        assert claimed is not None
        step_lease.store.take_over(claimed.attempt.job, "owner")
        return step_lease.store

    def start(self, try_number: int, max_tries: int = 3) -> None:
        self.task.execute(self.context(try_number, max_tries))


def lease_of(store: LeaseStore) -> Lease:
    held = store.read()
    assert held is not None
    return held.lease


def test_a_clear_in_staging_stops_nothing_in_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Airflow("prod", tmp_path, monkeypatch).begin()
    with pytest.raises(TaskDeferred) as deferred:
        Airflow("staging", tmp_path, monkeypatch).start(try_number=2, max_tries=4)
    assert isinstance(deferred.value.trigger, LeaseTrigger), "it waits for the other's attempt"
    assert lease_of(store).stop_requested is None
    assert lease_of(store).by["deployment"] == "prod"


@pytest.mark.parametrize(("theirs", "ours"), [("", "staging"), ("prod", ""), ("", "")])
def test_foreign_lease_is_refused_for_unnamed_deployment(
    theirs: str, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Airflow(theirs, tmp_path, monkeypatch).begin()
    with pytest.raises(UnnamedDeploymentError, match=r"set `\[tradewind\] deployment` to a name of its own in each"):
        Airflow(ours, tmp_path, monkeypatch).start(try_number=2, max_tries=4)
    assert lease_of(store).stop_requested is None


def test_unnamed_deployment_recognizes_own_lease_of_earlier_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow("", tmp_path, monkeypatch)
    store = airflow.begin()
    with pytest.raises(TaskDeferred):  # the task waits for an earlier try that still runs in a worker
        airflow.start(try_number=2)
    assert lease_of(store).attempt == 1


def test_unreadable_lease_fails_task_and_starts_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow("prod", tmp_path, monkeypatch)
    output = airflow.task._new_try(airflow.context(1), Progress()).step_lease.path
    file = Path(lease_path(output))
    file.parent.mkdir(parents=True)
    file.write_text('{"worker_id": "w", "timest')
    with pytest.raises(BadInputError, match=f"Step 'train': The lease {file} cannot be read, because it holds no JSON"):
        airflow.start(try_number=1)
    assert [path.name for path in Path(output).iterdir()] == [file.name]
