"""Loopback proxy in front of a Ray head that counts requests by kind, websockets and bytes.

It passes everything on as it is: bodies in pieces, websockets message by message. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from aiohttp import (
    ClientConnectionError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    TCPConnector,
    WSMsgType,
    WSServerHandshakeError,
    web,
)

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "content-encoding", "host"}
)
_JOB = re.compile(r"^/api/jobs/[^/]+")
_PIECE = 64 * 1024


@dataclass
class Traffic:
    """Counts so far; ``since`` returns the difference to an earlier state."""

    requests: Counter[str] = field(default_factory=Counter)
    """Method and path → how often, a websocket's opening included; a job's id is written as ``*``."""
    received: int = 0
    """Bytes that the head sent."""

    @property
    def total(self) -> int:
        return self.requests.total()

    def copy(self) -> Traffic:
        """Return the current counts."""
        return Traffic(Counter(self.requests), self.received)

    def since(self, before: Traffic) -> Traffic:
        """Return the counts since ``before``."""
        return Traffic(self.requests - before.requests, self.received - before.received)


def kind_of(method: str, path: str) -> str:
    """Return method and path of the request, without the job's ID."""
    return f"{method} {_JOB.sub('/api/jobs/*', path)}"


class CountingProxy:
    """A proxy in front of ``target`` for the length of the context."""

    def __init__(self, target: str) -> None:
        self.target = target.rstrip("/")
        self.traffic = Traffic()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="counting-proxy", daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)  # type: ignore[arg-type]

    async def _start(self) -> None:
        self._session = ClientSession(
            timeout=ClientTimeout(total=None), auto_decompress=False, connector=TCPConnector(limit=0)
        )
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await self._session.close()  # first, so that no websocket is left to wait for
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.traffic.requests[kind_of(request.method, request.path)] += 1
        is_websocket = request.headers.get("Upgrade", "").lower() == "websocket"
        try:
            return await (self._pass_websocket(request) if is_websocket else self._pass_request(request))
        except ClientConnectionError as error:  # one of the two sides has gone
            return web.Response(status=502, text=str(error))

    async def _pass_request(self, request: web.Request) -> web.StreamResponse:
        body = request.content.iter_chunked(_PIECE) if request.can_read_body else None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = self.target + request.path_qs
        async with self._session.request(request.method, url, headers=headers, data=body) as answer:
            kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP]
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            response.headers.extend(kept)
            if encoding := answer.headers.get("Content-Encoding"):
                response.headers["Content-Encoding"] = encoding
            await response.prepare(request)
            async for piece in answer.content.iter_chunked(_PIECE):
                self.traffic.received += len(piece)
                await response.write(piece)
            await response.write_eof()
        return response

    async def _pass_websocket(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() == "authorization"}
        try:
            upstream = await self._session.ws_connect(self.target + request.path_qs, headers=headers)
        except WSServerHandshakeError as refusal:
            return web.Response(status=refusal.status)
        async with upstream:
            downstream = web.WebSocketResponse()
            await downstream.prepare(request)
            listener = asyncio.create_task(_end_with(downstream, upstream))
            try:
                async for message in upstream:
                    if message.type is WSMsgType.TEXT:
                        self.traffic.received += len(message.data)
                        await downstream.send_str(message.data)
                    elif message.type is WSMsgType.BINARY:
                        self.traffic.received += len(message.data)
                        await downstream.send_bytes(message.data)
            except ConnectionError:
                pass  # the client has gone
            finally:
                listener.cancel()
            await downstream.close()
        return downstream


async def _end_with(downstream: web.WebSocketResponse, upstream: ClientWebSocketResponse) -> None:
    """Close the connection to the head when the client of a log tail, which sends nothing, closes its own."""
    async for _ in downstream:
        pass
    await upstream.close()
