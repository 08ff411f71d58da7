"""Log streams that end, and those that pause, as Ray's do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.follow import log_reader
from tradewind.ray_jobs.follow.follow import follow_job
from tradewind.ray_jobs.follow.log_lines import FlushSchedule, JobLog
from tradewind.ray_jobs.follow.log_reader import tailing
from tradewind.ray_jobs.follow.poller import watching


async def test_pending_lines_are_emitted_early_when_stream_ends() -> None:
    given: list[str] = []
    has_lines = asyncio.Event()

    def give(lines: Sequence[str]) -> None:
        given.extend(lines)
        has_lines.set()

    async def one_line(request: web.Request) -> web.WebSocketResponse:
        stream = web.WebSocketResponse()
        await stream.prepare(request)
        await stream.send_str("the last words of a head\n")
        await stream.close()
        return stream

    async def running(request: web.Request) -> web.Response:
        return web.json_response({"submission_id": "j", "status": "RUNNING"})

    pace = FlushSchedule(3600.0)
    pace.next_moment(time.monotonic() - 1.0)  # the next moment is an hour away
    app = web.Application()
    app.router.add_get("/api/jobs/j/logs/tail", one_line)
    app.router.add_get("/api/jobs/j", running)
    async with TestServer(app) as server:
        cluster = RayCluster("ends", str(server.make_url("")).rstrip("/"))
        log = JobLog(give, schedule=pace)
        async with watching(cluster, "j") as watched, tailing(watched, log, print), asyncio.timeout(10):
            await has_lines.wait()
    assert given == ["the last words of a head"]


@pytest.mark.slow
async def test_ended_job_is_seen_before_stream_end_with_few_polls() -> None:
    asked: list[int] = []
    lines = 0
    over = asyncio.Event()

    async def pausing(request: web.Request) -> web.WebSocketResponse:
        nonlocal lines
        stream = web.WebSocketResponse()
        await stream.prepare(request)
        for _ in range(3):  # after the third line the stream stays open
            lines += 1
            await stream.send_str(f"{lines}\n")
            await asyncio.sleep(1.5 * log_reader.PAUSE_S)
        await over.wait()
        return stream

    async def ended_with_the_first_line_or_never(request: web.Request) -> web.Response:
        asked.append(lines)
        has_ended = request.match_info["job"] == "ends" and lines
        return web.json_response({"submission_id": "j", "status": "SUCCEEDED" if has_ended else "RUNNING"})

    async def whole(request: web.Request) -> web.Response:
        return web.json_response({"logs": "1\n"})

    app = web.Application()
    app.router.add_get("/api/jobs/{job}/logs/tail", pausing)
    app.router.add_get("/api/jobs/{job}/logs", whole)
    app.router.add_get("/api/jobs/{job}", ended_with_the_first_line_or_never)
    given: list[str] = []
    async with TestServer(app) as server, asyncio.timeout(30):
        cluster = RayCluster("pauses", str(server.make_url("")).rstrip("/"))
        try:
            end = await follow_job(cluster, "ends", log=JobLog(given.extend), notice=print)
            assert end.details is not None and end.details.status == "SUCCEEDED" and lines < 3
            lines, asked[:] = 0, []
            goes_on = asyncio.create_task(follow_job(cluster, "goes-on", log=JobLog(given.extend), notice=print))
            while lines < 3:
                await asyncio.sleep(0.1)
            await asyncio.sleep(2 * log_reader.PAUSE_S)
            goes_on.cancel()
        finally:
            over.set()  # otherwise the server waits for its streams
    assert asked == [0, 1], "when it was joined, and at its first pause"
