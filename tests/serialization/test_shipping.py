"""Jobs on a real Ray head carry their call, the package and references to secrets."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.runtime.dag_files import NO_AIRFLOW, load_dag_file
from tests.support.shared_clusters import NODE_SECRET, shared_cluster
from tests.support.waiting import until
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.ray_jobs.worker_python import start_command
from tradewind.runtime.with_secrets import with_secrets
from tradewind.serialization.callables import describe_call
from tradewind.serialization.job_start import JobStart, start_env
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.shipping import (
    CALL_ENTRYPOINT,
    MAX_ENV_VALUE_BYTES,
    call_runtime_env,
    decode_result,
    result_marker,
)

pytestmark = pytest.mark.ray

DAG_FILE = """
import os
from dataclasses import dataclass

from airflow.sdk import task


@dataclass
class Row:
    n: int


def row(n):
    return Row(n * 10)


@task
def where_from():
    import sys

    import tradewind

    return [tradewind.__file__, sys.modules["tradewind.serialization.shipping"].__file__]


@task
def length(text):
    return len(text)


@task
def spreads(n):
    import ray

    remote_row = ray.remote(num_cpus=0.1)(row)
    return {"rows": [remote_row.remote(i) for i in range(n)]}


@task
def secret_part():
    print("half a line", end="")
    return os.environ["KEY"][:6]
"""


@dataclass
class Cluster:
    """A head, its jobs, and the DAG file whose functions they run."""

    jobs: RayJobs
    dag_file: Any
    folder: Path

    def submit(self, job: str, function: str, *args: Any, secrets: dict[str, str] | None = None) -> None:
        code = CodeFolder(self.folder)
        call = describe_call(getattr(self.dag_file, function).function, args, {}, code, result_marker(job))
        entrypoint, env = with_secrets(CALL_ENTRYPOINT, secrets or {}, "Task 't'")
        base = {"env_vars": {"PYTHONPATH": str(NO_AIRFLOW), **env}}
        with call_runtime_env(call, start_env(base, JobStart("always"))) as runtime_env:
            runtime_env, entrypoint = prepare_runtime_env(runtime_env), start_command(entrypoint)
            self.jobs.submit_or_attach(JobRequest(job, entrypoint, runtime_env, num_cpus=0.1))

    def listed(self) -> list[dict[str, Any]]:
        """Return the job data that any client of the cluster can read."""
        answer = requests.get(f"{self.jobs.cluster.address}/api/jobs/", timeout=60)
        answer.raise_for_status()
        return list(answer.json())

    def result(self, job: str) -> Any:
        def ended() -> JobDetails | None:
            details = self.jobs.details(job)
            return details if details and details.has_ended else None

        details = until(ended, f"the end of {job}", seen=lambda: self.jobs.details(job))
        log = self.jobs.log_text(job) or ""
        assert details is not None and details.status == "SUCCEEDED", log
        last = log.splitlines()[-1]
        assert last.startswith(result_marker(job)), log
        return decode_result(last.removeprefix(result_marker(job)), job)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("dags")
    jobs = RayJobs(RayCluster("here", shared_cluster("open").address))
    return Cluster(jobs, load_dag_file(folder, DAG_FILE), folder)


def test_job_imports_the_package_that_it_brought(cluster: Cluster) -> None:
    cluster.submit("shipping-where", "where_from")
    for file in cluster.result("shipping-where"):
        assert "/runtime_resources/py_modules_files/" in file
        assert not file.startswith(str(Path(sys.prefix)))


def test_call_too_large_for_a_variable_arrives(cluster: Cluster) -> None:
    cluster.submit("shipping-large", "length", "x" * 10 * MAX_ENV_VALUE_BYTES)
    assert cluster.result("shipping-large") == 10 * MAX_ENV_VALUE_BYTES
    (entry,) = [each for each in cluster.listed() if each["submission_id"] == "shipping-large"]
    assert len(json.dumps(entry["runtime_env"])) < MAX_ENV_VALUE_BYTES


def test_ray_tasks_can_use_definitions_of_a_dag_file(cluster: Cluster) -> None:
    cluster.submit("shipping-spreads", "spreads", 3)
    assert cluster.result("shipping-spreads") == {"rows": [{"n": 0}, {"n": 10}, {"n": 20}]}


def test_function_gets_secret_and_cluster_clients_do_not(cluster: Cluster) -> None:
    cluster.submit("shipping-secret", "secret_part", secrets={"KEY": "env:ON_THE_NODE"})
    assert cluster.result("shipping-secret") == "s3cr3t"
    listed = json.dumps(cluster.listed())
    assert "env:ON_THE_NODE" in listed
    assert NODE_SECRET not in listed + str(cluster.jobs.log_text("shipping-secret"))
