"""Polling of a head with many jobs: a fetcher that gets slow counts sends few of them."""

from __future__ import annotations

from collections import Counter

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.follow import poller
from tradewind.ray_jobs.follow.poller import JobStatusFetcher

JOBS = [f"job-{number}" for number in range(10)]


async def test_head_with_slow_counts_is_polled_per_job_and_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "SLOW_RESPONSE_S", 0.0)  # every count is slow
    asked: Counter[str] = Counter()

    async def count(request: web.Request) -> web.Response:
        asked["count"] += 1
        return web.json_response({"data": {"result": {"total": 5000, "num_filtered": 10}}})

    async def one(request: web.Request) -> web.Response:
        asked["one"] += 1
        return web.json_response({"submission_id": request.match_info["job"], "status": "PENDING"})

    async def everything(request: web.Request) -> web.Response:
        return web.json_response([{"submission_id": job, "status": "PENDING"} for job in JOBS])

    app = web.Application()
    app.router.add_get("/api/v0/jobs", count)
    app.router.add_get("/api/jobs/", everything)
    app.router.add_get("/api/jobs/{job}", one)
    async with TestServer(app) as server, JobsApi(RayCluster("slow", str(server.make_url("")).rstrip("/"))) as api:
        jobs = JobStatusFetcher(api)
        found = await jobs.fetch(dict.fromkeys(JOBS), JOBS)
        found = await jobs.fetch(found, [])  # the first count; the fetcher has no earlier one to compare
        assert asked == {"count": 1, "one": 10}
        for _ in range(5):
            found = await jobs.fetch(found, [])
        assert asked == {"count": 1, "one": 10}
        jobs._fetched_at["job-3"] -= poller.SLOW_POLL_S
        await jobs.fetch(found, ["job-5"])
        assert asked == {"count": 1, "one": 12}
        jobs._slow_until -= poller.REFRESH_S
        await jobs.fetch(found, [])
        assert asked["count"] == 2, "it may have become faster"
