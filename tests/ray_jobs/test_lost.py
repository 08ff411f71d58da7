"""A job on a lost node has ended for its followers, although Ray reports RUNNING forever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from tests.ray_jobs.proxy import LIST, Proxy
from tests.support.clusters import HASTY
from tests.support.waiting import until_async
from tradewind.ray_jobs import nodes as lost_nodes
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.follow.follow import FollowResult, follow_job
from tradewind.ray_jobs.follow.log_lines import JobLog
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, judge_ending
from tradewind.ray_jobs.follow.poller import watching
from tradewind.ray_jobs.follow.stopping import stop_job
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

NODES = "/api/v0/nodes"


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRay]:
    """Start a head that detects dead nodes quickly, with followers that check and confirm quickly."""
    monkeypatch.setattr(lost_nodes, "CHECK_INTERVAL_S", 0.5)
    monkeypatch.setattr(lost_nodes, "RECHECK_S", 0.5)
    monkeypatch.setattr(lost_nodes, "CONFIRM_S", 8.0)
    stack = LocalStack(tmp_path / "ray")
    ray = LocalRay(stack, token="", num_cpus=2, env=HASTY)
    try:
        ray.start()
        yield ray
    finally:
        stack.stop()


def _name_of(process: psutil.Process) -> str:
    """Return the name; empty for a process that has ended since the stack was listed."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def kill_node_under_head(ray: LocalRay) -> None:
    """Kill the head's own node with its agent and jobs; the server that answers requests survives."""
    [node] = [process for process in ray.stack.processes() if _name_of(process) == "raylet"]
    node.kill()


@pytest.mark.ray
@pytest.mark.slow
async def test_job_ray_reports_running_forever_ends_with_its_node(ray: LocalRay) -> None:
    jobs = RayJobs(RayCluster("here", ray.address))
    lines: list[str] = []
    jobs.submit_or_attach(JobRequest("lost", "echo started; sleep 3600"))
    proxy = Proxy(ray.address)
    async with proxy.serving() as counted, AsyncExitStack() as many:
        followed = asyncio.create_task(follow_job(jobs.cluster, "lost", log=JobLog(lines.extend), notice=print))
        await until_async(lambda: "started" in lines)
        watched = [await many.enter_async_context(watching(counted, "lost")) for _ in range(300)]
        before = proxy.requests[NODES]
        await until_async(lambda: proxy.requests[NODES] >= before + 3)
        assert proxy.requests[NODES] <= proxy.requests[f"{LIST}lost"] + 1, "one request serves all followers"
        assert {one.details and one.details.status for one in watched} == {"RUNNING"}, "its node is alive"

        kill_node_under_head(ray)
        end = await followed
        stopped = await stop(jobs.cluster)
        ending = await judged(jobs.cluster, end)
    assert ending.kind is EndingKind.HEAD_LOST and "head, which is gone" in ending.sentence
    assert stopped is not None and stopped.has_ended
    assert jobs.details("lost").status == "RUNNING", "Ray itself has not noticed"  # type: ignore[union-attr]


async def stop(cluster: RayCluster) -> JobDetails | None:
    async with JobsApi(cluster) as api:
        return await stop_job(api, "lost", print)


async def judged(cluster: RayCluster, end: FollowResult) -> Ending:
    async with JobsApi(cluster) as api:
        return await judge_ending(api, "lost", end.details, end.last_lines)
