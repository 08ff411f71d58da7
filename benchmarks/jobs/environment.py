"""Test environment of each measurement: a Ray head behind a counting proxy, and an Airflow with one provider."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.airflow.environment import bench_airflow
from benchmarks.harness import WAIT_S, until
from benchmarks.jobs import printer as printer_script
from benchmarks.jobs.ids import HEAD_CPUS, SIZES_VARIABLE
from benchmarks.jobs.logs import LoggedLine, fired_at, lines_of_task
from benchmarks.jobs.peers import Provider
from benchmarks.jobs.proxy import CountingProxy
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

DAG_FILES = Path(__file__).parent / "dags"
ENDED = "ended-long-ago"
# More than the worker processes of a rehearsal: a peer that does not defer needs one for each job.
WORKER_PROCESSES = 10


@dataclass(frozen=True)
class TaskRun:
    """One run of a one-task DAG; times are seconds since the task's start, as Airflow recorded it."""

    first_line: float | None
    """Time of its first logged line; None without lines."""
    first_lag: float | None
    """From the print of that line to its log record."""
    end: float
    end_seen: float | None
    """From the job's end to its trigger's event; None without deferral."""
    lines: list[LoggedLine]


@dataclass(frozen=True)
class JobsEnvironment:
    """An Airflow with one provider, and the head behind the proxy."""

    provider: Provider
    airflow: LocalAirflow
    api: AirflowApi
    proxy: CountingProxy

    def run_job(self, dag_id: str, lines: int = 0, rate: float = 1.0) -> TaskRun:
        """Run the DAG's only task, whose job prints ``lines`` lines, and read the times in its log."""
        self.api.wait_for_dag(dag_id, WAIT_S)
        self.api.unpause(dag_id)
        run_id = self.api.trigger(dag_id, {"entrypoint": printer(lines, rate)})
        run = self.api.wait_for_run(dag_id, run_id, WAIT_S)
        [task] = self.api.task_instances(dag_id, run_id)
        if run["state"] != "success":
            log = self.api.task_log(dag_id, run_id, "job", task["try_number"])
            raise RuntimeError(f"{self.provider.name}: {dag_id} ended as {run['state']}:\n{log[-3000:]}")
        start, end = (datetime.fromisoformat(task[key]).timestamp() for key in ("start_date", "end_date"))
        where = (self.airflow.home / "logs", dag_id, run_id, "job")
        logged, fired = lines_of_task(*where), fired_at(*where)
        first = logged[0] if logged else None
        job_ended = first.printed + lines / rate if first else None
        return TaskRun(
            first_line=first.logged - start if first else None,
            first_lag=first.logged - first.printed if first else None,
            end=end - start,
            end_seen=fired - job_ended if fired and job_ended else None,
            lines=logged,
        )


def printer(lines: int, rate: float) -> str:
    """Return the command of a job that prints ``lines`` lines at ``rate`` lines per second."""
    return shlex.join([sys.executable, str(Path(printer_script.__file__).resolve()), str(lines), f"{rate:g}"])


@contextmanager
def ray_head(finished: int = 0) -> Iterator[CountingProxy]:
    """Run a head with ``finished`` ended jobs behind a proxy; a job may wait on it for a day."""
    env = {"RAY_JOB_START_TIMEOUT_SECONDS": "86400"}
    with tempfile.TemporaryDirectory(prefix="tw-bench-", ignore_cleanup_errors=True) as root:
        ray = LocalRay(LocalStack(Path(root)), token="", num_cpus=HEAD_CPUS, env=env)
        try:
            ray.start()
            if finished:
                _store_ended_jobs(ray, finished)
            with CountingProxy(ray.address) as proxy:
                yield proxy
        finally:
            ray.stack.stop(grace_seconds=2.0)


def _store_ended_jobs(ray: LocalRay, count: int) -> None:
    """Store ``count`` ended jobs in the head's GCS: copies of the record of one that really ran."""
    from ray._private import ray_constants
    from ray._raylet import GcsClient
    from ray.dashboard.modules.job.common import JobInfoStorageClient
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(ray.address)
    client.submit_job(entrypoint="true", submission_id=ENDED)
    until(lambda: client.get_job_status(ENDED).is_terminal(), lambda: f"job {ENDED} has not ended")
    store, key = GcsClient(address=ray.gcs_address), JobInfoStorageClient.JOB_DATA_KEY
    namespace = ray_constants.KV_NAMESPACE_JOB
    record = store.internal_kv_get(key.format(job_id=ENDED).encode(), namespace)
    for number in range(count - 1):
        name = key.format(job_id=f"{ENDED}-{number:05}").encode()
        store.internal_kv_put(name, record, True, namespace)


@contextmanager
def running_airflow(provider: Provider, proxy: CountingProxy, sizes: Sequence[int]) -> Iterator[JobsEnvironment]:
    """Run an Airflow with the provider's DAG file and those of tasks that do nothing."""

    def write_dags(folder: Path, prefix: str) -> None:
        for name in (provider.name, "plain"):
            shutil.copy(DAG_FILES / f"{name}.py", folder / f"bench_{name}.py")

    settings = {
        "AIRFLOW__CORE__PARALLELISM": str(WORKER_PROCESSES),
        # By Airflow's own name, because a peer's environment has no Tradewind.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "airflow.utils.net.get_host_ip_address",
        "BENCH_ADDRESS": proxy.address,
        "BENCH_RUNNING_ENTRYPOINT": printer(3600, 1),
        SIZES_VARIABLE: json.dumps(list(sizes)),
    }
    with bench_airflow(write_dags, settings, provider.connections(proxy.address), provider.python) as (airflow, api):
        yield JobsEnvironment(provider, airflow, api, proxy)
