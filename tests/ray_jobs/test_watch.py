"""One poll serves all who follow, and is gentle with the head. With a real head behind a proxy that counts."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.proxy import LIST, Proxy
from tradewind.ray_jobs import watch
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import WaitJudgement
from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.ray_jobs.follow import JobEnd, follow_job
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.waiting import duration
from tradewind.ray_jobs.watch import WatchedJob, backoff_s, watching
from tradewind.rehearsal.local_ray import LocalRay
from tradewind.rehearsal.processes import LocalStack

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayJobs]:
    """A head whose job ``ended`` has ended, while ``running`` runs and ``pending`` waits for what is not there."""
    stack = LocalStack(tmp_path_factory.mktemp("ray"))
    ray = LocalRay(stack, num_cpus=2)
    try:
        ray.start()
        jobs = RayJobs(RayCluster("here", ray.address))
        jobs.submit_or_attach(JobRequest("ended", "echo hello"))
        jobs.submit_or_attach(JobRequest("running", "sleep 3600"))
        jobs.submit_or_attach(JobRequest("pending", "true", resources={"nowhere": 1}))
        wait_until(jobs, "ended", "SUCCEEDED")
        wait_until(jobs, "running", "RUNNING")
        yield jobs
    finally:
        stack.stop()


@pytest.fixture
def proxy(jobs: RayJobs) -> Proxy:
    return Proxy(jobs.cluster.address)


def wait_until(jobs: RayJobs, job: str, status: str) -> None:
    deadline = time.monotonic() + 120
    while (details := jobs.details(job)) is None or details.status != status:
        assert time.monotonic() < deadline, details
        time.sleep(0.2)


async def follow(cluster: RayCluster, job: str, **kwargs: Any) -> JobEnd:
    kwargs.setdefault("notice", lambda sentence: None)
    return await asyncio.wait_for(follow_job(cluster, job, log=None, **kwargs), 60)


async def until_heard(watched: WatchedJob) -> None:
    async with asyncio.timeout(60):
        while watched.heard_at is None:
            await watched.news()


async def test_three_hundred_followers_share_one_poll() -> None:
    head.statuses = {f"j{n}": "RUNNING" for n in range(300)}
    async with proxy.serving() as cluster, AsyncExitStack() as stack:
        watched = [await stack.enter_async_context(watching(cluster, f"j{n}")) for n in range(300)]
        await asyncio.gather(*map(until_heard, watched))
        assert head.asked.total() <= 3  # those that came before the first one, those that came while it went on
        assert len({id(one.api) for one in watched}) == 1


async def test_clusters_that_differ_in_their_token_do_not_share() -> None:
    head.statuses = {"j": "RUNNING"}
    async with proxy.serving() as cluster:
        other = RayCluster(cluster.name, cluster.address, token="other")
        async with watching(cluster, "j") as one, watching(cluster, "j") as same, watching(other, "j") as another:
            assert one.api is same.api
            assert one.api is not another.api


async def test_nobody_polls_once_nobody_follows() -> None:
    head.statuses = {"j": "RUNNING"}
    async with proxy.serving() as cluster:
        tasks = asyncio.all_tasks()
        async with watching(cluster, "j") as watched:
            await until_heard(watched)
        assert asyncio.all_tasks() - tasks == {task for task in asyncio.all_tasks() - tasks if "_run" not in str(task)}
        asked = head.asked.total()
        await asyncio.sleep(1.5 * watch.SHORTEST_INTERVAL_S)
        assert head.asked.total() == asked
        async with watching(cluster, "j") as again:  # a new watcher serves who comes later
            await until_heard(again)


async def test_a_slow_head_is_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SHORTEST_INTERVAL_S", 0.01)
    head.statuses, head.delay_s = {"j": "RUNNING"}, 0.3
    async with proxy.serving() as cluster, watching(cluster, "j"):
        started = time.monotonic()
        while head.asked["list"] < 3:
            await asyncio.sleep(0.05)
        assert time.monotonic() - started > 2 * watch.REST_FACTOR * 0.3 * 0.9  # a lower bound: load only adds to it


async def test_the_interval_grows_and_a_change_resets_it() -> None:
    head.statuses = {"j": "RUNNING"}
    async with proxy.serving() as cluster, watching(cluster, "j") as watched:
        watcher = watched._watcher
        await until_heard(watched)
        assert watcher._interval == watch.SHORTEST_INTERVAL_S
        await watched.news()
        assert watcher._interval > watch.SHORTEST_INTERVAL_S
        head.statuses["j"] = "SUCCEEDED"
        while watched.details is not None and not watched.details.has_ended:
            await watched.news()
        assert watcher._interval == watch.SHORTEST_INTERVAL_S
        for _ in range(30):
            await watcher._poll()
        assert watcher._interval == watch.LONGEST_INTERVAL_S


async def test_a_job_is_unknown_only_when_it_is_not_found_by_its_id_either() -> None:
    head.unlisted = {"hidden": "SUCCEEDED"}
    async with proxy.serving() as cluster:
        found, unknown = await asyncio.gather(follow(cluster, "hidden"), follow(cluster, "unknown"))
    assert found.details is not None and found.last_lines == ("hello",)
    assert unknown.details is None
    assert head.asked["unknown"] == 1


async def test_a_refused_token_reaches_every_follower_at_once() -> None:
    head.refusal = 403
    async with proxy.serving() as cluster:
        failures = await asyncio.gather(*(follow(cluster, f"j{n}") for n in range(3)), return_exceptions=True)
        assert [type(failure) for failure in failures] == [RayAuthenticationError] * 3
        head.refusal, head.statuses = None, {"j": "SUCCEEDED"}
        assert (await follow(cluster, "j")).details is not None  # the watcher that failed serves nobody else


async def test_silence_is_noticed_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.ray_jobs.waiting.OUTAGE_NOTICE_AFTER_S", 0.0)
    head, told = CountingHead(), []
    head.refusal = 503
    async with proxy.serving() as cluster:
        followed = asyncio.create_task(follow(cluster, "j", notice=told.append))
        while not told:
            await asyncio.sleep(0.05)
        assert "answered 503" in told[0] and "says nothing about job j" in told[0]
        head.refusal, head.statuses = None, {"j": "SUCCEEDED"}
        end = await followed
    assert end.details is not None and end.details.status == "SUCCEEDED"
    assert told[1] == f"{cluster} answers again."


async def test_each_follower_is_told_in_its_own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's triggerer knows by the context into which task's log a record goes."""
    monkeypatch.setattr("tradewind.ray_jobs.waiting.OUTAGE_NOTICE_AFTER_S", 0.0)
    trigger: contextvars.ContextVar[str] = contextvars.ContextVar("trigger")
    head, told = CountingHead(), Counter[tuple[str, str]]()
    head.refusal = 503

    async def run(job: str) -> None:
        trigger.set(job)
        await follow(cluster, job, notice=lambda sentence: told.update([(job, trigger.get())]))

    async with proxy.serving() as cluster:
        runs = [asyncio.create_task(run(job)) for job in ("a", "b")]
        while len(told) < 2:
            await asyncio.sleep(0.05)
        head.refusal, head.statuses = None, {"a": "SUCCEEDED", "b": "SUCCEEDED"}
        await asyncio.gather(*runs)
    assert set(told) == {("a", "a"), ("b", "b")}


async def test_a_job_that_is_never_started_ends_the_queue_timeout() -> None:
    head.statuses = {"j": "PENDING"}  # for 30 s by the head's clock
    async with proxy.serving() as cluster:
        end = await follow(cluster, "j", queue_timeout_s=20)
        assert end.queue_timed_out and end.details is not None and end.details.status == "PENDING"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await follow(cluster, "j", queue_timeout_s=3600)


async def test_what_is_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.ray_jobs.waiting.FIRST_EXPLANATION_S", 0.1)
    monkeypatch.setattr("tradewind.ray_jobs.waiting.FIRST_NOTICE_S", 0.2)
    monkeypatch.setattr("tradewind.ray_jobs.waiting.NOTICE_INTERVAL_S", 0.2)
    head, told, asked = CountingHead(), [], []
    head.statuses = {"j": "PENDING"}

    async def explain(api: Any) -> WaitJudgement:
        asked.append(len(told))
        return WaitJudgement("4 TPU, there are none.", infeasible=len(told) == 2)

    async with proxy.serving() as cluster:
        end = await follow(cluster, "j", notice=told.append, explain_wait=explain)
    assert end.infeasible == "4 TPU, there are none."
    assert asked == [0, 0, 1, 2]
    assert (
        told == [f"Ray job j has been waiting for {duration(30)}: 4 TPU, there are none."] * 2 or "waiting" in told[0]
    )


def test_pauses_grow_up_to_a_limit_and_differ() -> None:
    assert [backoff_s(n, lambda: 1.0) for n in (1, 2, 3, 4, 5, 100)] == [1, 2, 4, 8, 15, 15]
    assert backoff_s(4, lambda: 0.0) == 4.0


@pytest.mark.parametrize(("seconds", "text"), [(40, "40 s"), (700, "12 min"), (9000, "2.5 h")])
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
