"""Store server on loopback with faults for tests; one event loop serves each request atomically.

No await separates reading and changing the state, so a precondition that held still holds at the change.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from aiohttp import web

WRITES = frozenset({"write", "delete", "patch", "copy"})
"""Kinds of requests that change an object."""


@dataclass(frozen=True)
class HttpRequest:
    """A complete request. The path is still quoted, so that a slash in a name is not a separator."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An answer; ``kind`` is the kind of its request."""

    kind: str
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """Answer with this status instead of a resource."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def json_answer(kind: str, content: Any, status: int = 200) -> Answer:
    """Return an answer whose body is ``content`` as JSON."""
    return Answer(kind, status, json.dumps(content).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class LoopbackServer(ABC):
    """One server; its state survives ``stop``, to simulate an outage.

    Attributes:
        latency_s: Delay of every answer.
        failures: How many of the next requests are answered with ``failure_status`` and change nothing.
        lost_answers: How many of the next writes are applied, but their connection is cut without an answer.
        faults_in: Only requests whose path has this text fail or lose their answer; others are unaffected.
        clock_offset_s: How far its clock is ahead of the machine's.
        requests: How many requests were answered, by kind.
    """

    writes: ClassVar[frozenset[str]] = WRITES
    """Kinds of requests whose answers can be lost."""

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.failures = 0
        self.failure_status = 503
        self.lost_answers = 0
        self.faults_in = ""
        self.clock_offset_s = 0.0
        self.requests: Counter[str] = Counter()
        self._port = 0
        self._server: web.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def answer(self, call: HttpRequest) -> Answer:
        """Perform the request without waiting."""

    @abstractmethod
    def refusal(self, kind: str, status: int, message: str) -> Answer:
        """Return an error in this store's format."""

    @property
    def url(self) -> str:
        """URL of the server."""
        assert self._port, "started first"
        return f"http://127.0.0.1:{self._port}"

    def clock(self) -> float:
        """Return the server's time."""
        return time.time() + self.clock_offset_s

    def start(self) -> None:
        """Serve on a free loopback port; after a ``stop``, on the same one."""
        self._loop = asyncio.new_event_loop()
        server, listener = self._loop.run_until_complete(self._listen())
        self._thread = threading.Thread(target=_run, args=(self._loop, server, listener), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cut all connections and stop serving."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None

    def add_address(self, listener: socket.socket) -> asyncio.Server:
        """Also answer at a socket that listens in another network, such as a simulated machine's."""
        assert self._loop is not None and self._server is not None, "started first"
        serving = self._loop.create_server(self._server, sock=listener)
        return asyncio.run_coroutine_threadsafe(serving, self._loop).result()

    def remove_address(self, listener: asyncio.Server) -> None:
        """Undo ``add_address``."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(listener.close)

    async def _listen(self) -> tuple[web.Server, asyncio.Server]:
        server = self._server = web.Server(self._serve, access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", self._port)
        self._port = listener.sockets[0].getsockname()[1]
        return server, listener

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        path, _, query = request.raw_path.partition("?")
        query_fields = dict(parse_qsl(query, keep_blank_values=True))
        call = HttpRequest(request.method, path, query_fields, request.headers, await request.content.read())
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        answer = self._answer_or_fail(call)
        is_lost = self.lost_answers > 0 and self.faults_in in path
        if is_lost and answer.kind in self.writes and answer.status < 300 and request.transport:
            self.lost_answers -= 1
            request.transport.abort()
        headers = {"Date": formatdate(self.clock(), usegmt=True), **answer.headers}
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    def _answer_or_fail(self, call: HttpRequest) -> Answer:
        if self.failures > 0 and self.faults_in in call.path:
            self.failures -= 1
            answer = self.refusal("failed", self.failure_status, "try again")
        else:
            answer = self.answer(call)
        self.requests[answer.kind] += 1
        return answer


def _run(loop: asyncio.AbstractEventLoop, server: web.Server, listener: asyncio.Server) -> None:
    loop.run_forever()
    listener.close()
    loop.run_until_complete(server.shutdown(timeout=0.01))
    loop.run_until_complete(end_tasks())
    loop.close()


async def end_tasks() -> None:
    """Cancel all other tasks of this loop: a server's shutdown does not wait for its handlers."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
