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


def stop(jobs: RayJobs, *ids: str, say: Callable[[str], None] = print) -> list[JobDetails | None]:
    async def all_at_once() -> list[JobDetails | None]:
        async with JobsApi(jobs.cluster) as api:
            return await asyncio.gather(*(stop_job(api, job, say) for job in ids))

    return asyncio.run(asyncio.wait_for(all_at_once(), 180))


def running(jobs: RayJobs, request: JobRequest, started: Path) -> str:
    """Submit a job and wait until its entrypoint has touched ``started``; return its ID."""
    jobs.submit_or_attach(request)
    until(started.exists)
    return request.submission_id


def state(jobs: RayJobs, job: str) -> str | None:
    details = jobs.details(job)
    return details.status if details else None


def test_a_running_job_is_stopped(jobs: RayJobs, tmp_path: Path) -> None:
    started, after = tmp_path / "started", tmp_path / "after"
    job = running(jobs, JobRequest("running", f"touch {started}; sleep 600; touch {after}"), started)
    [ended] = stop(jobs, job)
    assert ended is not None and ended.status == "STOPPED"


def test_a_job_that_ignores_sigterm_is_killed(jobs: RayJobs, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f'import pathlib, signal, time; signal.signal(15, signal.SIG_IGN); pathlib.Path("{started}").touch()'
    job = running(jobs, JobRequest("stubborn", f"python -c '{code}; time.sleep(600)'"), started)
    [ended] = stop(jobs, job)
    assert ended is not None and ended.status == "STOPPED"


def test_a_job_that_is_being_started_is_stopped(jobs: RayJobs, tmp_path: Path) -> None:
    after = tmp_path / "after"
    jobs.submit_or_attach(JobRequest("starting", f"sleep 600; touch {after}"))
    [ended] = stop(jobs, "starting")
    assert ended is not None and ended.has_ended and not after.exists()


def test_ended_and_unknown_jobs_are_told_at_once(jobs: RayJobs) -> None:
    jobs.submit_or_attach(JobRequest("short", "true"))
    until(lambda: state(jobs, "short") == "SUCCEEDED")
    ended, unknown = stop(jobs, "short", "nobody")
    assert ended is not None and ended.status == "SUCCEEDED"
    assert unknown is None


def test_stopped_pending_jobs_never_start_when_capacity_joins(ray: LocalRay, jobs: RayJobs, tmp_path: Path) -> None:
    """Ray's own stop ignores pending jobs (ray#58353). The slice that they require joins after the stop."""
    ids = [f"waiting-{number}" for number in range(5)]
    for job in ids:
        jobs.submit_or_attach(JobRequest(job, f"touch {tmp_path / job}", resources={"late": 0.01}))
    said: list[str] = []
    before = len([one for one in jobs.jobs() if one.job.startswith(KILLER_PREFIX)])
    ends = stop(jobs, *ids, say=said.append)
    assert [end and end.status for end in ends] == ["STOPPED"] * 5
    assert any("is still pending" in line for line in said)
    assert len([one for one in jobs.jobs() if one.job.startswith(KILLER_PREFIX)]) < before + 5, "they shared a helper"
    ray.start_slice(LocalSlice("late", "v4-8"))
    witness = tmp_path / "witness"
    jobs.submit_or_attach(JobRequest("witness", f"touch {witness}", resources={"late": 0.01}))
    until(witness.exists)  # proves that the slice runs such jobs
    assert [path.name for path in tmp_path.iterdir()] == ["witness"]
    assert [state(jobs, job) for job in ids] == ["STOPPED"] * 5
    ray.kill_slice("late")


def test_a_job_that_waits_for_its_environment_never_starts(jobs: RayJobs, tmp_path: Path) -> None:
    """A worker with this interpreter cannot start, and Ray retries forever."""
    touched = tmp_path / "touched"
    environment = {"py_executable": "/nowhere/python"}
    jobs.submit_or_attach(JobRequest("no-python", f"touch {touched}", runtime_env=environment))
    [ended] = stop(jobs, "no-python")
    assert ended is not None and ended.status == "STOPPED" and not touched.exists()


def test_supervisor_killer_spares_running_job(jobs: RayJobs, tmp_path: Path) -> None:
    from tradewind.ray_jobs.follow import stopping

    started = tmp_path / "started"
    job = running(jobs, JobRequest("at-work", f"touch {started}; sleep 600"), started)

    async def end() -> str | None:
        async with JobsApi(jobs.cluster) as api:
            return await stopping._SupervisorKiller().kill(api, job)

    assert asyncio.run(end()) is None
    assert state(jobs, job) == "RUNNING"
    stop(jobs, job)


@pytest.mark.long
def test_stopping_goes_on_while_the_cluster_is_silent(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "ray")
    store = head_memory(tmp_path / "rocks")
    ray = LocalRay(stack, token="", num_cpus=1, env=HASTY | store)
    try:
        ray.start(timeout_seconds=300)
        jobs = RayJobs(RayCluster("here", ray.address))
        jobs.submit_or_attach(JobRequest("waits", "true", resources={"never": 1}))
        ray.kill_head()
        said: list[str] = []
        found: list[JobDetails | None] = []
        stopper = threading.Thread(target=lambda: found.extend(stop(jobs, "waits", say=said.append)))
        stopper.start()
        until(lambda: bool(said))
        assert "does not answer" in said[0] and "waits" in said[0]
        ray.start_head()
        stopper.join(150)
        assert found and (found[0] is None or found[0].has_ended)
    finally:
        stack.stop()
