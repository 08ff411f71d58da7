"""One poll serves all followers and limits the load on the head. A proxy in front of a real head counts requests."""

from __future__ import annotations

import asyncio
import contextvars
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.proxy import LIST, Proxy
from tests.support.waiting import limit_s, until, until_async
from tradewind.ray_jobs import nodes as lost_nodes
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import PendingReason
from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.ray_jobs.follow import poller
from tradewind.ray_jobs.follow.follow import FollowResult, follow_job
from tradewind.ray_jobs.follow.poller import WatchedJob, backoff_s, watching
from tradewind.ray_jobs.request import JobRequest
from tradewind.text import format_duration

pytestmark = pytest.mark.ray

RUNNING = f"{LIST}running"
COUNTS = "/api/v0/jobs"
FOLLOW = "tradewind.ray_jobs.follow.follow"


@pytest.fixture(scope="module")
def jobs(jobs: RayJobs) -> RayJobs:
    """Submit jobs: ``ended`` ends, ``running`` runs, ``pending`` requires a resource that no node has."""
    jobs.submit_or_attach(JobRequest("ended", "echo hello"))
    jobs.submit_or_attach(JobRequest("running", "sleep 3600"))
    jobs.submit_or_attach(JobRequest("pending", "true", resources={"nowhere": 1}))
    until_status(jobs, "ended", "SUCCEEDED")
    until_status(jobs, "running", "RUNNING")
    return jobs


@pytest.fixture
def proxy(jobs: RayJobs) -> Proxy:
    return Proxy(jobs.cluster.address)


def until_status(jobs: RayJobs, job: str, status: str) -> None:
    def has_status() -> bool:
        return (details := jobs.details(job)) is not None and details.status == status

    until(has_status, f"{job} to be {status}", seen=lambda: jobs.details(job))


async def test_update_timeout_does_not_cancel_task_cancelled_before(jobs: RayJobs) -> None:
    """asyncio.timeout does so up to Python 3.11.2, where aiohttp's timeouts leave a pending cancel."""
    async with watching(jobs.cluster, "running") as watched:
        await watched.wait_for_update()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        assert task.cancelling() == 1
        await watched.wait_for_update(0.01)
        task.uncancel()


async def follow(cluster: RayCluster, job: str, **kwargs: Any) -> FollowResult:
    kwargs.setdefault("notice", lambda sentence: None)
    return await asyncio.wait_for(follow_job(cluster, job, log=None, **kwargs), limit_s())


async def until_heard(watched: WatchedJob) -> None:
    async with asyncio.timeout(limit_s()):
        while watched.heard_at is None:
            await watched.wait_for_update()


async def test_followers_of_cluster_and_token_share_one_poll(proxy: Proxy) -> None:
    async with proxy.serving() as cluster, AsyncExitStack() as stack:
        same, other = (RayCluster(cluster.name, cluster.address, token) for token in (None, "other"))
        watched = [
            await stack.enter_async_context(watching(each, "running")) for each in [cluster] * 150 + [same] * 150
        ]
        await asyncio.gather(*map(until_heard, watched))
        assert proxy.requests == {RUNNING: 1}
        [api] = {one.api for one in watched}
        async with watching(other, "running") as another:
            assert another.api is not api


async def test_polling_ends_with_last_follower_and_can_restart(proxy: Proxy) -> None:
    async with proxy.serving() as cluster:
        async with watching(cluster, "running") as watched:
            await until_heard(watched)
            session = watched.api._session
        assert session.closed
        assert not any("ClusterWatcher" in str(task) for task in asyncio.all_tasks())
        async with watching(cluster, "running") as again:  # a later follower starts a new watcher
            await until_heard(again)


async def test_follower_that_joins_while_last_one_leaves_is_served(proxy: Proxy) -> None:
    async with proxy.serving() as cluster:
        for _ in range(5):
            ended = await asyncio.gather(*(follow(cluster, "ended") for _ in range(5)))
            assert all("hello" in end.last_lines for end in ended)


async def test_slow_head_is_polled_rarely(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MIN_INTERVAL_S", 0.01)
    proxy.delay_s = 0.3
    async with proxy.serving() as cluster, watching(cluster, "running"):
        started = time.monotonic()
        await until_async(lambda: proxy.requests[RUNNING] >= 3)
        assert time.monotonic() - started > 2 * poller.REST_FACTOR * 0.3 * 0.9  # a lower bound: load only adds to it


async def test_poll_interval_grows_and_is_reset_by_change(jobs: RayJobs, proxy: Proxy, tmp_path: Path) -> None:
    go = tmp_path / "go"
    jobs.submit_or_attach(JobRequest("changing", f"bash -c 'until [ -e {go} ]; do sleep 0.1; done'"))
    until_status(jobs, "changing", "RUNNING")
    async with proxy.serving() as cluster, watching(cluster, "changing") as watched:
        watcher = watched._watcher
        await until_heard(watched)
        assert watcher._interval == poller.MIN_INTERVAL_S
        for _ in range(30):
            await watcher._poll()
        assert watcher._interval == poller.MAX_INTERVAL_S
        go.touch()
        until_status(jobs, "changing", "SUCCEEDED")
        await watcher._poll()
        assert watched.details is not None and watched.details.has_ended
        assert watcher._interval == poller.MIN_INTERVAL_S


async def test_new_follower_is_answered_despite_long_interval(proxy: Proxy) -> None:
    async with proxy.serving() as cluster, watching(cluster, "running") as watched:
        await until_heard(watched)
        for _ in range(30):
            await watched._watcher._poll()
        before = proxy.requests.total()
        async with watching(cluster, "ended") as newcomer:
            await until_heard(newcomer)
        assert proxy.requests.total() <= before + 2


async def test_job_is_unknown_only_when_lookup_by_id_fails_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MAX_SINGLE_REQUESTS", 0)
    proxy.empty_list = True
    async with proxy.serving() as cluster:
        found, unknown = await asyncio.gather(follow(cluster, "ended"), follow(cluster, "unknown"))
    assert found.details is not None and "hello" in found.last_lines
    assert unknown == FollowResult(None)
    assert proxy.requests["/api/jobs/unknown"] == 1 and proxy.requests[LIST]


async def test_token_refusal_reaches_every_follower_at_once(proxy: Proxy) -> None:
    proxy.refusal = 403
    async with proxy.serving() as cluster:
        failures = await asyncio.gather(*(follow(cluster, "running") for _ in range(3)), return_exceptions=True)
        assert [type(failure) for failure in failures] == [RayAuthenticationError] * 3
        assert proxy.requests == {RUNNING: 1}
        proxy.refusal = None
        assert (await follow(cluster, "ended")).details is not None  # the failed watcher serves no later follower


async def test_token_refusal_ends_running_wait(proxy: Proxy) -> None:
    async with proxy.serving() as cluster:
        followed = asyncio.create_task(follow(cluster, "running"))
        await until_async(lambda: proxy.requests[RUNNING])
        proxy.refusal = 401
        with pytest.raises(RayAuthenticationError):
            await followed


async def test_outage_is_reported_to_each_follower_in_its_context(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's triggerer selects the task log of a record by its context."""
    monkeypatch.setattr(f"{FOLLOW}.OUTAGE_NOTICE_AFTER_S", 0.0)
    trigger: contextvars.ContextVar[str] = contextvars.ContextVar("trigger")
    notices: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}

    async def run(name: str) -> FollowResult:
        trigger.set(name)
        return await follow(cluster, "ended", notice=lambda text: notices[name].append((trigger.get(), text)))

    proxy.refusal = 503
    async with proxy.serving() as cluster:
        runs = [asyncio.create_task(run(name)) for name in notices]
        await until_async(lambda: all(notices.values()))
        proxy.refusal = None
        ends = await asyncio.gather(*runs)
    assert [end.details and end.details.status for end in ends] == ["SUCCEEDED"] * 2
    for name, ((context, outage), *rest) in notices.items():
        assert context == name and "answered 503" in outage and "says nothing about job ended" in outage
        assert rest == [(name, f"{cluster} answers again.")]


async def test_queue_timeout_ends_wait_for_pending_job(proxy: Proxy) -> None:
    async with proxy.serving() as cluster:
        end = await follow(cluster, "pending", queue_timeout_s=0.5)
        assert end.queue_timed_out and end.details is not None and end.details.status == "PENDING"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await follow(cluster, "pending", queue_timeout_s=36000)


async def test_queue_timeout_does_not_expire_in_an_outage(proxy: Proxy) -> None:
    async with proxy.serving() as cluster:
        followed = asyncio.create_task(follow(cluster, "running", queue_timeout_s=0.1))
        proxy.refusal = 503
        done, _ = await asyncio.wait([followed], timeout=2)
        assert not done
        followed.cancel()


async def test_reason_of_wait_is_reported_until_infeasible(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST_EXPLANATION_S", 0.1), ("FIRST_NOTICE_S", 0.2), ("NOTICE_INTERVAL_S", 0.2)):
        monkeypatch.setattr(f"{FOLLOW}.{name}", seconds)
    notices: list[str] = []
    explained: list[int] = []

    async def explain(api: Any) -> PendingReason:
        explained.append(len(notices))
        return PendingReason("4 TPU, there are none", is_infeasible=len(notices) == 2)

    async with proxy.serving() as cluster:
        end = await follow(cluster, "pending", notice=notices.append, explain_wait=explain)
    assert end.infeasible == "4 TPU, there are none."
    assert explained[-1] == 2 and explained == sorted(explained)
    assert len(notices) == 2
    for sentence in notices:
        assert re.fullmatch(r"Ray job pending has been waiting for \d+ (s|min): 4 TPU, there are none\.", sentence)


def test_backoff_grows_up_to_limit_with_jitter() -> None:
    assert [backoff_s(n, lambda: 1.0) for n in (1, 2, 3, 4, 5, 100)] == [1, 2, 4, 8, 15, 15]
    assert backoff_s(4, lambda: 0.0) == 4.0


def test_durations_are_rounded() -> None:
    assert [format_duration(seconds) for seconds in (40, 700, 9000)] == ["40 s", "12 min", "2.5 h"]


# ---- requests by number of followers and of streamed logs


async def test_streamed_job_is_polled_rarely_and_when_stream_ends(proxy: Proxy) -> None:
    async with proxy.serving() as cluster, watching(cluster, "running") as watched:
        await until_heard(watched)
        watcher = watched._watcher
        with watched.streamed():
            before = proxy.requests.copy()
            for _ in range(5):
                await watcher._poll()
            assert proxy.requests == before
            watcher._lost_nodes.check_soon()
            await watcher._poll()
            assert proxy.requests == before, "a line has just come, so its node is alive"
            watched._line_at -= 2 * lost_nodes.CHECK_INTERVAL_S
            await watcher._poll()
            assert proxy.requests - before == {"/api/v0/nodes": 1}, "the stream is silent"
            watcher._fetcher._fetched_at["running"] -= poller.REFRESH_S
            for _ in range(2):
                await watcher._poll()
                assert (proxy.requests - before)[RUNNING] == 1, "the stream may hang"
        await watcher._poll(is_regular=False)
        assert (proxy.requests - before)[RUNNING] == 2


async def test_many_jobs_share_one_count_request_until_one_changes(jobs: RayJobs, proxy: Proxy, tmp_path: Path) -> None:
    go = tmp_path / "go"
    names = [f"crowd-{number}" for number in range(poller.MAX_SINGLE_REQUESTS + 1)]
    for name in names:
        jobs.submit_or_attach(JobRequest(name, "true", resources={"nowhere": 1}))
    jobs.submit_or_attach(JobRequest("crowded", f"bash -c 'until [ -e {go} ]; do sleep 0.1; done'"))
    until_status(jobs, "crowded", "RUNNING")
    async with proxy.serving() as cluster, AsyncExitStack() as stack:
        watched = {name: await stack.enter_async_context(watching(cluster, name)) for name in [*names, "crowded"]}
        await asyncio.gather(*map(until_heard, watched.values()))
        watcher = watched["crowded"]._watcher
        await watcher._poll()  # now the watcher knows the numbers
        before = proxy.requests.copy()
        for _ in range(3):
            await watcher._poll()
        requests = proxy.requests - before
        assert requests[COUNTS] >= 6 and set(requests) == {COUNTS}
        go.touch()
        until_status(jobs, "crowded", "SUCCEEDED")
        await watcher._poll()
        ended = watched["crowded"].details
        assert ended is not None and ended.status == "SUCCEEDED"
        assert {one.details.status for name, one in watched.items() if one.details and name in names} == {"PENDING"}


async def test_list_is_fetched_from_head_without_counts(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MAX_SINGLE_REQUESTS", 0)
    monkeypatch.setattr(poller, "REQUEST_COST", 10_000)  # so the list is cheaper, however many jobs the head remembers
    proxy.refusal, proxy.refused_ending = 403, COUNTS
    async with proxy.serving() as cluster, watching(cluster, "running") as watched:
        await until_heard(watched)
        before = proxy.requests[LIST]
        await watched._watcher._poll()
        assert proxy.requests[LIST] > before and watched.details is not None and watched.outage is None


async def test_few_jobs_among_many_on_head_are_requested_singly(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MAX_SINGLE_REQUESTS", 1)
    monkeypatch.setattr(poller, "REQUEST_COST", 1)
    async with proxy.serving() as cluster, watching(cluster, "running") as one, watching(cluster, "ended") as two:
        await asyncio.gather(until_heard(one), until_heard(two))
        before = proxy.requests[LIST]
        one.poll_soon()
        two.poll_soon()
        await one._watcher._poll()
        assert proxy.requests[LIST] == before
