"""Token refusal ends no follower.

A proxy in front of a real head requires its own tokens.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
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
    """Connection that counts how often a follower reads it."""

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = replace(cluster, token=OLD)
        self.readings = 0
        self.fails = 0

    async def read(self) -> RayCluster:
        self.readings += 1
        if self.fails:
            self.fails -= 1
            raise BadTokenError("token_file is empty.")
        return self.cluster

    def renew(self) -> None:
        self.cluster = replace(self.cluster, token=NEW)


def follow(connection: Connection, job: str, **kwargs: object) -> asyncio.Task[JobOutcome]:
    watch = FollowRequest(job, Demand(), result_marker="R=", deadline=kwargs.get("deadline"))  # type: ignore[arg-type]
    notice = kwargs.get("notice", lambda sentence: None)
    following = await_outcome(connection.cluster, watch, kwargs.get("log"), notice, connection.read)  # type: ignore[arg-type]
    return asyncio.create_task(following)


async def test_followers_continue_with_reloaded_connection_token(proxy: Proxy, job: str, go: Path) -> None:
    lines: list[str] = []
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = [follow(connection, job, log=JobLog(lines.extend)), *(follow(connection, job) for _ in range(49))]
        await until_async(lambda: proxy.asked[f"{LIST}{job}"])
        connection.fails = 2  # a token that is unreadable for a moment changes nothing
        proxy.token = NEW
        await until_async(lambda: connection.readings >= 4)
        assert not any(one.done() for one in followed)
        assert connection.readings <= 6, "one of the fifty reads for all"
        connection.renew()
        await until_async(lambda: not refusals._reloads.get(asyncio.get_running_loop()))
        go.touch()
        outcomes = await asyncio.wait_for(asyncio.gather(*followed), 60)
    assert {(one.ending.kind, one.result) for one in outcomes} == {(EndingKind.SUCCEEDED, "7")}
    assert lines.count("first") == 1


async def test_a_refusal_that_lasts_is_told_and_its_end_too(
    proxy: Proxy, job: str, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "OUTAGE_NOTICE_AFTER_S", 0.1)
    told: list[str] = []
    proxy.refusal = 401
    async with proxy.serving() as cluster:
        followed = follow(Connection(cluster), job, notice=told.append)
        await until_async(lambda: told)
        proxy.refusal = None
        await until_async(lambda: len(told) > 1)
        go.touch()
        assert (await asyncio.wait_for(followed, 60)).ending.kind is EndingKind.SUCCEEDED
    assert "refuses the token: put the right one" in told[0] and f"says nothing about job {job}" in told[0]
    assert told[1:] == [f"{cluster} no longer refuses the token."]


async def test_log_token_refusal_loses_no_line_and_no_result(proxy: Proxy, job: str, go: Path) -> None:
    lines: list[str] = []
    proxy.refusal, proxy.refused_ending = 403, "/logs"
    go.touch()
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = follow(connection, job, log=JobLog(lines.extend))
        await until_async(lambda: connection.readings >= 2)
        proxy.refusal = None
        outcome = await asyncio.wait_for(followed, 60)
    assert (outcome.ending.kind, outcome.result) == (EndingKind.SUCCEEDED, "7")
    assert lines.count("first") == 1


async def test_timed_out_job_is_stopped_once_stop_is_authorized(proxy: Proxy, job: str) -> None:
    proxy.refusal, proxy.refused_ending = 403, "/stop"
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = follow(connection, job, deadline=time.time())
        await until_async(lambda: connection.readings >= 1)
        proxy.refusal = None
        assert (await asyncio.wait_for(followed, 60)).ending.kind is EndingKind.TIMED_OUT


async def test_who_is_cancelled_while_refused_leaves_nobody_asking(proxy: Proxy, job: str) -> None:
    proxy.refusal = 403
    async with proxy.serving() as cluster:
        connection = Connection(cluster)
        followed = [follow(connection, job) for _ in range(2)]
        await until_async(lambda: connection.readings)
        for one in followed:
            one.cancel()
        await asyncio.wait(followed)
        await asyncio.sleep(0)
        assert not any("_ConnectionReload" in str(task) for task in asyncio.all_tasks())


async def test_without_a_connection_to_read_a_refusal_is_an_error(proxy: Proxy, job: str) -> None:
    proxy.refusal = 403
    async with proxy.serving() as cluster:
        with pytest.raises(RayAuthenticationError):
            await await_outcome(cluster, FollowRequest(job, Demand()), None, print)


async def test_a_trigger_reads_its_connection_again(
    proxy: Proxy, job: str, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_with(token: str) -> None:
        fields = {"conn_type": "ray", "host": cluster.address, "password": token}
        monkeypatch.setenv("AIRFLOW_CONN_ROTATED", json.dumps(fields))

    async with proxy.serving() as cluster:
        connect_with(OLD)
        watch = FollowRequest(job, Demand()).to_json()
        trigger = RayJobTrigger("rotated", watch, log_bytes=0, full_log="", owns_job=False, payload={})
        event = asyncio.create_task(anext(trigger.run()))  # type: ignore[arg-type]
        await until_async(lambda: proxy.asked)
        proxy.token = NEW
        await asyncio.wait([event], timeout=3)
        assert not event.done(), "a refusal ends no trigger"
        connect_with(NEW)
        go.touch()
        fired = await asyncio.wait_for(event, 60)
    assert fired.payload["ending"]["kind"] == EndingKind.SUCCEEDED.value


async def test_a_worker_waits_for_the_token_only_if_its_task_has_a_job(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy.serving() as cluster:
        fields = {"conn_type": "ray", "host": cluster.address, "password": NEW}
        monkeypatch.setenv("AIRFLOW_CONN_ROTATED", json.dumps(fields))
        with pytest.raises(ClusterRefusedError):
            await asyncio.to_thread(connect, "step", "rotated")
        assert issubclass(ClusterRefusedError, AirflowFailException)
        rejoining = asyncio.create_task(asyncio.to_thread(connect, "step", "rotated", has_job=True))
        await asyncio.wait([rejoining], timeout=2)
        assert not rejoining.done()
        proxy.token = NEW
        assert (await asyncio.wait_for(rejoining, 60)).cluster.token == NEW


def test_a_worker_tells_of_a_refusal_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following.time, "sleep", lambda seconds: None)
    answers = [RayAuthenticationError("refused."), BadTokenError("empty."), RayAuthenticationError("refused.")]
    told: list[str] = []

    def call() -> str:
        if answers:
            raise answers.pop()
        return "accepted"

    assert following.retry_always(call, told.append) == "accepted"
    assert len(told) == 1 and told[0].startswith("refused. The job's state is unknown")
