"""HTTP server of a pool's head: it checks tokens and forwards requests to engines.

An answer is read whole before the client gets any of it, so that a request whose engine is lost goes to another one
unnoticed. Streams: ``streams``. Errors have OpenAI's form.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

from tradewind.serving.balancer import Balancer, Engine, EngineLostError, NoEngineError
from tradewind.serving.streams import DifferentStreamError, EventSplitter, StreamedAnswer, error_event

MAX_BODY: Final = 64 << 20
MAX_HELD: Final = 1 << 30
"""Bytes of all requests in the pool, since they wait in the memory of the cluster's head."""
MAX_QUEUED: Final = 20_000
_MAX_LOSSES: Final = 5
"""Lost engines after which a request is the probable cause."""
_MAX_SERVER_ERRORS: Final = 2
_ERROR_PAUSE_S: Final = 0.3
"""In which an engine that ends is seen to be gone."""
_SERVER_ERRORS: Final = frozenset({500, 502, 503, 504})
_RETRY_S: Final = "2"
_PATHS: Final = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
_KEEP_ALIVE_S: Final = 3.0
"""Shorter than any engine's own, so that no request meets a connection that is just being closed."""
_SILENT_S: Final = 60.0
"""For a client that has no request, or not sent the whole head of one."""
_CHANGED: Final = "The engine was lost, and another one refused the request."
_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens)"\s*:\s*(\d{1,12})')
_LOST: Final = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, OSError)


@dataclass
class Counts:
    """What the front has done since it started."""

    served: int = 0
    resent: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """Add the tokens of one answer."""
        self.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self.completion_tokens += int(usage.get("completion_tokens") or 0)


@dataclass
class Front:
    """The server; it runs on one event loop.

    Attributes:
        balancer: Of the pool.
        tokens: SHA-256 of the tokens that count.
        request_timeout_s: Limit of a request, with its time in the queue.
        why_not_ready: What to tell clients while no engine is ready.
    """

    balancer: Balancer
    request_timeout_s: float
    tokens: set[str] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)
    why_not_ready: str = "no engine is ready yet"
    _held: int = 0

    async def start(self, ip: str, port: int) -> int:
        """Listen at this port, or at any if it is 0; return it."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.add_routes([web.post(path, self._forward) for path in _PATHS])
        app.add_routes([web.get("/v1/models", self._forward), web.get("/health", self._health)])
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5, keepalive_timeout=_SILENT_S
        )
        await runner.setup()
        site = web.TCPSite(runner, ip, port, backlog=1024, reuse_address=True)
        await site.start()
        self._runner = runner
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening, and cut what is open."""
        await self._session.close()
        await self._runner.cleanup()

    # ---- before a request

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path != "/health" and not self._has_token(request):
            return _error(401, "invalid_api_key", "Give the pool's token: 'Authorization: Bearer TOKEN'.")
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "invalid_request_error", f"A request may have {MAX_BODY >> 20} MiB.")
        except web.HTTPException as error:
            known = ", ".join((*_PATHS, "/v1/models"))
            return _error(error.status, "invalid_request_error", f"{error.reason}: the pool has {known}.")

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
        return scheme.lower() == "bearer" and digest in self.tokens

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200) if self.balancer.has_open else self._not_ready()

    def _not_ready(self) -> web.Response:
        message = f"The pool cannot answer now: {self.why_not_ready}."
        return _error(503, "service_unavailable", message, {"Retry-After": _RETRY_S})

    # ---- requests

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        size = _largest_size(request)
        if self._held + size > MAX_HELD or self.balancer.queued >= MAX_QUEUED:
            return _error(429, "rate_limit_exceeded", "Too many requests wait.", {"Retry-After": _RETRY_S})
        self._held += size
        stream = None
        try:
            async with asyncio.timeout(self.request_timeout_s):
                body = await request.read()
                size, surplus = len(body), size - len(body)
                self._held -= surplus
                stream = _ClientStream(request) if _wants_stream(body) else None
                return await (self._answer(request, body) if stream is None else self._stream(stream, body))
        except NoEngineError:
            return self._not_ready()
        except TimeoutError:
            message = f"The request has taken longer than the {self.request_timeout_s:g} s that it may."
            return await _end(stream, 504, "timeout", message)
        finally:
            self._held -= size

    async def _answer(self, request: web.Request, body: bytes) -> web.Response:
        """Return the answer of the first engine that gives one."""
        losses = errors = 0
        avoided: Engine | None = None
        while True:
            try:
                async with self.balancer.lease(losses=losses, avoided=avoided) as engine:
                    answer = await self._ask(engine, request, body)
                if answer.status not in _SERVER_ERRORS or errors + 1 >= _MAX_SERVER_ERRORS:
                    engine.served += 1
                    self.counts.served += 1
                    return answer
                errors, avoided = errors + 1, engine  # an engine that is about to end answers so
                await asyncio.sleep(_ERROR_PAUSE_S)
            except EngineLostError:
                losses += 1
                if losses >= _MAX_LOSSES:
                    return _error(500, "engine_lost", _lost_too_often(losses))
            self.counts.resent += 1

    async def _ask(self, engine: Engine, request: web.Request, body: bytes) -> web.Response:
        """Return an engine's answer. Raises ``EngineLostError`` if the connection is lost."""
        try:
            async with self._request(engine, request, body) as answer:
                content = await answer.read()
        except _LOST:
            self.balancer.note_down(engine)
            raise EngineLostError from None
        if answer.status == 200 and (at := content.rfind(b'"usage"')) >= 0:
            self.counts.add_usage({name.decode(): int(amount) for name, amount in _USAGE.findall(content, at)})
        return web.Response(status=answer.status, body=content, headers=_passed(answer))

    def _request(self, engine: Engine, request: web.Request, body: bytes) -> Any:
        headers = {"Authorization": f"Bearer {engine.token}", "Accept-Encoding": "identity"}
        if body:
            headers["Content-Type"] = request.headers.get("Content-Type", "application/json")
        return self._session.request(request.method, engine.url + request.path_qs, data=body or None, headers=headers)

    # ---- streams

    async def _stream(self, stream: _ClientStream, body: bytes) -> web.StreamResponse:
        """Pass a stream on; another engine continues it if the first is lost."""
        for losses in range(_MAX_LOSSES):
            try:
                async with self.balancer.lease(losses=losses) as engine:
                    async for part in self._events(engine, stream, body):
                        if isinstance(part, web.Response):  # no stream, but an error
                            return part if stream.response is None else await stream.fail("engine_lost", _CHANGED)
                        await stream.write(part)
                engine.served += 1
                self.counts.served += 1
                self.counts.add_usage(stream.answer.usage)
                return await stream.end()
            except EngineLostError:
                self.counts.resent += 1
            except DifferentStreamError as error:
                message = f"The engine was lost, and another one cannot continue its answer: {error}."
                return await stream.fail("engine_lost", message)
        return await _end(stream, 500, "engine_lost", _lost_too_often(_MAX_LOSSES))

    async def _events(self, engine: Engine, stream: _ClientStream, body: bytes) -> AsyncIterator[bytes | web.Response]:
        """Yield what the client gets of an engine's stream. Raises ``EngineLostError`` if the stream breaks off."""
        stream.answer.begin_again()
        splitter = EventSplitter()
        try:
            async with self._request(engine, stream.request, body) as answer:
                if answer.content_type != "text/event-stream":
                    yield web.Response(status=answer.status, body=await answer.read(), headers=_passed(answer))
                    return
                async for data in answer.content.iter_any():
                    for event in splitter.feed(data):
                        if passed := stream.answer.pass_on(event):
                            yield passed
        except _LOST:
            self.balancer.note_down(engine)
            raise EngineLostError from None
        if not stream.answer.is_complete:
            self.balancer.note_down(engine)
            raise EngineLostError


@dataclass
class _ClientStream:
    """A client's side of a stream; it begins with the first event."""

    request: web.Request
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)
    response: web.StreamResponse | None = None

    async def write(self, data: bytes) -> None:
        if self.response is None:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
            self.response = web.StreamResponse(headers=headers)
            await self.response.prepare(self.request)
        await self.response.write(data)

    async def end(self) -> web.StreamResponse:
        assert self.response is not None
        await self.response.write_eof()
        return self.response

    async def fail(self, kind: str, message: str) -> web.StreamResponse:
        """End a stream that has begun with an error."""
        await self.write(error_event(kind, message))
        return await self.end()


async def _end(stream: _ClientStream | None, status: int, kind: str, message: str) -> web.StreamResponse:
    """Answer with an error, in the stream if it has begun."""
    if stream is None or stream.response is None:
        return _error(status, kind, message)
    return await stream.fail(kind, message)


def _passed(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the headers of an engine's answer that its client gets."""
    return {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}


def _largest_size(request: web.Request) -> int:
    """Return how large a body may be that has yet to come."""
    if not request.can_read_body:
        return 0
    told = None if "Content-Encoding" in request.headers else request.content_length
    return MAX_BODY if told is None else min(told, MAX_BODY)


def _wants_stream(body: bytes) -> bool:
    if b'"stream"' not in body:
        return False
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return False  # the engine refuses it
    return isinstance(fields, dict) and fields.get("stream") is True


def _lost_too_often(losses: int) -> str:
    return f"{losses} engines were lost while they worked on this request: it is probably the cause."


def _error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return web.json_response(error, status=status, headers=headers)
