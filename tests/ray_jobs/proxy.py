"""Loopback proxy before a real head: it counts requests and can fail them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tradewind.ray_jobs.cluster import RayCluster

LIST = "/api/jobs/"


class Proxy:
    """Forward requests to a head, except websockets.

    Attributes:
        requests: Number of requests per path.
        refusal: Answer every request with this HTTP status.
        refused_ending: The same, only for paths with this ending.
        token: Refuse requests without this token.
        delay_s: Seconds to wait before each answer.
        empty_list: Answer requests for the list of jobs with an empty list.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: Counter[str] = Counter()
        self.refusal: int | None = None
        self.refused_ending = ""
        self.token: str | None = None
        self.delay_s = 0.0
        self.empty_list = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RayCluster]:
        """Yield the cluster at the proxy's address."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            yield RayCluster("proxied", f"http://{host}:{port}")
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests[request.path] += 1
        await asyncio.sleep(self.delay_s)
        if self.refusal and request.path.endswith(self.refused_ending):
            return web.Response(status=self.refusal)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=403)
        if request.path.endswith("/tail"):
            return web.Response(status=502)
        if self.empty_list and request.path == LIST:
            return web.json_response([])
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, self.address + request.path_qs, data=await request.read()) as answer,
        ):
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
