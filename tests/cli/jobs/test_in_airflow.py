"""``airflow tradewind jobs`` and ``reconcile`` on Airflow's own database."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from tests.support.shared_clusters import shared_cluster
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.tasks.address import TaskKey

pytestmark = pytest.mark.slow

DEPLOYMENT = "the-test"
LASTING = "python -u -c 'import time; time.sleep(600)'"


def test_airflows_other_commands_load_nothing_heavy_for_these() -> None:
    code = (
        "import sys\n"
        "from tradewind.cli.airflow_commands import get_cmds\n"
        "assert [command.name for command in get_cmds()] == ['tradewind']\n"
        "ours = {name.split('.')[1] for name in sys.modules if name.startswith('tradewind.')}\n"
        "assert not {'hooks', 'operators', 'ray_jobs', 'triggers'} & ours, ours\n"
        "assert 'tradewind.cli.main' not in sys.modules\n"
        "assert not {'ray', 'aiohttp'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def ray() -> LocalRay:
    """Return the cluster without a token, which several files share."""
    return shared_cluster("open")


@pytest.fixture
def jobs(ray: LocalRay) -> Iterator[RayJobs]:
    """Yield the cluster's jobs; stop this file's running jobs at the end."""
    jobs = RayJobs(RayCluster("here", ray.address))
    yield jobs
    for job in lasting(jobs):
        requests.post(f"{ray.address}/api/jobs/{job}/stop", timeout=30).raise_for_status()


@pytest.fixture(scope="module")
def airflow(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> LocalAirflow:
    """Create an Airflow database with the cluster's connection; no Airflow process runs."""
    root = tmp_path_factory.mktemp("airflow")
    (root / "dags").mkdir()
    settings = {"AIRFLOW__TRADEWIND__DEPLOYMENT": DEPLOYMENT}
    airflow = LocalAirflow(LocalStack(root), dags_folder=root / "dags", connections={}, settings=settings)
    airflow.prepare()
    stored = {"conn_type": "ray", "host": ray.address, "is_encrypted": False, "is_extra_encrypted": False}
    insert(airflow, "connection", conn_id="ray_default", **stored)
    return airflow


def insert(airflow: LocalAirflow, table: str, **values: object) -> None:
    with closing(sqlite3.connect(Path(airflow.home, "airflow.db"))) as database, database:
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        database.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values()))


def has_task(airflow: LocalAirflow, key: TaskKey, state: str | None) -> None:
    """Store the task in this state in Airflow's database."""
    identity = {"task_id": key.task, "dag_id": key.dag, "run_id": key.run, "map_index": key.map_index}
    slot = {"max_tries": 0, "pool": "default_pool", "pool_slots": 1, "span_status": "not_started"}
    tried = {"id": uuid.uuid4().hex, "try_number": key.try_number, "state": state}
    insert(airflow, "task_instance", **identity, **slot, **tried)


def lasting(jobs: RayJobs) -> set[str]:
    """Return this file's jobs that have not ended."""
    return {job.job for job in jobs.jobs() if not job.has_ended and job.job.startswith("dag-")}


def submitted(jobs: RayJobs, key: TaskKey, deployment: str = DEPLOYMENT, waits: bool = True) -> str:
    """Submit a long job of this task; return its ID."""
    job = f"{key.dag}-{key.run}-{key.task}-{key.map_index}-{deployment}-{waits}"
    metadata = {**key.metadata(waits=waits), "airflow_deployment": deployment}
    assert jobs.submit_or_attach(JobRequest(job, LASTING, metadata=metadata))
    return job


@pytest.mark.ray
@pytest.mark.airflow
def test_reconcile_stops_the_jobs_that_no_task_waits_for(jobs: RayJobs, airflow: LocalAirflow) -> None:
    ended, alive = TaskKey("dag", "run", "ended", -1, 1), TaskKey("dag", "run", "many", 2, 1)
    deleted = TaskKey("dag", "no-run", "ended", -1, 1)
    has_task(airflow, ended, "failed")
    has_task(airflow, alive, "deferred")
    has_task(airflow, TaskKey("dag", "run", "many", 1, 1), "success")
    has_task(airflow, TaskKey("dag", "run", "many_2", -1, 1), "success")
    wanted = {submitted(jobs, ended), submitted(jobs, deleted)}
    left = {submitted(jobs, alive), submitted(jobs, ended, "another"), submitted(jobs, ended, waits=False)}

    listed = airflow.cli("tradewind", "reconcile", "--dry-run")
    assert (listed.returncode, set(listed.stdout.splitlines())) == (0, wanted), listed.stderr
    assert lasting(jobs) == wanted | left

    done = airflow.cli("tradewind", "reconcile", "--cluster", "ray_default", "--cluster", "gone")
    assert set(done.stdout.splitlines()) == wanted, done.stderr
    assert done.returncode == 1 and "There is no connection 'gone'" in done.stderr
    assert {job.job: job.status for job in jobs.jobs() if job.job in wanted} == dict.fromkeys(wanted, "STOPPED")
    assert lasting(jobs) == left


@pytest.mark.ray
@pytest.mark.airflow
def test_a_job_of_airflows_connection_is_listed_as_json_alone(jobs: RayJobs, airflow: LocalAirflow) -> None:
    assert jobs.submit_or_attach(JobRequest("of-airflow", "true", metadata={"owner": "us"}))
    listed = airflow.cli("tradewind", "jobs", "list", "--all", "--json", "--metadata", "owner=us")
    assert [one["job"] for one in json.loads(listed.stdout)] == ["of-airflow"], listed.stderr
    missing = airflow.cli("tradewind", "jobs", "list", "--cluster", "gone")
    assert missing.returncode == 1 and "There is no connection 'gone'" in missing.stderr
