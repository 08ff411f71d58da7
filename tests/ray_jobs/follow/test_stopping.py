"""A stopped job ends and never starts again, whatever its state at the stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clusters import HASTY
from tests.support.shared_clusters import TOKEN, shared_cluster
from tests.support.waiting import until
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.follow import stopping
from tradewind.ray_jobs.follow.stopping import KILLER_PREFIX, stop_job
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice, head_memory

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def ray() -> LocalRay:
    """Return the cluster that requires a token, so that each part of a stop must send it."""
    return shared_cluster("guarded")


@pytest.fixture(scope="module")
def jobs(ray: LocalRay) -> RayJobs:
    return RayJobs(RayCluster("here", ray.address, token=TOKEN))


def stop(jobs: RayJobs, *ids: str, notice: Callable[[str], None] = print) -> list[JobDetails | None]:
    async def all_at_once() -> list[JobDetails | None]:
        async with JobsApi(jobs.cluster) as api:
            return await asyncio.gather(*(stop_job(api, job, notice) for job in ids))

    return asyncio.run(asyncio.wait_for(all_at_once(), 180))


def state(jobs: RayJobs, job: str) -> str | None:
    details = jobs.details(job)
    return details.status if details else None


def test_running_and_starting_jobs_are_stopped_others_returned(jobs: RayJobs, tmp_path: Path) -> None:
    """Ray kills a job that ignores SIGTERM."""
    running, stubborn, after = (tmp_path / name for name in ("running", "stubborn", "after"))
    code = f'import pathlib, signal, time; signal.signal(15, signal.SIG_IGN); pathlib.Path("{stubborn}").touch()'
    jobs.submit_or_attach(JobRequest("short", "true"))
    jobs.submit_or_attach(JobRequest("running", f"touch {running}; sleep 600; touch {after}"))
    jobs.submit_or_attach(JobRequest("stubborn", f"python -c '{code}; time.sleep(600)'"))
    until(lambda: state(jobs, "short") == "SUCCEEDED" and running.exists() and stubborn.exists())
    jobs.submit_or_attach(JobRequest("starting", f"sleep 600; touch {after}"))
    *stopped, unknown = stop(jobs, "running", "stubborn", "starting", "short", "unknown")
    assert unknown is None
    statuses = [details and details.status for details in stopped]
    assert statuses[:2] == ["STOPPED", "STOPPED"] and statuses[3] == "SUCCEEDED"
    assert stopped[2] is not None and stopped[2].has_ended and not after.exists()


def test_stopped_pending_jobs_never_start_when_capacity_joins(ray: LocalRay, jobs: RayJobs, tmp_path: Path) -> None:
    """Ray's own stop ignores pending jobs (ray#58353). The slice that they require joins after the stop.

    Ray may see that a supervisor is dead, and write FAILED, before the job is marked as stopped.
    """
    ids = [f"waiting-{number}" for number in range(5)]
    for job in ids:
        jobs.submit_or_attach(JobRequest(job, f"touch {tmp_path / job}", resources={"late": 0.01}))
    notices: list[str] = []
    before = len([one for one in jobs.jobs() if one.job.startswith(KILLER_PREFIX)])
    ends = stop(jobs, *ids, notice=notices.append)
    assert all(end is not None and end.status == "STOPPED" for end in ends)
    assert any("is still pending" in notice for notice in notices)
    assert len([one for one in jobs.jobs() if one.job.startswith(KILLER_PREFIX)]) < before + 5, "they shared a killer"
    ray.start_slice(LocalSlice("late", "v4-8"))
    later = tmp_path / "later"
    jobs.submit_or_attach(JobRequest("later", f"touch {later}", resources={"late": 0.01}))
    until(later.exists)  # proves that the slice runs such jobs
    assert [path.name for path in tmp_path.iterdir()] == ["later"]
    assert {state(jobs, job) for job in ids} == {"STOPPED"}
    ray.kill_slice("late")


def test_stopped_job_that_waits_for_environment_never_starts(jobs: RayJobs, tmp_path: Path) -> None:
    """A worker with this interpreter cannot start, and Ray retries forever."""
    touched = tmp_path / "touched"
    environment = {"py_executable": "/nowhere/python"}
    jobs.submit_or_attach(JobRequest("no-python", f"touch {touched}", runtime_env=environment))
    [ended] = stop(jobs, "no-python")
    assert ended is not None and ended.status == "STOPPED" and not touched.exists()


def test_supervisor_killer_spares_running_job(jobs: RayJobs, tmp_path: Path) -> None:
    started, job = tmp_path / "started", "spared"
    jobs.submit_or_attach(JobRequest(job, f"touch {started}; sleep 600"))
    until(started.exists)

    async def kill() -> str | None:
        async with JobsApi(jobs.cluster) as api:
            return await stopping._SupervisorKiller().kill(api, job)

    assert asyncio.run(kill()) is None
    assert state(jobs, job) == "RUNNING"
    stop(jobs, job)


@pytest.mark.long
def test_stopping_continues_after_an_outage(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "ray")
    store = head_memory(tmp_path / "rocks")
    ray = LocalRay(stack, token="", num_cpus=1, env=HASTY | store)
    try:
        ray.start(timeout_seconds=300)
        jobs = RayJobs(RayCluster("here", ray.address))
        jobs.submit_or_attach(JobRequest("waits", "true", resources={"never": 1}))
        ray.kill_head()
        notices: list[str] = []
        ended: list[JobDetails | None] = []
        stopper = threading.Thread(target=lambda: ended.extend(stop(jobs, "waits", notice=notices.append)))
        stopper.start()
        until(lambda: bool(notices))
        assert "does not answer" in notices[0] and "waits" in notices[0]
        ray.start_head()
        stopper.join(150)
        assert ended and (ended[0] is None or ended[0].has_ended)
    finally:
        stack.stop()
