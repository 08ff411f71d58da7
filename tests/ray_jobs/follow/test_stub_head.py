"""Streams that end or pause, and slow counts, of an HTTP server that answers as a head does."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import CACHE_TTL_S
from tradewind.ray_jobs.errors import BadAddressError
from tradewind.ray_jobs.follow import log_reader, poller
from tradewind.ray_jobs.follow.follow import (
    FIRST_NOTICE_S,
    NOTICE_INTERVAL_S,
    OutageNotifier,
    StallNotifier,
    follow_job,
    read_connection_first,
)
from tradewind.ray_jobs.follow.log_lines import FlushSchedule, JobLog
from tradewind.ray_jobs.follow.log_reader import tailing
from tradewind.ray_jobs.follow.poller import JobStatusFetcher, watching

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def head(answers: dict[str, Answer]) -> AsyncIterator[RayCluster]:
    """Yield a cluster whose paths have these answers."""
    app = web.Application()
    app.add_routes([web.get(path, answer) for path, answer in answers.items()])
    async with TestServer(app) as server:
        yield RayCluster("stub", str(server.make_url("")).rstrip("/"))


async def opened_stream(request: web.Request) -> web.WebSocketResponse:
    stream = web.WebSocketResponse()
    await stream.prepare(request)
    return stream


async def test_pending_lines_are_emitted_early_when_stream_ends() -> None:
    given: list[str] = []
    has_lines = asyncio.Event()

    def give(lines: Sequence[str]) -> None:
        given.extend(lines)
        has_lines.set()

    async def one_line(request: web.Request) -> web.WebSocketResponse:
        stream = await opened_stream(request)
        await stream.send_str("the last words of a head\n")
        await stream.close()
        return stream

    async def running(request: web.Request) -> web.Response:
        return web.json_response({"submission_id": "j", "status": "RUNNING"})

    schedule = FlushSchedule(3600.0)
    schedule.next_moment(time.monotonic() - 1.0)  # the next moment is an hour away
    async with head({"/api/jobs/j/logs/tail": one_line, "/api/jobs/j": running}) as cluster:
        log = JobLog(give, schedule=schedule)
        async with watching(cluster, "j") as watched, tailing(watched, log, print), asyncio.timeout(10):
            await has_lines.wait()
    assert given == ["the last words of a head"]


@pytest.mark.slow
async def test_ended_job_is_seen_before_stream_end_with_few_polls() -> None:
    polls: list[int] = []
    lines = 0
    over = asyncio.Event()

    async def pausing(request: web.Request) -> web.WebSocketResponse:
        nonlocal lines
        stream = await opened_stream(request)
        for _ in range(3):  # after the third line the stream stays open
            lines += 1
            await stream.send_str(f"{lines}\n")
            await asyncio.sleep(1.5 * log_reader.PAUSE_S)
        await over.wait()
        return stream

    async def ended_with_the_first_line_or_never(request: web.Request) -> web.Response:
        polls.append(lines)
        has_ended = request.match_info["job"] == "ends" and lines
        return web.json_response({"submission_id": "j", "status": "SUCCEEDED" if has_ended else "RUNNING"})

    async def whole_log(request: web.Request) -> web.Response:
        return web.json_response({"logs": "1\n"})

    answers: dict[str, Answer] = {
        "/api/jobs/{job}/logs/tail": pausing,
        "/api/jobs/{job}/logs": whole_log,
        "/api/jobs/{job}": ended_with_the_first_line_or_never,
    }
    given: list[str] = []
    async with head(answers) as cluster, asyncio.timeout(30):
        try:
            end = await follow_job(cluster, "ends", log=JobLog(given.extend), notice=print)
            assert end.details is not None and end.details.status == "SUCCEEDED" and lines < 3
            lines, polls[:] = 0, []
            continues = asyncio.create_task(follow_job(cluster, "continues", log=JobLog(given.extend), notice=print))
            while lines < 3:
                await asyncio.sleep(0.1)
            await asyncio.sleep(2 * log_reader.PAUSE_S)
            continues.cancel()
        finally:
            over.set()  # otherwise the server waits for its streams
    assert polls == [0, 1], "when it was joined, and at its first pause"


STARVED: dict[str, list[dict[str, object]]] = {
    "jobs": [{"job_id": "01", "submission_id": None}, {"job_id": "02", "submission_id": "starved"}],
    "tasks": [
        {"job_id": "02", "type": "ACTOR_CREATION_TASK", "required_resources": {"GPU\x1b": 1.0}},
        {
            "job_id": "02",
            "required_resources": {"bundle_group_0_0123456789": 0.001, "CPU_group_0_0123456789": 1.0},
            "placement_group_id": "0123456789",
        },
    ],
    "actors": [],
    "placement_groups": [
        {
            "creator_job_id": "02",
            "bundles": [{"node_id": node, "unit_resources": {"TPU": 4.0}} for node in ("n", "")],
        }
    ],
    "nodes": [{"node_id": "n", "state": "ALIVE", "resources_total": {"CPU": 1.0}}],
}


@pytest.mark.parametrize("waits", [False, True], ids=["free", "starved"])
async def test_quiet_job_is_asked_for_waiting_work_once_a_minute(waits: bool) -> None:
    asked: Counter[str] = Counter()
    notices: list[str] = []

    async def running(request: web.Request) -> web.Response:
        return web.json_response({"submission_id": "starved", "status": "RUNNING"})

    async def status(request: web.Request) -> web.Response:
        asked["status"] += 1
        load = {"resourceDemand": [[{"GPU": 1.0}, 1]] if waits else [], "pgDemand": []}
        return web.json_response({"data": {"clusterStatus": {"loadMetricsReport": load}}})

    async def rows(request: web.Request) -> web.Response:
        asked[request.match_info["table"]] += 1
        return web.json_response({"data": {"result": {"result": STARVED[request.match_info["table"]]}}})

    answers: dict[str, Answer] = {
        "/api/jobs/starved": running,
        "/api/cluster_status": status,
        "/api/v0/{table}": rows,
    }
    async with head(answers) as cluster, watching(cluster, "starved") as watched:
        listener, log = OutageNotifier(watched, notices.append), JobLog(print)
        while watched.details is None:
            await watched.wait_for_update()
        stalls = StallNotifier(listener, log)
        assert await stalls.check() > 0 and not asked, "it has just printed"
        log.taken_at -= FIRST_NOTICE_S
        pauses = [await stalls.check() for _ in range(2)]
        assert all(0 < pause <= (NOTICE_INTERVAL_S if waits else CACHE_TTL_S) for pause in pauses)
        other = StallNotifier(listener, log)
        await other.check()
    why = "Ray job starved runs, but 1 of its actors waits for 1 GPU?: no node of the cluster can serve 1 GPU?; "
    assert asked["status"] == (2 if waits else 1) and asked["tasks"] == (2 if waits else 0)
    assert len(notices) == (2 if waits else 0) and all(notice.startswith(why) for notice in notices)
    whys = ("1 of its Ray tasks waits for 1 CPU: its placement", "1 of its placement group bundles waits for 4 TPU:")
    assert all(why in notice for why in whys for notice in notices)


async def test_head_with_slow_counts_is_polled_per_job_and_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "SLOW_RESPONSE_S", 0.0)  # every count is slow
    names = [f"job-{number}" for number in range(10)]
    requests: Counter[str] = Counter()

    async def count(request: web.Request) -> web.Response:
        requests["count"] += 1
        return web.json_response({"data": {"result": {"total": 5000, "num_filtered": 10}}})

    async def one(request: web.Request) -> web.Response:
        requests["one"] += 1
        return web.json_response({"submission_id": request.match_info["job"], "status": "PENDING"})

    async def listed(request: web.Request) -> web.Response:
        return web.json_response([{"submission_id": job, "status": "PENDING"} for job in names])

    answers: dict[str, Answer] = {"/api/v0/jobs": count, "/api/jobs/": listed, "/api/jobs/{job}": one}
    async with head(answers) as cluster, JobsApi(cluster) as api:
        fetcher = JobStatusFetcher(api)
        jobs = await fetcher.fetch(dict.fromkeys(names), names)
        jobs = await fetcher.fetch(jobs, [])  # the first count; the fetcher has no earlier one to compare
        assert requests == {"count": 1, "one": 10}
        for _ in range(5):
            jobs = await fetcher.fetch(jobs, [])
        assert requests == {"count": 1, "one": 10}
        fetcher._fetched_at["job-3"] -= poller.SLOW_POLL_S
        await fetcher.fetch(jobs, ["job-5"])
        assert requests == {"count": 1, "one": 12}
        fetcher._slow_until -= poller.REFRESH_S
        await fetcher.fetch(jobs, [])
        assert requests["count"] == 2, "it may have become faster"


async def test_removed_connection_is_reported_and_waited_for() -> None:
    """A user removes the connection of a deferred task and adds it again: the task continues to follow its job."""
    cluster = RayCluster("ray", "http://127.0.0.1:1")
    readings: list[RayCluster | BadAddressError] = [BadAddressError("There is no connection 'ray'."), cluster]
    told: list[str] = []

    async def read() -> RayCluster:
        reading = readings.pop(0)
        if isinstance(reading, BadAddressError):
            raise reading
        return reading

    assert await read_connection_first("job-1", read, told.append) == cluster
    assert told == ["There is no connection 'ray'. This says nothing about job job-1; retrying at intervals."]
