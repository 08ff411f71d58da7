"""Head loss under a followed job: the follower waits and trusts the answer of the new head."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clusters import HASTY
from tests.support.waiting import until_async
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import NODE_GONE
from tradewind.ray_jobs.follow.follow import FollowResult, follow_job
from tradewind.ray_jobs.follow.log_lines import JobLog
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, judge_ending
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory

pytestmark = [pytest.mark.ray, pytest.mark.slow]

COUNTING = "bash -c 'for n in $(seq 1 1000000); do echo line $n; sleep 0.02; done'"


@contextmanager
def running_head(root: Path, env: Mapping[str, str]) -> Iterator[LocalRay]:
    stack = LocalStack(root)
    ray = LocalRay(stack, token="", num_cpus=2, env=HASTY | dict(env))
    try:
        ray.start()
        yield ray
    finally:
        stack.stop()


async def follow_over_a_crash(ray: LocalRay, with_log: bool) -> tuple[FollowResult, list[str], list[str]]:
    """Kill the head with SIGKILL after the first lines, restart it and continue to follow."""
    cluster = RayCluster("here", ray.address)
    await asyncio.to_thread(lambda: RayJobs(cluster).submit_or_attach(JobRequest("counting", COUNTING)))
    lines: list[str] = []
    notices: list[str] = []
    reader = asyncio.create_task(follow_job(cluster, "counting", log=JobLog(lines.extend), notice=notices.append))
    other = asyncio.create_task(follow_job(cluster, "counting", log=None, notice=notices.append))
    async with asyncio.timeout(600):
        await until_async(lambda: "line 50" in lines)
        if not with_log:
            reader.cancel()
        await asyncio.to_thread(ray.kill_head)
        await until_async(lambda: notices)
        assert not reader.done() or not with_log
        assert not other.done()
        await asyncio.to_thread(ray.start_head)
        end = await other
        if with_log:
            assert (await reader).details == end.details
    return end, lines, notices


async def judged(ray: LocalRay, end: FollowResult) -> Ending:
    async with JobsApi(RayCluster("here", ray.address)) as api:
        return await judge_ending(api, "counting", end.details, end.last_lines)


@pytest.mark.long
@pytest.mark.parametrize("with_log", [True, False])
def test_restarted_head_with_state_reports_job_as_failed(tmp_path: Path, with_log: bool) -> None:
    env = head_memory(tmp_path / "gcs")
    with running_head(tmp_path / "ray", env) as ray:
        end, lines, notices = asyncio.run(follow_over_a_crash(ray, with_log))
        ending = asyncio.run(judged(ray, end))
    assert end.details is not None and end.details.status == "FAILED"
    assert end.details.error_type in ("JOB_SUPERVISOR_ACTOR_START_FAILURE", NODE_GONE), (
        "as Ray or the follower was faster"
    )
    assert ending.kind is EndingKind.HEAD_LOST and "memory" not in ending.sentence
    assert "does not answer" in notices[0] and notices[-1].endswith("answers again.")
    counted = [line for line in lines if line.startswith("line ")]
    assert counted == [f"line {n}" for n in range(1, len(counted) + 1)]
    assert end.last_lines[-1].startswith("line ")
    assert not with_log or counted[-1] == end.last_lines[-1]


def test_restarted_head_without_state_knows_no_job(tmp_path: Path) -> None:
    with running_head(tmp_path / "ray", {}) as ray:
        end, lines, _ = asyncio.run(follow_over_a_crash(ray, with_log=True))
        ending = asyncio.run(judged(ray, end))
    assert end == FollowResult(None)
    assert ending.kind is EndingKind.HEAD_LOST and "memory" in ending.sentence
    counted = [line for line in lines if line.startswith("line ")]
    assert counted == [f"line {n}" for n in range(1, len(counted) + 1)]
