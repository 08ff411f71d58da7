"""A restart of a head with many running jobs: how long there is no head, and whether each job goes on once.

Jobs of people and of Airflow's tasks run on a real head that keeps its state on disk. It is ended with all that runs on
it and started again, in the place of Ray's launcher: what that takes for ``ssh`` and containers is in no figure here.
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
    """What a restart took, and what became of the jobs.

    Attributes:
        people: How many jobs of people ran.
        tasks: How many of Airflow's tasks.
        kept_s: How long it took to keep those of people, while all went on.
        headless_s: The longest time in which the Jobs API did not answer.
        returned_s: From the head's first answer until all jobs of people were back.
        lost: Jobs that did not go on.
        twice: Jobs that began more than once more.
        retries: How many of Airflow's retries were spent.
    """

    people: int
    tasks: int
    kept_s: float
    headless_s: float
    returned_s: float
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
        """Have them submit their jobs."""
        connection = ray.connection
        self._api.put_connection(DAG, {**connection, "extra": json.dumps(connection["extra"])})
        self._api.wait_for_dag(DAG, WAIT_S)
        self._api.unpause(DAG)
        self._runs = [self._api.trigger(DAG, {"command": command}) for command in commands]

    def are_waiting(self) -> bool:
        """Whether the triggerer follows all of them."""
        return all(task["state"] == "deferred" for task in self._tasks())

    def end(self) -> tuple[int, int]:
        """How many did not succeed, and how many retries were spent, once all have ended."""
        for run in self._runs:
            self._api.wait_for_run(DAG, run, WAIT_S)
        tasks = self._tasks()
        failed = sum(task["state"] != "success" for task in tasks)
        return failed, sum(task["try_number"] - 1 for task in tasks)

    def _tasks(self) -> list[dict[str, Any]]:
        return [task for run in self._runs for task in self._api.task_instances(DAG, run)]


class BenchHead:
    """The head, and what is noted of it and on it."""

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
        """A job that notes that it begins, and ends when the gate is open."""
        return f"echo {name} >> {self._folder}/starts; until [ -e {self._folder}/gate ]; do sleep 2; done"

    def starts(self) -> Counter[str]:
        """Job → how often it began."""
        file = self._folder / "starts"
        return Counter(file.read_text().split()) if file.exists() else Counter()

    def open_gate(self) -> None:
        (self._folder / "gate").touch()

    # ---- as a restart wants it

    @contextmanager
    def reach(self, cluster: FleetCluster) -> Iterator[RayCluster]:
        yield self.there

    @contextmanager
    def reach_memory(self, cluster: FleetCluster) -> Iterator[str]:
        yield self.ray.gcs_address

    def check_restartable(self, *, is_begun: bool) -> None:
        """There is one head."""

    def inventory(self) -> Inventory:
        """The same for what looks at it."""
        return Inventory([VirtualMachine("head", "RUNNING", {"ray-node-type": "head"})])

    def relaunch(self, held: HeldClusterLock) -> None:
        held.check()
        self.ended_at = time.monotonic()
        self.ray.kill_head()
        self.ray.start_head()
        self.relaunched_at = time.monotonic()


class Silence:
    """The longest time between two answers of the Jobs API, which is asked all the time."""

    def __init__(self, jobs: RayJobs) -> None:
        self.longest_s = 0.0
        self._jobs = jobs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Silence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _listen(self) -> None:
        answered_at = time.monotonic()
        while not self._over.wait(LOOK_S):
            try:
                self._jobs.details("none")
            except RayJobsError:
                continue
            now = time.monotonic()
            self.longest_s, answered_at = max(self.longest_s, now - answered_at), now


def measure(people: int, tasks: int) -> dict[str, Any]:
    """The fields of a ``RestartCost``, with an Airflow for its tasks."""

    def write_dags(folder: Path, prefix: str) -> None:
        shutil.copy(DAG_FILE, folder)

    with (
        bench_airflow(write_dags, {}) as (_, api),
        tempfile.TemporaryDirectory(prefix="tw-bench-", ignore_cleanup_errors=True) as folder,
    ):
        return asdict(measure_on(Path(folder), people, WaitingTasks(api, tasks)))


def measure_on(folder: Path, people: int, tasks: WaitingTasks) -> RestartCost:
    """What the restart of a head costs on which so many jobs of people run, and those of ``tasks``."""
    head = BenchHead(folder)
    try:
        head.ray.start()
        jobs = RayJobs(head.there)
        names = [f"job-{number}" for number in range(people)]
        awaited = [f"task-{number}" for number in range(tasks.count)]
        tasks.begin(head.ray, [head.command(name) for name in awaited])
        for name in names:
            jobs.submit_or_attach(JobRequest(name, head.command(name), metadata={"user": "ada"}))
        until(lambda: len(head.starts()) == people + tasks.count and tasks.are_waiting(), lambda: str(head.starts()))
        began = time.monotonic()
        with Silence(jobs) as silence:
            found = restarted(head, folder)
            returned = time.monotonic()
            with suppress(RuntimeError):  # one that is lost never comes, and is counted below
                until(lambda: min(head.starts().values()) == 2, lambda: "some have not begun again")
        head.open_gate()
        lost, retries = tasks.end()
        new = [one.new for one in found if one.new is not None]
        until(lambda: all(status.has_ended for status in jobs.jobs()), lambda: "jobs go on though the gate is open")
        back = {job.job for job in jobs.jobs() if job.status == "SUCCEEDED"}
        return RestartCost(
            people, tasks.count, head.ended_at - began, silence.longest_s, returned - head.relaunched_at,
            lost + people - len(back.intersection(new)), sum(count > 2 for count in head.starts().values()), retries,
        )  # fmt: skip
    finally:
        head.ray.stop()


def restarted(head: BenchHead, folder: Path) -> list[RestoreResult]:
    """Restart it; what became of the jobs of people."""
    file = folder / "fleet.yaml"
    file.write_text(_FLEET)
    cluster = load_fleet(file).cluster()
    told: list[str] = []
    kept = ClusterJobBackup(
        cluster, told.append, root=folder / "state", reach=head.reach, reach_memory=head.reach_memory
    )  # fmt: skip
    marker = ClusterLock(cluster.name, str(folder / "marker.json"))
    return ClusterRestart(head, marker, JobPreservation(cluster, kept, told.append), told.append).run()
