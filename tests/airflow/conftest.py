"""Start one real Airflow and one real Ray cluster with a simulated slice for all tests in this folder."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.evaluation.conftest import LM_EVAL
from tests.serving import tiny_engine
from tests.support.clusters import CALM
from tests.support.pages import write_scheduled_examples
from tests.support.waiting import limit_s
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack, free_port
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

HERE = Path(__file__).parent
TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
RUN_TIMEOUT_S = 800.0
HEARTBEAT_S = 6.0
"""Heartbeat interval of leases; a lease is stale three times as long after its owner was killed."""
PASSPHRASE = "only the cluster knows"
"""Value of ``PASSPHRASE_OF_CLUSTER`` in the environment of the cluster's nodes."""
NIGHTLY_ZONE = "Europe/Berlin"
"""Time zone of the nightly pipeline: its clocks go forward on 29 March 2026."""


@dataclass(frozen=True)
class Environment:
    """Test environment: Airflow's API and command line, the cluster's address, the store, the DAG files."""

    airflow: LocalAirflow
    api: AirflowApi
    ray_address: str
    store: Path
    dags: Path

    def run(self, dag_id: str, conf: dict[str, Any] | None = None) -> DagRun:
        """Trigger a run and wait for its end."""
        run = self.begin(dag_id, conf)
        run.wait()
        return run

    def begin(self, dag_id: str, conf: dict[str, Any] | None = None, date: datetime | None = None) -> DagRun:
        """Trigger a run, for a logical date if ``date`` is given."""
        self.api.wait_for_dag(dag_id, limit_s())
        self.api.unpause(dag_id)
        return DagRun(self, dag_id, self.api.trigger(dag_id, conf, date))

    def backfill(self, dag_id: str, first: str, last: str, conf: dict[str, Any]) -> list[DagRun]:
        """Backfill from the command line, all dates at once, and wait for the end of every run.

        Other components must not write meanwhile: SQLite refuses a write in a savepoint that has read before theirs.
        """
        self.api.wait_for_dag(dag_id, limit_s())
        before = {run["dag_run_id"] for run in self.api.dag_runs(dag_id)}
        command = ["backfill", "create", "--dag-id", dag_id, "--from-date", first, "--to-date", last]
        with self.idle("dag-processor", "triggerer"):
            done = self.airflow.cli(*command, "--dag-run-conf", json.dumps(conf))
            # Unpause the DAG only now: Airflow creates a run for an unpaused DAG with a schedule,
            # and the scheduler would wait for its task.
            self.api.unpause(dag_id)
        assert done.returncode == 0, done.stderr
        ids = [run["dag_run_id"] for run in self.api.dag_runs(dag_id) if run["dag_run_id"].startswith("backfill__")]
        runs = [DagRun(self, dag_id, run_id) for run_id in ids if run_id not in before]
        for run in runs:
            run.wait()
        return runs

    @contextmanager
    def idle(self, *components: str) -> Iterator[None]:
        """Stop the scheduler and ``components`` for the length of the block, in which a test creates many runs.

        On SQLite, a starting task and the API server would each wait for the other's lock.
        """
        with ExitStack() as restarts:
            for name in ("scheduler", *components):
                restarts.callback(self.airflow.start_component, name)
                self.airflow.stop_component(name)
            yield

    def output(self, name: str) -> Path:
        """Return the only output of the step."""
        [path] = self.store.glob(f"{name}-??????")
        return path

    def attempts(self, name: str) -> int:
        """Count the attempts at all versions of the step."""
        return len(list(self.store.glob(f"{name}-??????/.attempts/*.json")))


@dataclass(frozen=True)
class DagRun:
    """One run of a DAG."""

    env: Environment
    dag_id: str
    run_id: str

    @property
    def state(self) -> str:
        return str(self.env.api.dag_run(self.dag_id, self.run_id)["state"])

    def wait(self) -> None:
        """Wait until the run has ended; fail at once if a component of Airflow has died."""
        self.env.api.wait_for_run(
            self.dag_id, self.run_id, RUN_TIMEOUT_S, on_poll=lambda run: self.env.airflow.raise_if_a_component_died()
        )

    def task(self, task_id: str) -> dict[str, Any]:
        """Return the task instance as the API reports it."""
        tasks = self.env.api.task_instances(self.dag_id, self.run_id)
        return next(task for task in tasks if task["task_id"] == task_id)

    def states(self) -> dict[str, str]:
        """Task id → state."""
        return {task["task_id"]: task["state"] for task in self.env.api.task_instances(self.dag_id, self.run_id)}

    def decisions(self) -> dict[str, str]:
        """Task id → decision of the plan."""
        plan = self.env.api.xcom(self.dag_id, self.run_id, "plan")
        return {step["task_id"]: step["decision"] for step in plan["steps"]}

    def log(self, task_id: str, number: int | None = None) -> str:
        """Return the log of a try of the task, by default the last; empty before the first try."""
        number = number or self.task(task_id)["try_number"]
        return self.env.api.task_log(self.dag_id, self.run_id, task_id, number) if number else ""

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs of its tasks on the shared cluster, oldest first."""
        return jobs_of(self.env.ray_address, self.run_id)

    def job_statuses(self) -> list[str]:
        """Return the status of each of these jobs, oldest first."""
        return [job["status"] for job in self.jobs()]

    def active_jobs(self) -> int:
        """Count these jobs that have not ended."""
        return sum(status not in TERMINAL for status in self.job_statuses())


@pytest.fixture(scope="package")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    root = tmp_path_factory.mktemp("env")
    store, dags = root / "store", root / "dags"
    shutil.copytree(HERE / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE.parents[1] / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    shutil.copy(tiny_engine.__file__, dags)  # engines of a pool that an evaluation starts
    write_scheduled_examples(dags)
    put_into_zone(dags / "nightly_code_lm.py", NIGHTLY_ZONE)
    for evaluating in ("compare_models.py", "evaluate_model.py"):
        put_on_cluster(dags / evaluating, "with_lm_eval")
    # A test edits this copy. It is written now, because Airflow stores changes of a DAG at least 30 s apart.
    text = (dags / "plain_retries.py").read_text().replace("plain_retries", "lowered_retries")
    (dags / "lowered_retries.py").write_text(text.replace("plain/retried", "plain/lowered"))
    (root / "airflow_only").mkdir()
    (root / "airflow_only" / "only_in_airflow.py").write_text("def work_elsewhere(config): ...\n")
    stack = LocalStack(root)
    slices, variables = [LocalSlice("slice-a", "v4-16")], {"PASSPHRASE_OF_CLUSTER": PASSPHRASE}
    ray = LocalRay(stack, token="", num_cpus=4, slices=slices, env=variables)
    storage = LocalCloudStorage()
    storage.start()
    storage.buckets.create("recovered-bucket")
    airflow = LocalAirflow(
        stack,
        dags_folder=dags,
        connections={
            "ray_default": connection(ray.address, bucket=str(store)),
            "bare": connection(ray.address),
            "with_lm_eval": connection(ray.address, bucket=str(store), python=str(python_with_lm_eval(root))),
            "gone": connection(f"http://127.0.0.1:{free_port()}", bucket=str(store)),
        },
        settings={
            **CALM,
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__TRADEWIND__FLEET_FILE": str(write_fleet(root)),
            "AIRFLOW__TRADEWIND__LEASE_HEARTBEAT_SECONDS": str(HEARTBEAT_S),
            "AIRFLOW__TRADEWIND__ALLOWED_ROOTS": str(tmp_path_factory.getbasetemp()),
            "PYTHONPATH": str(root / "airflow_only"),
            "STORAGE_EMULATOR_HOST": storage.url,  # its bucket stores the locks of the fleet's clusters
        },
    )
    try:
        ray.start()
        airflow.start()
        yield Environment(
            airflow, AirflowApi(airflow.url, airflow.username, airflow.password), ray.address, store, dags
        )
    finally:
        stack.stop(grace_seconds=5.0)
        storage.stop()
    assert stack.processes() == []


def write_fleet(folder: Path) -> Path:
    """Write a fleet file with the one cluster that the maintenance DAG checks."""
    account = "ray@rehearsal.iam.gserviceaccount.com"
    cluster = {
        "project": "rehearsal",
        "zone": "us-central2-b",
        "generation": "v4",
        "bucket": "recovered-bucket",
        "head_service_account": account,
        "worker_service_account": account,
        "connection": "tpu_cluster",
    }
    file = folder / "fleet.yaml"
    file.write_text(json.dumps({"default_cluster": "recovered", "clusters": {"recovered": cluster}}))  # JSON is YAML
    return file


def put_into_zone(dag_file: Path, zone: str) -> None:
    """Set the time zone of a daily pipeline; in a zone without clock changes all days have equal length."""
    text = dag_file.read_text()
    daily = 'schedule="@daily",'
    assert text.count(daily) == 1
    dag_file.write_text(text.replace(daily, f'{daily} timezone="{zone}",'))


def put_on_cluster(dag_file: Path, cluster: str) -> None:
    """Set the cluster of a pipeline."""
    text = dag_file.read_text()
    assert text.count("\n    description=") == 1
    dag_file.write_text(text.replace("\n    description=", f'\n    cluster="{cluster}",\n    description='))


def python_with_lm_eval(folder: Path) -> Path:
    """Write a command that is this Python with lm-eval, which Levanter would import in all other tests."""
    command = folder / "python-with-lm-eval"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={LM_EVAL} exec {sys.executable} "$@"\n')
    command.chmod(0o755)
    return command


def connection(address: str, **extra: str) -> str:
    return json.dumps({"conn_type": "ray", "host": address, "extra": extra})


def jobs_of(address: str, run_id: str, token: str | None = None) -> list[dict[str, Any]]:
    """Return the jobs that the tasks of a run submitted, oldest first."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = requests.get(f"{address}/api/jobs/", headers=headers, timeout=30)
    answer.raise_for_status()
    jobs = [job for job in answer.json() if (job.get("metadata") or {}).get("airflow_run") == run_id]
    return sorted(jobs, key=lambda job: job["start_time"])
