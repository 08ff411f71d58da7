"""What every measurement needs: a Ray head behind a counting proxy, and one provider's Airflow on it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks import jobs_printer
from benchmarks.jobs_history import remember
from benchmarks.jobs_ids import HEAD_CPUS, SIZES_VARIABLE
from benchmarks.jobs_logs import Seen, fired_at, lines_of_task
from benchmarks.jobs_peers import ROOT, Provider
from benchmarks.jobs_proxy import CountingProxy
from tradewind.rehearsal.airflow_api import AirflowApi
from tradewind.rehearsal.local_airflow import LocalAirflow
from tradewind.rehearsal.local_ray import LocalRay
from tradewind.rehearsal.processes import LocalStack

DAG_FILES = Path(__file__).parent / "jobs_dags"
WAIT_S = 300.0
# More than the worker processes of a rehearsal: a peer that does not defer needs one for each job.
WORKER_PROCESSES = 10


@dataclass(frozen=True)
class TaskRun:
    """One run of a one-task DAG; times are seconds since the task's start, by Airflow's own record."""

    first_line: float | None
    """When its first line was logged; None if there was none."""
    first_lag: float | None
    """How long that line was on its way, from its print to the log."""
    end: float
    end_seen: float | None
    """How long after the job's end its trigger fired; None where nothing is deferred."""
    lines: list[Seen]


@dataclass(frozen=True)
class House:
    """One provider's Airflow, and the head behind the proxy."""

    provider: Provider
    airflow: LocalAirflow
    api: AirflowApi
    proxy: CountingProxy

    def run_job(self, dag_id: str, lines: int = 0, rate: float = 1.0) -> TaskRun:
        """Run the DAG's only task, whose job prints ``lines`` lines, and see when what was in its log."""
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
        seen, fired = lines_of_task(*where), fired_at(*where)
        first = seen[0] if seen else None
        job_ended = first.printed + lines / rate if first else None
        return TaskRun(
            first_line=first.logged - start if first else None,
            first_lag=first.logged - first.printed if first else None,
            end=end - start,
            end_seen=fired - job_ended if fired and job_ended else None,
            lines=seen,
        )


def printer(lines: int, rate: float) -> str:
    """The command of a job that prints ``lines`` lines at ``rate`` lines in a second."""
    return shlex.join([sys.executable, str(Path(jobs_printer.__file__).resolve()), str(lines), f"{rate:g}"])


@contextmanager
def ray_head(root: Path, finished: int = 0) -> Iterator[CountingProxy]:
    """A head that remembers ``finished`` jobs, reached through the proxy only; a job may wait on it for a day."""
    env = {"RAY_JOB_START_TIMEOUT_SECONDS": "86400"}
    ray = LocalRay(LocalStack(root), token="", num_cpus=HEAD_CPUS, env=env)
    try:
        ray.start()
        if finished:
            remember(ray.address, ray.gcs_address, finished)
        with CountingProxy(ray.address) as proxy:
            yield proxy
    finally:
        LocalStack(root).stop(grace_seconds=2.0)


@contextmanager
def house(root: Path, provider: Provider, proxy: CountingProxy, sizes: Sequence[int]) -> Iterator[House]:
    """The provider's Airflow with its DAG file and those of tasks that do nothing."""
    stack = LocalStack(root / provider.name)
    dags = stack.root / "dags"
    dags.mkdir(parents=True)
    for name in (provider.name, "plain"):
        shutil.copy(DAG_FILES / f"{name}.py", dags / f"bench_{name}.py")
    airflow = LocalAirflow(
        stack,
        dags_folder=dags,
        connections=provider.connections(proxy.address),
        settings=_settings(proxy.address, sizes),
        python=provider.python,
    )
    try:
        airflow.start()
        yield House(provider, airflow, AirflowApi(airflow.url, airflow.username, airflow.password), proxy)
    finally:
        stack.stop(grace_seconds=2.0)


def _settings(address: str, sizes: Sequence[int]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        "PYTHONPATH": path,
        "AIRFLOW__CORE__PARALLELISM": str(WORKER_PROCESSES),
        # By Airflow's own name, because a peer's environment has no Tradewind.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "airflow.utils.net.get_host_ip_address",
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "BENCH_ADDRESS": address,
        "BENCH_RUNNING_ENTRYPOINT": printer(3600, 1),
        SIZES_VARIABLE: json.dumps(list(sizes)),
    }


def until(condition: Callable[[], object], what: str, timeout: float = WAIT_S) -> None:
    """Wait for ``condition``."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.5)
