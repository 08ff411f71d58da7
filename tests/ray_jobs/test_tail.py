"""The lines of a stream that has ended are given although it is not open again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from aiohttp import web
from aiohttp.test_utils import TestServer

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.log_lines import JobLog, Pace
from tradewind.ray_jobs.tail import tailing
from tradewind.ray_jobs.watch import watching


async def test_what_was_read_is_given_when_the_stream_ends_though_its_time_has_not_come() -> None:
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

    pace = Pace(3600.0)
    pace.next_moment(time.monotonic() - 1.0)  # the next one comes in an hour
    app = web.Application()
    app.router.add_get("/api/jobs/j/logs/tail", one_line)
    app.router.add_get("/api/jobs/j", running)
    async with TestServer(app) as server:
        cluster = RayCluster("ends", str(server.make_url("")).rstrip("/"))
        log = JobLog(give, pace=pace)
        async with watching(cluster, "j") as watched, tailing(watched, log, print), asyncio.timeout(10):
            await has_lines.wait()
    assert given == ["the last words of a head"]
