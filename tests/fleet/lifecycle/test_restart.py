"""Restart of a real head: users' jobs come back once each, wherever a kill interrupts it; tasks' jobs do not."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fleet.fleets import HEAD as FLEET
from tests.fleet.lifecycle.filed_jobs import OneHeadManager
from tests.support.waiting import until
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager
from tradewind.fleet.lifecycle.job_preservation import ClusterJobBackup, JobPreservation
from tradewind.fleet.lifecycle.restart import ClusterRestart
from tradewind.fleet.lock import ClusterLock, LockState
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.gcs_reader import read_head
from tradewind.ray_jobs.nodes import HeadView, fetch_view
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory

pytestmark = [pytest.mark.ray]

TASK = {"airflow_dag": "d", "airflow_run": "r", "airflow_task": "t", "airflow_waits": "yes"}
STEP = {"step": "s-abc", "output_path": "gs://bucket/s-abc"}
HIDDEN = "hidden-from-all-logs"


@dataclass
class Head:
    """A cluster of the fleet whose head is a process on this machine."""

    cluster: FleetCluster
    ray: LocalRay
    folder: Path
    messages: list[str] = field(default_factory=list)

    @property
    def connection(self) -> RayCluster:
        return RayCluster("here", self.ray.address, self.ray.token)

    @property
    def marker(self) -> Any:
        stored = ClusterLock.of(self.cluster).read()
        assert stored is not None
        return stored.marker

    @contextmanager
    def reach(self, cluster: FleetCluster) -> Iterator[RayCluster]:
        yield self.connection

    @contextmanager
    def reach_gcs(self, cluster: FleetCluster) -> Iterator[str]:
        yield self.ray.gcs_address

    def backup(self, tell: Callable[[str], None] | None = None) -> ClusterJobBackup:
        return ClusterJobBackup(
            self.cluster, tell or self.messages.append, root=self.folder / "state", reach=self.reach,
            reach_gcs=self.reach_gcs, timeout_s=120.0,
        )  # fmt: skip

    def submit(self, job: str, entrypoint: str, **fields: Any) -> None:
        """Submit a job that records each of its starts."""
        note = f"echo {job} >> {self.folder / 'starts'}"
        RayJobs(self.connection).submit_or_attach(JobRequest(job, f"{note}; {entrypoint}", **fields))

    def log(self, job: str) -> str | None:
        return RayJobs(self.connection).log_text(job)

    def starts(self) -> list[str]:
        file = self.folder / "starts"
        return sorted(file.read_text().split()) if file.exists() else []

    def statuses(self) -> dict[str, str]:
        return {job.job: job.status for job in RayJobs(self.connection).jobs()}


def restart_of(head: Head, backup: ClusterJobBackup, relaunch: Callable[[], None], tell: Any = None) -> ClusterRestart:
    manager, tell = cast(ClusterManager, OneHeadManager(relaunch)), tell or head.messages.append
    return ClusterRestart(manager, ClusterLock.of(head.cluster), JobPreservation(head.cluster, backup, tell), tell)


def relaunch(head: Head) -> None:
    head.ray.kill_head()
    head.ray.start_head()


@pytest.fixture
def fleet_cluster(cloud: LocalCloudStorage, tmp_path: Path) -> Iterator[FleetCluster]:
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("my-bucket", "bucket"))
    yield (cluster := load_fleet(tmp_path / "fleet.yaml").cluster("here"))
    ClusterLock.of(cluster).take("stop", "over", is_anew=True).finish()


@contextmanager
def running_head(cluster: FleetCluster, folder: Path, env: dict[str, str]) -> Iterator[Head]:
    stack = LocalStack(folder / "ray")
    ray = LocalRay(stack, num_cpus=2, env=env)
    try:
        ray.start()
        yield Head(cluster, ray, folder)
    finally:
        stack.stop()


def submit_all(head: Head) -> None:
    """Submit two running jobs of users, a waiting one, a task's job, a step's job and one that ends."""
    code = head.folder / "code"
    code.mkdir()
    (code / "mark.txt").write_text("the code travelled")
    head.submit("over", "true")
    with_code = {"working_dir": str(code), "env_vars": {"KEY": HIDDEN}}
    check = f'test "$KEY" = {HIDDEN} && cat mark.txt >> {head.folder / "marks"}; sleep 4242'
    head.submit("code", check, runtime_env=with_code, metadata={"user": "ada"})
    head.submit("plain", "sleep 4242", metadata={"user": "bob"})
    head.submit("waits", "sleep 4242", resources={"never": 1.0}, metadata={"user": "bob"})
    head.submit("of-a-task", "sleep 4242", metadata=TASK)
    head.submit("of-a-step", "sleep 4242", metadata=STEP)
    until(lambda: head.starts() == ["code", "of-a-step", "of-a-task", "over", "plain"], "all to start")
    until((head.folder / "marks").exists, "the code to be there")
    until(lambda: head.statuses()["over"] == "SUCCEEDED", "the first to end")


def check_all_back(head: Head, restart: str) -> None:
    """Check that each user's job came back once, as submitted, and that no other job did."""
    new = [f"{job}-r-{restart}" for job in ("code", "plain", "waits")]
    until(lambda: head.starts().count("plain") == 2 and head.starts().count("code") == 2, "both to run again")
    statuses = head.statuses()
    assert {job for job in statuses if "-r-" in job} == set(new)
    assert [statuses[job] for job in new] == ["RUNNING", "RUNNING", "PENDING"]
    assert [job for job, status in statuses.items() if status in ("RUNNING", "PENDING") and "-r-" not in job] == []
    assert head.starts() == ["code", "code", "of-a-step", "of-a-task", "over", "plain", "plain"]
    marks = head.folder / "marks"
    until(
        lambda: marks.read_text() == 2 * "the code travelled",
        "the code to be where it was",
        lambda: (marks.read_text(), head.log(new[0]), head.statuses()),
    )
    (head.folder / "read").mkdir()
    found = {job.job: job for job in read_head(head.ray.gcs_address, head.ray.token, head.folder / "read").jobs}
    assert found[new[2]].resources == {"never": 1.0}
    assert found[new[0]].metadata == {"user": "ada"} and found[new[0]].runtime_env["env_vars"]["KEY"] == HIDDEN


def settled(head: Head) -> bool:
    """Return whether the restart's wait would count the final hosts and jobs."""

    async def view() -> HeadView:
        async with JobsApi(head.connection) as api:
            return await fetch_view(api)

    found = asyncio.run(view())
    return [node.is_head for node in found.nodes if node.is_alive] == [True] and found.updated_at is not None


def test_users_jobs_are_restored_on_a_head_without_state(fleet_cluster: FleetCluster, tmp_path: Path) -> None:
    with running_head(fleet_cluster, tmp_path, {}) as head:
        submit_all(head)
        restored = restart_of(head, head.backup(), partial(relaunch, head)).run()
        assert sorted(one.job for one in restored if not one.is_lost) == ["code", "plain", "waits"]
        check_all_back(head, head.marker.run[:8])
        assert head.marker.state is LockState.DONE
        assert list((tmp_path / "state" / "my-project" / "here").iterdir()) == [], "the backup is gone"
        assert HIDDEN not in " ".join(head.messages) and HIDDEN not in json.dumps(head.marker.details)
        until(lambda: settled(head), "the head to have heard of its node, and its autoscaler to have looked")


def restart_in_child(head: Head, pipe: Connection, point: str) -> None:
    """Restart with a kill at ``point``; the process at the other end of ``pipe`` starts the new head."""

    def tell(message: str) -> None:
        if message.startswith(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def relaunch_elsewhere() -> None:
        tell("before Ray ends")
        pipe.send("relaunch")
        pipe.recv()
        tell("after Ray started")

    try:
        restored = restart_of(head, head.backup(tell), relaunch_elsewhere, tell).run()
        pipe.send([one.sentence for one in restored])
    except BaseException as error:
        pipe.send(repr(error))


def restart_killed_at(head: Head, point: str) -> Any:
    """Return the messages of a restart that should die at ``point``, or None if it died."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=restart_in_child, args=(head, theirs, point))
    child.start()
    theirs.close()
    answer = None
    with suppress(EOFError):
        while (answer := ours.recv()) == "relaunch":
            relaunch(head)
            ours.send("done")
            answer = None
    child.join()
    stored = ClusterLock.of(head.cluster).read()
    if answer is None and stored is not None and stored.is_held:  # as if the next user waited until it is stale
        marker = stored.marker.changed(stored.marker.since, state=LockState.LEFT)
        assert ClusterLock.of(head.cluster).swap(marker, stored.tag) is not None
    return answer


@pytest.mark.long
def test_restart_killed_at_any_point_is_resumed(fleet_cluster: FleetCluster, tmp_path: Path) -> None:
    rocks = head_memory(tmp_path / "gcs")
    with running_head(fleet_cluster, tmp_path, rocks) as head:
        submit_all(head)
        points = ("Backed up 3 unmanaged jobs", "before Ray ends", "after Ray started", "Job plain is restored", "none")
        ends = [restart_killed_at(head, point) for point in points]
        assert ends[:-1] == [None] * 4, ends
        restart = head.marker.run[:8]
        assert ends[-1] == [f"Job {job} is restored as {job}-r-{restart}." for job in ("code", "plain", "waits")]
        check_all_back(head, restart)
        assert head.marker.state is LockState.DONE
        assert not any((tmp_path / "state").rglob("*.json"))
