"""Token refusal ends no follower. A proxy in front of a real head requires its own tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.ray_jobs.proxy import LIST, Proxy
from tests.support.waiting import until, until_async
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import Demand
from tradewind.ray_jobs.errors import BadTokenError, RayAuthenticationError
from tradewind.ray_jobs.follow import follow as refusals
from tradewind.ray_jobs.follow.log_lines import JobLog
from tradewind.ray_jobs.follow.outcomes import EndingKind, FollowRequest, JobOutcome, await_outcome
from tradewind.ray_jobs.request import JobRequest
from tradewind.tasks.errors import ClusterRefusedError
from tradewind.tasks.jobs import following
from tradewind.tasks.step_job import connect
from tradewind.triggers.ray_job import RayJobTrigger

pytestmark = pytest.mark.ray

OLD, NEW = "old-token", "new-token"


@pytest.fixture
def proxy(jobs: RayJobs) -> Proxy:
    proxy = Proxy(jobs.cluster.address)
    proxy.token = OLD
    return proxy


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Return the file that ends the test's job once it exists."""
    return tmp_path / "go"


@pytest.fixture
def job(jobs: RayJobs, go: Path) -> Iterator[str]:
    """Submit a job that prints a line, waits for ``go``, then prints a result."""
    name = f"refused-{go.parent.name}"
    jobs.submit_or_attach(JobRequest(name, f"bash -c 'echo first; until [ -e {go} ]; do sleep 0.1; done; echo R=7'"))
    until(lambda: jobs.details(name).status == "RUNNING", name)  # type: ignore[union-attr]
    yield name
    go.touch()


class Connection:
    """Connection that counts how often followers reload it."""

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = replace(cluster, token=OLD)
        self.reloads = 0
        self.fails = 0

    async def reload(self) -> RayCluster:
        self.reloads += 1
        if self.fails:
            self.fails -= 1
            raise BadTokenError("token_file is empty.")
        return self.cluster

    def renew(self) -> None:
        self.cluster = replace(self.cluster, token=NEW)


def follow(
    connection: Connection,
    job: str,
    log: JobLog | None = None,
    notice: Callable[[str], None] = print,
    deadline: float | None = None,
) -> asyncio.Task[JobOutcome]:
    request = FollowRequest(job, Demand(), result_marker="R=", deadline=deadline)
    return asyncio.create_task(await_outcome(connection.cluster, request, log, notice, connection.reload))


async def test_followers_continue_with_reloaded_connection_token(proxy: Proxy, job: str, go: Path) -> None:
    lines: list[str] = []
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = [follow(connection, job, log=JobLog(lines.extend)), *(follow(connection, job) for _ in range(49))]
        await until_async(lambda: proxy.requests[f"{LIST}{job}"])
        connection.fails = 2  # a token that is unreadable for a moment changes nothing
        proxy.token = NEW
        await until_async(lambda: connection.reloads >= 4)
        assert not any(one.done() for one in followed)
        assert connection.reloads <= 6, "one of the fifty reloads for all"
        connection.renew()
        await until_async(lambda: not refusals._reloads.get(asyncio.get_running_loop()))
        go.touch()
        outcomes = await asyncio.wait_for(asyncio.gather(*followed), 60)
    assert {(one.ending.kind, one.result) for one in outcomes} == {(EndingKind.SUCCEEDED, "7")}
    assert lines.count("first") == 1


async def test_long_refusal_and_its_end_are_reported(
    proxy: Proxy, job: str, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "OUTAGE_NOTICE_AFTER_S", 0.1)
    notices: list[str] = []
    proxy.refusal = 401
    async with proxy.serving() as cluster:
        followed = follow(Connection(cluster), job, notice=notices.append)
        await until_async(lambda: notices)
        proxy.refusal = None
        await until_async(lambda: len(notices) > 1)
        go.touch()
        assert (await asyncio.wait_for(followed, 60)).ending.kind is EndingKind.SUCCEEDED
    assert "refuses the token: put the right one" in notices[0] and f"says nothing about job {job}" in notices[0]
    assert notices[1:] == [f"{cluster} no longer refuses the token."]


async def test_log_token_refusal_loses_no_line_and_no_result(proxy: Proxy, job: str, go: Path) -> None:
    lines: list[str] = []
    proxy.refusal, proxy.refused_ending = 403, "/logs"
    go.touch()
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = follow(connection, job, log=JobLog(lines.extend))
        await until_async(lambda: connection.reloads >= 2)
        proxy.refusal = None
        outcome = await asyncio.wait_for(followed, 60)
    assert (outcome.ending.kind, outcome.result) == (EndingKind.SUCCEEDED, "7")
    assert lines.count("first") == 1


async def test_timed_out_job_is_stopped_once_stop_is_authorized(proxy: Proxy, job: str) -> None:
    proxy.refusal, proxy.refused_ending = 403, "/stop"
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = follow(connection, job, deadline=time.time())
        await until_async(lambda: connection.reloads >= 1)
        proxy.refusal = None
        assert (await asyncio.wait_for(followed, 60)).ending.kind is EndingKind.TIMED_OUT


async def test_cancelled_followers_end_their_connection_reload(proxy: Proxy, job: str) -> None:
    proxy.refusal = 403
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = [follow(connection, job) for _ in range(2)]
        await until_async(lambda: connection.reloads)
        for one in followed:
            one.cancel()
        await asyncio.wait(followed)
        await asyncio.sleep(0)
        assert not any("_ConnectionReload" in str(task) for task in asyncio.all_tasks())


def set_connection(monkeypatch: pytest.MonkeyPatch, cluster: RayCluster, token: str) -> None:
    fields = {"conn_type": "ray", "host": cluster.address, "password": token}
    monkeypatch.setenv("AIRFLOW_CONN_ROTATED", json.dumps(fields))


async def test_trigger_reloads_its_connection(
    proxy: Proxy, job: str, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy.serving() as cluster:
        set_connection(monkeypatch, cluster, OLD)
        watch = FollowRequest(job, Demand()).to_json()
        trigger = RayJobTrigger("rotated", watch, log_bytes=0, full_log="", owns_job=False, payload={})
        event = asyncio.create_task(anext(trigger.run()))  # type: ignore[arg-type]
        await until_async(lambda: proxy.requests)
        proxy.token = NEW
        await asyncio.wait([event], timeout=3)
        assert not event.done(), "a refusal ends no trigger"
        set_connection(monkeypatch, cluster, NEW)
        go.touch()
        fired = await asyncio.wait_for(event, 60)
    assert fired.payload["ending"]["kind"] == EndingKind.SUCCEEDED.value


async def test_worker_waits_for_token_only_if_task_has_job(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy.serving() as cluster:
        set_connection(monkeypatch, cluster, NEW)
        with pytest.raises(ClusterRefusedError):
            await asyncio.to_thread(connect, "step", "rotated")
        assert issubclass(ClusterRefusedError, AirflowFailException)
        reattaching = asyncio.create_task(asyncio.to_thread(connect, "step", "rotated", has_job=True))
        await asyncio.wait([reattaching], timeout=2)
        assert not reattaching.done()
        proxy.token = NEW
        assert (await asyncio.wait_for(reattaching, 60)).cluster.token == NEW


def test_worker_reports_refusal_once_while_retrying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following.time, "sleep", lambda seconds: None)
    answers = [RayAuthenticationError("refused."), BadTokenError("empty."), RayAuthenticationError("refused.")]
    notices: list[str] = []

    def call() -> str:
        if answers:
            raise answers.pop()
        return "accepted"

    assert following.retry_always(call, notices.append) == "accepted"
    assert len(notices) == 1 and notices[0].startswith("refused. The job's state is unknown")
