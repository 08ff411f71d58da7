"""A web site on loopback for a crawl: several hosts, each an address of 127.0.0.0/8, that answer what a test says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    """One request, with its time of arrival."""

    host: str
    path: str
    head: bytes
    begun: float


@dataclass
class Site:
    """What the hosts answer, by ``host/path`` or by path, and what they were asked.

    Attributes:
        port: Of all hosts.
        answers: Whole responses, or functions that write one; others are 404.
        requests: In their order.
        overlaps: Requests that arrived while their host answered another.
    """

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    overlaps: list[Request] = field(default_factory=list)

    def url(self, host: str, path: str) -> str:
        return f"http://{host}:{self.port}{path}"

    def paths(self, host: str | None = None) -> list[str]:
        """Return what was requested, but for ``robots.txt``."""
        asked = [request for request in self.requests if host in (None, request.host)]
        return [f"{request.host}{request.path}" for request in asked if request.path != "/robots.txt"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str(writer.get_extra_info("sockname")[0])
        try:
            while not writer.is_closing():
                head = await reader.readexactly(1)
                if head != b"G":  # of TLS
                    return
                head += await reader.readuntil(b"\r\n\r\n")
                request = Request(host, head.split(b" ")[1].decode(), head, time.monotonic())
                self.requests.append(request)
                self.overlaps += [request] if host in self._busy else []
                self._busy.append(host)
                try:
                    await self._answer(request, writer)
                finally:
                    self._busy.remove(host)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        own = self.answers.get(f"{request.host}{request.path}", self.answers.get(request.path))
        if callable(own):
            await own(writer)
            writer.close()
            return
        writer.write(page(status="404 Not Found") if own is None else own)
        await writer.drain()
        if own is not None and b"close" in own.partition(b"\r\n\r\n")[0]:
            writer.close()

    def __post_init__(self) -> None:
        self._busy: list[str] = []


def page(body: bytes = b"<p>hello</p>", status: str = "200 OK", kind: str = "text/html", **headers: object) -> bytes:
    """Return a whole response."""
    given = {"Content_Type": kind, "Content_Length": len(body), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def moved(target: str, status: int = 302) -> bytes:
    """Return a redirect."""
    return page(b"", f"{status} Moved", Location=target)


def robots(text: str) -> bytes:
    """Return a ``robots.txt``."""
    return page(text.encode(), kind="text/plain")


@contextmanager
def serving_site(hosts: int) -> Iterator[Site]:
    """Serve ``127.0.1.1`` and so on, until the block ends."""
    site, ready, loop = Site(), Future[None](), asyncio.new_event_loop()

    async def serve() -> None:
        names = [f"127.0.1.{number}" for number in range(1, hosts + 1)]
        first = await asyncio.start_server(site.serve, names[0], 0)
        site.port = first.sockets[0].getsockname()[1]
        others = [await asyncio.start_server(site.serve, name, site.port) for name in names[1:]]
        ready.set_result(None)
        try:
            await asyncio.Event().wait()
        finally:
            for server in (first, *others):
                server.close()

    def run() -> None:
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        ready.result(60)
        yield site
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join()
