"""The HTTP server of a pool before engines that fail in every way: each client gets one answer, or a clear error."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.waiting import limit_s, until_async
from tradewind.serving import front as module
from tradewind.serving.balancer import Balancer, Engine
from tradewind.serving.front import Front

Reply = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
TOKEN = "a token of a user"
BODY = {"prompt": "a"}


def answer(text: str, status: int = 200) -> Reply:
    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return web.json_response({"choices": [{"text": text}], "usage": usage}, status=status)

    return reply


async def hang_up(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half_an_answer(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    return await hang_up(request)


async def silence(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


def stream(*texts: str, then: Reply | None = None) -> Reply:
    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for text in texts:
            event = {"id": str(id(reply)), "choices": [{"index": 0, "text": text}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if then is not None:
            return await then(request)
        await response.write(b"data: [DONE]\n\n")
        return response

    return reply


class Served:
    """A front, and engines that reply by a script; the last reply is repeated."""

    def __init__(self, front: Front, address: str, session: aiohttp.ClientSession) -> None:
        self.front, self.address, self.session = front, address, session
        self.seen: list[str] = []

    async def post(self, body: Any = BODY, path: str = "/v1/completions", token: str = TOKEN) -> tuple[int, Any]:
        """Return status and JSON, or the text of a stream."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(self.address + path, json=body, headers=headers) as got:
            text = await got.text()
            return got.status, text if "event-stream" in got.content_type else json.loads(text)


@asynccontextmanager
async def served(*scripts: Sequence[Reply], max_concurrent: int = 4, timeout_s: float = 30.0) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        front = Front(Balancer(max_concurrent), timeout_s, {hashlib.sha256(TOKEN.encode()).hexdigest()})
        port = await front.start("127.0.0.1", 0)
        stack.push_async_callback(front.close)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        made = Served(front, f"http://127.0.0.1:{port}", session)
        for number, script in enumerate(scripts):
            replies = list(script)

            async def handler(
                request: web.BaseRequest, name: str = f"e{number}", replies: list[Reply] = replies
            ) -> web.StreamResponse:
                made.seen.append(name)
                assert request.headers["Authorization"] == "Bearer of the relay"
                return await (replies.pop(0) if len(replies) > 1 else replies[0])(request)

            runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            front.balancer.add(Engine(f"e{number}", url, "of the relay"))
        yield made


@asynccontextmanager
async def connection(pool: Served, sent: str) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(pool.address.rpartition(":")[2]))
    writer.write(sent.encode())
    yield reader
    writer.close()


@pytest.mark.parametrize("first", [hang_up, half_an_answer, answer("dying", 500), answer("dying", 503)])
async def test_request_of_lost_engine_goes_to_other(first: Reply) -> None:
    async with served([first], [answer("fine")]) as pool:
        status, body = await pool.post()
        assert (status, body["choices"][0]["text"]) == (200, "fine")
        assert pool.seen == ["e0", "e1"]
        assert (pool.front.counts.served, pool.front.counts.resent) == (1, 1)


async def test_given_up_engine_cancels_its_requests_only() -> None:
    async with served([silence], [answer("fine")], max_concurrent=1) as pool:
        first = asyncio.create_task(pool.post())
        await until_async(lambda: pool.seen == ["e0"])
        assert (await pool.post())[0] == 200
        pool.front.balancer.lose("e0")
        assert (await first)[1]["choices"][0]["text"] == "fine"
        assert pool.seen == ["e0", "e1", "e1"] and pool.front.balancer.in_flight == 0


async def test_request_that_ends_engines_fails_alone() -> None:
    working: dict[asyncio.Task[Any], bytes] = {}
    ends: list[int] = []

    def is_bad(body: bytes) -> bool:
        return b"!exit" in body

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        working[task] = await request.read()
        try:
            while not ends or len(working) < pool.front.balancer.in_flight or is_bad(b"".join(working.values())):
                await asyncio.sleep(0.01)
                if is_bad(working[task]) and len(working) == pool.front.balancer.in_flight:
                    ends.append(len(working))
                    for other in working.keys() - {task}:
                        other.cancel()
                    return await hang_up(request)
            return await answer("fine")(request)
        except asyncio.CancelledError:
            return await hang_up(request)
        finally:
            del working[task]

    async def bring_up() -> None:
        while True:
            await asyncio.sleep(0.01)
            if pool.front.balancer.in_flight == 0:
                pool.front.balancer.note_up("e0", time.monotonic())

    async with served([engine], max_concurrent=16) as pool:
        restarts = asyncio.create_task(bring_up())
        others = [asyncio.create_task(pool.post({"prompt": f"{number}"})) for number in range(15)]
        await until_async(lambda: len(working) == 15)
        status, body = await pool.post({"prompt": "!exit"})
        assert status == 500 and "5 engines were lost while they worked on this request" in body["error"]["message"]
        assert [status for status, _ in await asyncio.gather(*others)] == [200] * 15
        restarts.cancel()
    assert ends == [16, 16, 4, 1, 1]


async def test_error_of_engine_is_passed_on() -> None:
    async with served([answer("bad request", 400), answer("broken", 500), answer("broken", 500)]) as pool:
        assert (await pool.post())[0] == 400
        assert (await pool.post())[0] == 500
        assert len(pool.seen) == 3 and pool.front.counts.completion_tokens == 0


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [("", "", 401), ("x", "", 401), (f"{TOKEN}x", "", 401), ("ü\udcff", "", 401), (TOKEN, "/x", 404)],
)
async def test_request_without_token_or_path_reaches_no_engine(token: str, path: str, status: int) -> None:
    async with served([answer("fine")]) as pool:
        headers = {"Authorization": f"Bearer {token}".encode("utf-8", "surrogateescape").decode("latin-1")}
        async with pool.session.post(f"{pool.address}/v1/completions{path}", json=BODY, headers=headers) as got:
            assert got.status == status and "error" in await got.json()
        assert pool.seen == []


async def test_digest_of_token_is_no_token() -> None:
    async with served([answer("fine")]) as pool:
        assert (await pool.post(token=hashlib.sha256(TOKEN.encode()).hexdigest()))[0] == 401
        for scheme, status in (("bearer", 200), ("Basic", 401)):
            headers = {"Authorization": f"{scheme} {TOKEN}"}
            async with pool.session.get(f"{pool.address}/v1/models", headers=headers) as got:
                assert got.status == status


async def test_pool_without_engine_says_so() -> None:
    async with served() as pool:
        pool.front.why_not_ready = "its engines do not start: no memory"
        async with pool.session.get(f"{pool.address}/health") as got:
            assert (got.status, got.headers["Retry-After"]) == (503, "2")
            assert "no memory" in await got.text()
        assert (await pool.post())[0] == 503


async def test_limits_of_requests_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 1000)
    async with served([silence], timeout_s=0.3) as pool:
        assert (await pool.post({"prompt": "a" * 2000}))[0] == 413
        assert (await pool.post())[0] == 504
        monkeypatch.setattr(module, "MAX_HELD", -1)
        assert (await pool.post())[0] == 429
        assert pool.front.balancer.in_flight == 0


async def test_bodies_count_before_they_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served([answer("fine")], timeout_s=0.5) as pool:
        monkeypatch.setattr(module, "MAX_HELD", 1500)
        lines = (
            "POST /v1/completions HTTP/1.1",
            "Host: pool",
            f"Authorization: Bearer {TOKEN}",
            "Content-Length: 1499",
        )
        async with connection(pool, "\r\n".join((*lines, "", ""))) as reader:
            await until_async(lambda: pool.front._held)
            assert (await pool.post())[0] == 429
            assert b" 504 " in await reader.readline()
        assert (await pool.post())[0] == 200 and pool.front._held == 0


@pytest.mark.parametrize("sent", ["", "GET /v1/models HTT"])
async def test_client_without_request_is_cut(monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.2)
    async with served([answer("fine")]) as pool, connection(pool, sent) as reader:
        assert await asyncio.wait_for(reader.read(), limit_s()) == b""


async def test_client_that_leaves_frees_its_place() -> None:
    async with served([silence], max_concurrent=1) as pool:
        first, second = (asyncio.create_task(pool.post()) for _ in range(2))
        await until_async(lambda: pool.front.balancer.queued == 1)
        first.cancel()
        await until_async(lambda: len(pool.seen) == 2 and pool.front.balancer.queued == 0)
        second.cancel()
        await until_async(lambda: pool.front.balancer.in_flight == 0)


@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        (stream("a", " b", then=hang_up), stream("a b", " c"), 'c"'),
        (stream("a", " b"), stream("a b"), '" b"'),
        (stream(then=hang_up), stream("a b"), '"a b"'),
        (hang_up, stream("a b"), '"a b"'),
        (stream("a", then=hang_up), stream("x"), "another one cannot continue its answer: the text differs"),
        (stream("a", then=hang_up), answer("no", 500), "another one refused the request"),
        (stream("a", then=silence), silence, "The request has taken longer than"),
    ],
)
async def test_stream_of_lost_engine_continues_or_says_why(first: Reply, second: Reply, end: str) -> None:
    async with served([first], [second], timeout_s=1.0) as pool:
        status, text = await pool.post({**BODY, "stream": True})
        last = [line for line in text.splitlines() if line.startswith("data: {")][-1]
        assert status == 200 and end in last
        assert text.endswith("data: [DONE]\n\n") == ("error" not in last)
        assert len({json.loads(each[6:])["id"] for each in text.split("\n\n") if '"choices"' in each}) <= 1
        assert pool.front.balancer.in_flight == 0


async def test_busy_engine_says_when_to_come_again() -> None:
    async def busy(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({}, status=429, headers={"Retry-After": "7", "Server": "of the engine"})

    async with served([busy]) as pool:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with pool.session.post(f"{pool.address}/v1/completions", json=BODY, headers=headers) as got:
            assert (got.status, got.headers["Retry-After"]) == (429, "7")
            assert got.headers["Server"] != "of the engine"


async def test_refused_stream_is_no_stream() -> None:
    async with served([answer("bad request", 400)]) as pool:
        assert (await pool.post({**BODY, "stream": True}))[0] == 400
