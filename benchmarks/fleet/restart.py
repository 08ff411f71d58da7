"""Restart of a head with many running jobs: time without a head, and whether each job continues exactly once.

Unmanaged jobs and jobs of Airflow's tasks run on a real head that keeps its state on disk. The benchmark kills the head
with all its processes and starts it again instead of Ray's launcher, so no figure includes ``ssh`` and containers.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.airflow.environment import bench_airflow
from benchmarks.harness import WAIT_S, until
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.inventory import Inventory, VirtualMachine
from tradewind.fleet.lifecycle.job_preservation import ClusterJobBackup, JobPreservation
from tradewind.fleet.lifecycle.restart import ClusterRestart
from tradewind.fleet.lock import ClusterLock, HeldClusterLock
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.job_restore import RestoreResult
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory

DAG_FILE = Path(__file__).parent / "dags" / "restarted.py"
DAG = "bench_restarted"
LOOK_S = 0.2
_FLEET = """\
default_cluster: bench
defaults:
  project: my-project
  head_service_account: head@my-project.iam.gserviceaccount.com
  worker_service_account: worker@my-project.iam.gserviceaccount.com
clusters:
  bench: {zone: us-central2-b, generation: v4, bucket: my-bucket}
"""


@dataclass(frozen=True)
class RestartCost:
    """Cost of a restart, and the fate of the jobs.

    Attributes:
        unmanaged: Number of unmanaged jobs.
        tasks: Number of jobs of Airflow's tasks.
        backup_s: Time of the job backup, while all jobs ran.
        headless_s: The longest time without an answer of the Jobs API.
        restored_s: From the head's first answer until all unmanaged jobs were submitted again.
        lost: Jobs that did not continue.
        twice: Jobs that were started again more than once.
        retries: Number of retries that Airflow used.
    """

    unmanaged: int
    tasks: int
    backup_s: float
    headless_s: float
    restored_s: float
    lost: int
    twice: int
    retries: int


class WaitingTasks:
    """Tasks of an Airflow, each of which waits for a job."""

    def __init__(self, api: AirflowApi, count: int) -> None:
        self.count = count
        self._api = api
        self._runs: list[str] = []

    def begin(self, ray: LocalRay, commands: list[str]) -> None:
        """Start the tasks, which submit their jobs."""
        connection = ray.connection
        self._api.put_connection(DAG, {**connection, "extra": json.dumps(connection["extra"])})
        self._api.wait_for_dag(DAG, WAIT_S)
        self._api.unpause(DAG)
        self._runs = [self._api.trigger(DAG, {"command": command}) for command in commands]

    def are_waiting(self) -> bool:
        """Whether the triggerer follows all of them."""
        return all(task["state"] == "deferred" for task in self._tasks())

    def end(self) -> tuple[int, int]:
        """Wait for all; return how many did not succeed, and how many retries were used."""
        for run in self._runs:
            self._api.wait_for_run(DAG, run, WAIT_S)
        tasks = self._tasks()
        failed = sum(task["state"] != "success" for task in tasks)
        return failed, sum(task["try_number"] - 1 for task in tasks)

    def _tasks(self) -> list[dict[str, Any]]:
        return [task for run in self._runs for task in self._api.task_instances(DAG, run)]


class BenchHead:
    """The head, the times of its restart, and the starts of its jobs."""

    def __init__(self, folder: Path) -> None:
        memory = head_memory(folder / "gcs")
        self.ray = LocalRay(LocalStack(folder / "ray"), num_cpus=2, env=memory)
        self.relaunched_at = 0.0
        self.ended_at = 0.0
        self._folder = folder

    @property
    def there(self) -> RayCluster:
        return RayCluster("bench", self.ray.address, self.ray.token)

    def command(self, name: str) -> str:
        """Return the command of a job that records its start, and ends when the gate is open."""
        return f"echo {name} >> {self._folder}/starts; until [ -e {self._folder}/gate ]; do sleep 2; done"

    def starts(self) -> Counter[str]:
        """Return job → number of starts."""
        file = self._folder / "starts"
        return Counter(file.read_text().split()) if file.exists() else Counter()

    def open_gate(self) -> None:
        (self._folder / "gate").touch()

    # ---- interface that a restart requires

    @contextmanager
    def reach(self, cluster: FleetCluster) -> Iterator[RayCluster]:
        yield self.there

    @contextmanager
    def reach_gcs(self, cluster: FleetCluster) -> Iterator[str]:
        yield self.ray.gcs_address

    def check_restartable(self, *, is_begun: bool) -> None:
        """Do nothing: the head can always restart."""

    def inventory(self) -> Inventory:
        """Return an inventory with the head."""
        return Inventory([VirtualMachine("head", "RUNNING", {"ray-node-type": "head"})])

    def relaunch(self, held: HeldClusterLock) -> None:
        held.check()
        self.ended_at = time.monotonic()
        self.ray.kill_head()
        self.ray.start_head()
        self.relaunched_at = time.monotonic()


class OutageMonitor:
    """Measures the longest time between two answers of the Jobs API."""

    def __init__(self, jobs: RayJobs) -> None:
        self.longest_s = 0.0
        self._jobs = jobs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> OutageMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _poll(self) -> None:
        answered_at = time.monotonic()
        while not self._over.wait(LOOK_S):
            try:
                self._jobs.details("none")
            except RayJobsError:
                continue
            now = time.monotonic()
            self.longest_s, answered_at = max(self.longest_s, now - answered_at), now


def measure(unmanaged: int, tasks: int) -> dict[str, Any]:
    """Return the fields of a ``RestartCost``, with an Airflow for its tasks."""

    def write_dags(folder: Path, prefix: str) -> None:
        shutil.copy(DAG_FILE, folder)

    with (
        bench_airflow(write_dags, {}) as (_, api),
        tempfile.TemporaryDirectory(prefix="tw-bench-", ignore_cleanup_errors=True) as folder,
    ):
        return asdict(measure_on(Path(folder), unmanaged, WaitingTasks(api, tasks)))


def measure_on(folder: Path, unmanaged: int, tasks: WaitingTasks) -> RestartCost:
    """Measure the restart of a head with these unmanaged jobs and those of ``tasks``."""
    head = BenchHead(folder)
    try:
        head.ray.start()
        jobs = RayJobs(head.there)
        names = [f"job-{number}" for number in range(unmanaged)]
        awaited = [f"task-{number}" for number in range(tasks.count)]
        tasks.begin(head.ray, [head.command(name) for name in awaited])
        for name in names:
            jobs.submit_or_attach(JobRequest(name, head.command(name), metadata={"user": "ada"}))
        until(lambda: len(head.starts()) == unmanaged + tasks.count and tasks.are_waiting(), lambda: str(head.starts()))
        began = time.monotonic()
        with OutageMonitor(jobs) as outage:
            results = restart(head, folder)
            returned = time.monotonic()
            with suppress(RuntimeError):  # a lost job never starts, and is counted below
                until(lambda: min(head.starts().values()) == 2, lambda: "some have not begun again")
        head.open_gate()
        lost, retries = tasks.end()
        new = [result.new for result in results if result.new is not None]
        until(lambda: all(status.has_ended for status in jobs.jobs()), lambda: "jobs run with an open gate")
        back = {job.job for job in jobs.jobs() if job.status == "SUCCEEDED"}
        return RestartCost(
            unmanaged, tasks.count, head.ended_at - began, outage.longest_s, returned - head.relaunched_at,
            lost + unmanaged - len(back.intersection(new)), sum(count > 2 for count in head.starts().values()), retries,
        )  # fmt: skip
    finally:
        head.ray.stop()


def restart(head: BenchHead, folder: Path) -> list[RestoreResult]:
    """Restart the head; return the results of the unmanaged jobs."""
    file = folder / "fleet.yaml"
    file.write_text(_FLEET)
    cluster = load_fleet(file).cluster()
    messages: list[str] = []
    state = folder / "state"
    backup = ClusterJobBackup(cluster, messages.append, root=state, reach=head.reach, reach_gcs=head.reach_gcs)
    lock = ClusterLock(cluster.name, str(folder / "lock.json"))
    return ClusterRestart(head, lock, JobPreservation(cluster, backup, messages.append), messages.append).run()
