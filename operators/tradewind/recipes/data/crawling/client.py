"""Request the pages of many hosts at once, and of each host one after another with a pause between.

Each request, also for a redirect or a ``robots.txt``, passes the same checks: scheme, port, and that every IP address
of its host is public. The connection is made to the addresses that were checked. Proxies, ``.netrc`` and cookies are
not used. What a server sends is bounded in bytes, before and after decoding, and in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from queue import SimpleQueue
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tradewind.datasets.http_bodies import decode_body
from tradewind.recipes.data.crawling.addresses import (
    Address,
    AddressError,
    Networks,
    check_ip,
    check_port,
    literal_ip,
    parse_address,
)
from tradewind.recipes.data.crawling.robots import ALLOW_ALL, MAX_ROBOTS_BYTES, Robots, parse_robots
from tradewind.text import single_line

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BUSY: Final = frozenset({429, 503})
_MAX_TRIES: Final = 3
"""Requests for an address whose host says that it is busy."""
_MAX_PAUSE_S: Final = 300.0
"""A host that asks for longer pauses before it answers is left alone for the rest of the shard."""
_MAX_FAILURES: Final = 5
"""Addresses in a row that time out or break; then the rest of the host's are not requested."""
_MAX_ROBOTS_REDIRECTS: Final = 5
_CHUNK_BYTES: Final = 1 << 16
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_BROKEN: Final = frozenset({"connection", "dns", "timeout", "tls"})


@dataclass(frozen=True)
class FetchRules:
    """How pages are requested, and which are taken."""

    user_agent: str
    product: str
    timeout_s: float
    max_page_bytes: int
    max_redirects: int
    content_types: Sequence[str]
    allow_ports: Sequence[int]
    allow_networks: Sequence[str]
    delay_s: float
    max_delay_s: float
    hosts_at_once: int
    seconds: float
    """After so long no further address is requested."""

    @property
    def networks(self) -> Networks:
        return [ipaddress.ip_network(network) for network in self.allow_networks]


@dataclass(frozen=True)
class Answer:
    """What a server sent.

    Attributes:
        address: That was requested.
        date: When, in UTC.
        status: Status code.
        request: Head of the request.
        head: Head of the answer, as it was received.
        headers: Names in lower case.
        body: As it was received but for its division into chunks; empty if it was not read.
        reason: Why the body was not read; empty if it was.
        problem: The same in words.
    """

    address: Address
    date: datetime
    status: int
    request: bytes
    head: bytes
    headers: Mapping[str, str]
    body: bytes = b""
    reason: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of an address.

    Attributes:
        row: The row that asked for it.
        reason: ``fetched``, ``moved`` to another host, ``later`` as there was no time, or why there is no page.
        problem: The same in words.
        address: The last one that was requested, or was to be.
        redirects: Number of redirects so far.
        answer: The last answer.
    """

    row: Mapping[str, Any]
    reason: str
    problem: str
    address: str
    redirects: int
    answer: Answer | None = None


class _LeftOutError(Exception):
    """An address has no page."""

    def __init__(self, reason: str, problem: str, answer: Answer | None = None) -> None:
        super().__init__(problem)
        self.reason = reason
        self.answer = answer


@dataclass
class _Host:
    """The pause between two requests of a host, and what is known of it."""

    delay_s: float
    ready_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    paused_s: float = 0.0
    failures: int = 0
    gone: tuple[str, str] | None = None

    @contextlib.asynccontextmanager
    async def spaced(self) -> AsyncIterator[None]:
        """Hold the host for one request."""
        async with self.lock:
            await asyncio.sleep(max(self.ready_at - time.monotonic(), 0))
            try:
                yield
            finally:
                self.ready_at = time.monotonic() + self.delay_s

    def slow_down(self, delay_s: float) -> None:
        """Make the pause at least this long, also the one that has begun."""
        longer_s = max(delay_s - self.delay_s, 0.0)
        self.delay_s += longer_s
        self.ready_at += longer_s

    def note(self, reason: str) -> None:
        """Note how an address ended; after some failures in a row the host is given up."""
        self.failures = self.failures + 1 if reason in _BROKEN else 0
        if self.failures >= _MAX_FAILURES:
            self.gone = ("unreachable", f"{self.failures} addresses of the host failed before, one after another")


@dataclass
class _Attempt:
    """What the connections of one request are."""

    delay_s: float
    is_reused: bool = False
    is_connected: bool = False


class _CheckedResolver(AbstractResolver):
    """Resolves names to addresses all of which may be connected to."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        results = []
        for kind, _, proto, _, place in found:
            ip = str(check_ip(str(place[0]).partition("%")[0], self._networks))
            flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            results.append(ResolveResult(hostname=host, host=ip, port=port, family=kind, proto=proto, flags=flags))
        return results

    async def close(self) -> None:
        """Nothing is open."""


class _Crawler:
    """The requests of one shard.

    Args:
        rules: How to request.
        session: Makes connections to checked addresses.
    """

    def __init__(self, rules: FetchRules, session: aiohttp.ClientSession) -> None:
        self._rules = rules
        self._session = session
        self._networks = rules.networks
        # An earlier attempt may have asked any host until now.
        self._begun_at = time.monotonic() + rules.delay_s
        self._hosts: dict[str, _Host] = {}
        self._robots: dict[str, dict[str, asyncio.Task[Robots]]] = {}

    async def outcome(self, row: Mapping[str, Any]) -> Outcome:
        """Request the address of a row, and where it redirects within its host."""
        address = parse_address(row["url"])
        redirects, seen = row["redirects"], {str(address)}
        try:
            while True:
                answer = await self._page(address)
                if answer.status not in REDIRECTS:
                    return Outcome(row, "fetched", "", str(address), redirects, answer)
                target = parse_address(answer.headers.get("location"), address)
                redirects += 1
                if redirects > (most := self._rules.max_redirects) or str(target) in seen:
                    problem = f"it redirects in a loop, or more than {most} times"
                    raise _LeftOutError("redirects", problem, answer)
                if target.group != address.group:
                    return Outcome(row, "moved", "", str(target), redirects, answer)
                address = target
                seen.add(str(address))
        except AddressError as error:
            return Outcome(row, error.reason, single_line(error), str(address), redirects)
        except _LeftOutError as error:
            return Outcome(row, error.reason, single_line(error), str(address), redirects, error.answer)

    async def _page(self, address: Address) -> Answer:
        """Return the page at an address, or a redirect."""
        host = self._host(address)
        self._check(address)
        if host.gone is not None:
            raise _LeftOutError(*host.gone)
        robots = await self._robots_of(address)
        if not robots.allows(address.target):
            raise _LeftOutError("robots", "robots.txt disallows it")
        host.slow_down(robots.delay_s or 0.0)
        if host.delay_s > max(self._rules.max_delay_s, self._rules.delay_s):
            raise _LeftOutError("crawl_delay", f"robots.txt wants {host.delay_s:g} s between requests")
        try:
            answer = await self._ask(address, self._rules.max_page_bytes, self._rules.content_types)
        except _LeftOutError as error:
            host.note(error.reason)
            raise
        host.note("")
        if answer.status in REDIRECTS:
            return answer
        host.paused_s = 0.0
        if not 200 <= answer.status < 300:
            raise _LeftOutError("status", f"it answered {answer.status}", answer)
        if not answer.reason:
            answer = await asyncio.to_thread(_checked_body, answer, self._rules.max_page_bytes)
        if answer.reason:
            raise _LeftOutError(answer.reason, answer.problem, answer)
        return answer

    def _host(self, address: Address) -> _Host:
        if address.group not in self._hosts:
            self._hosts[address.group] = _Host(self._rules.delay_s, self._begun_at)
        return self._hosts[address.group]

    def _check(self, address: Address) -> None:
        check_port(address, self._rules.allow_ports)
        if literal_ip(address.host) is not None:  # other hosts are checked when their names are resolved
            check_ip(address.host, self._networks)

    async def _robots_of(self, address: Address) -> Robots:
        """Return the rules of an origin, which are requested once."""
        known = self._robots.setdefault(address.group, {})
        if address.origin not in known:
            known[address.origin] = asyncio.create_task(self._read_robots(address))
        return await known[address.origin]

    def forget(self, group: str) -> None:
        """Forget the rules of a host, which may be large."""
        self._robots.pop(group, None)

    async def _read_robots(self, page: Address) -> Robots:
        address = parse_address(f"{page.origin}/robots.txt")
        for is_last in (False, True):
            try:
                answer = await self._robots_answer(address)
                break
            except _LeftOutError as error:
                if is_last or error.reason not in _BROKEN:
                    raise _LeftOutError(error.reason, f"robots.txt cannot be read: {error}") from error
            except AddressError as error:  # of a redirect
                raise _LeftOutError("robots_unavailable", f"robots.txt redirects: {error}") from error
        if 400 <= answer.status < 500 or answer.status in REDIRECTS:
            return ALLOW_ALL
        if not 200 <= answer.status < 300:
            raise _LeftOutError("robots_unavailable", f"robots.txt answered {answer.status}")
        try:
            codings = {"content-encoding": answer.headers["content-encoding"]}
            content = decode_body(answer.body, codings, MAX_ROBOTS_BYTES, may_be_cut=True)
        except Exception as error:  # as for a page
            raise _LeftOutError("robots_unavailable", f"robots.txt: {error}") from error
        return await asyncio.to_thread(parse_robots, content, self._rules.product)

    async def _robots_answer(self, address: Address) -> Answer:
        """Return a ``robots.txt``, also of another host; after too many redirects it counts as missing."""
        for _ in range(_MAX_ROBOTS_REDIRECTS + 1):
            self._check(address)
            answer = await self._ask(address, MAX_ROBOTS_BYTES, (), may_be_cut=True)
            if answer.status not in REDIRECTS:
                return answer
            address = parse_address(answer.headers.get("location"), address)
        return answer

    async def _ask(
        self, address: Address, max_bytes: int, content_types: Sequence[str], may_be_cut: bool = False
    ) -> Answer:
        """Request an address; again after a pause if its host is busy."""
        host = self._host(address)
        for _ in range(_MAX_TRIES):
            async with host.spaced():
                answer = await self._request(address, max_bytes, content_types, may_be_cut)
            if answer.status not in _BUSY:
                return answer
            pause_s = _retry_after_s(answer.headers)
            host.paused_s += pause_s
            if host.paused_s > _MAX_PAUSE_S:
                break
            host.ready_at = max(host.ready_at, time.monotonic() + pause_s)
        host.gone = ("busy", f"the host answered {answer.status}, and wants a pause")
        raise _LeftOutError(*host.gone, answer)

    async def _request(
        self, address: Address, max_bytes: int, content_types: Sequence[str], may_be_cut: bool
    ) -> Answer:
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                url, attempt = URL(str(address), encoded=True), _Attempt(self._host(address).delay_s)
                async with self._session.get(url, allow_redirects=False, trace_request_ctx=attempt) as response:
                    return await _read(response, address, max_bytes, content_types, may_be_cut)
        except AddressError as error:
            raise _LeftOutError(error.reason, str(error)) from error
        except TimeoutError as error:
            raise _LeftOutError("timeout", f"it took more than {self._rules.timeout_s:g} s") from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise _LeftOutError("tls", single_line(error)) from error
        except aiohttp.ClientConnectorError as error:
            reason = "dns" if isinstance(error.os_error, socket.gaierror) else "connection"
            raise _LeftOutError(reason, single_line(error)) from error
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            raise _LeftOutError("malformed", single_line(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _LeftOutError("connection", single_line(error)) from error
        except Exception as error:  # of a parser: what a server sends ends no shard
            raise _LeftOutError("malformed", single_line(error)) from error


async def _read(
    response: aiohttp.ClientResponse,
    address: Address,
    max_bytes: int,
    content_types: Sequence[str],
    may_be_cut: bool,
) -> Answer:
    """Read the body of a page; of any other answer only the head."""
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        headers.setdefault(name.lower(), value)
    headers["content-encoding"] = ", ".join(response.headers.getall("Content-Encoding", []))
    answer = Answer(
        address, datetime.now(UTC), response.status, _request_head(response), _response_head(response), headers
    )
    if not 200 <= response.status < 300:
        return answer
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and content_types and kind not in content_types:
        return _without_body(answer, "content_type", f"it is {single_line(kind, 80)}")
    if headers.get("transfer-encoding", "chunked").strip().lower() not in ("chunked", "identity"):
        return _without_body(answer, "malformed", "it is packed for the transfer")
    too_large = f"it has more than {max_bytes:,} bytes"
    if not may_be_cut and (response.content_length or 0) > max_bytes:
        return _without_body(answer, "too_large", too_large)
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            if may_be_cut:
                break
            return _without_body(answer, "too_large", too_large)
    return Answer(**{**vars(answer), "body": bytes(body[:max_bytes])})


def _trace() -> aiohttp.TraceConfig:
    """Watch aiohttp, which repeats a request at once if its connection breaks.

    That is right if the connection was of an earlier request, since the server may have closed it meanwhile; the second
    try keeps its distance, too.
    """

    async def note_reuse(_: Any, context: Any, __: Any) -> None:
        context.trace_request_ctx.is_reused = True

    async def connect(_: Any, context: Any, __: Any) -> None:
        attempt = context.trace_request_ctx
        if attempt.is_reused:
            await asyncio.sleep(attempt.delay_s)
        elif attempt.is_connected:
            raise aiohttp.ServerDisconnectedError
        attempt.is_reused, attempt.is_connected = False, True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note_reuse)
    trace.on_connection_create_start.append(connect)
    return trace


def _without_body(answer: Answer, reason: str, problem: str) -> Answer:
    return Answer(**{**vars(answer), "body": b"", "reason": reason, "problem": problem})


def _checked_body(answer: Answer, max_bytes: int) -> Answer:
    """Decode the body, to see that its content is whole and within the bound; it stays as it was received."""
    try:
        decode_body(answer.body, {"content-encoding": answer.headers["content-encoding"]}, max_bytes)
    except Exception as error:  # also of a decoder that does not expect what a server sends
        reason = "too_large" if "more than" in str(error) else "malformed"
        return _without_body(answer, reason, single_line(error))
    return answer


def _request_head(response: aiohttp.ClientResponse) -> bytes:
    url = response.request_info.url
    lines = [f"GET {url.raw_path_qs} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in response.request_info.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def _response_head(response: aiohttp.ClientResponse) -> bytes:
    """Return the head as it was received; the body has no chunks any more, so that header gets another name."""
    version = response.version or aiohttp.HttpVersion11
    reason = (response.reason or "").encode("utf-8", "surrogateescape")
    lines = [b"HTTP/%d.%d %d %s" % (version.major, version.minor, response.status, reason)]
    for name, value in response.raw_headers:
        prefix = b"X-Crawl-" if name.lower() == b"transfer-encoding" else b""
        lines.append(prefix + name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the pause that a busy host wants, in seconds or until a date by its clock; a minute without one."""
    given = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(given):
        return float(given)
    try:
        until, now = parsedate_to_datetime(given), parsedate_to_datetime(headers.get("date", ""))
        return max((until - now).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 60.0


def fetch(rules: FetchRules, rows: Iterable[Mapping[str, Any]]) -> Iterator[Outcome]:
    """Yield the outcomes of rows in any order; rows of one host follow each other, and so do those of one address.

    The rows have ``group``, ``url`` and ``redirects``. Requests run in a thread of their own, which waits while the
    caller has not taken the outcomes.
    """
    hosts = deque(
        sorted((list(group) for _, group in itertools.groupby(rows, lambda row: row["group"])), key=len)[::-1]
    )
    done: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()
    work = _Work(rules, hosts, done)
    thread = threading.Thread(target=work.run, name="crawl", daemon=True)
    thread.start()
    try:
        while (item := done.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            work.release()
            yield item
    finally:
        work.stop()
        thread.join()


class _Work:
    """The thread of a shard.

    Args:
        rules: How to request.
        hosts: Rows of each host.
        done: Gets the outcomes, and None or an error at the end.
    """

    def __init__(self, rules: FetchRules, hosts: deque[list[Mapping[str, Any]]], done: SimpleQueue[Any]) -> None:
        self._rules = rules
        self._hosts = hosts
        self._done = done
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(rules.hosts_at_once)
        self._main: asyncio.Task[None] | None = None
        self._is_stopped = False

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._all())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._done.put(error)
        self._done.put(None)

    def release(self) -> None:
        """Note that an outcome was taken."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._room.release)

    def stop(self) -> None:
        """End all requests."""
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._main and self._main.cancel())

    async def _all(self) -> None:
        self._main = asyncio.current_task()
        # Names are resolved in threads: some that take long do not hold up the others.
        self._loop.set_default_executor(ThreadPoolExecutor(self._rules.hosts_at_once))
        if self._is_stopped:
            return
        connector = aiohttp.TCPConnector(resolver=_CheckedResolver(self._rules.networks), limit=0)
        headers = {"User-Agent": self._rules.user_agent, "Accept": "*/*", "Accept-Encoding": "gzip"}
        async with aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            trace_configs=[_trace()],
            timeout=aiohttp.ClientTimeout(total=None),
        ) as session:
            crawler = _Crawler(self._rules, session)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._rules.hosts_at_once, len(self._hosts))):
                    group.create_task(self._fetch_hosts(crawler))

    async def _fetch_hosts(self, crawler: _Crawler) -> None:
        ends_at, count = time.monotonic() + self._rules.seconds, 0
        while self._hosts:
            rows = self._hosts.popleft()
            for url, same in itertools.groupby(rows, lambda row: row["url"]):
                first, *others = same
                if count and time.monotonic() > ends_at:
                    outcome = Outcome(first, "later", "", url, first["redirects"])
                else:
                    outcome = await crawler.outcome(first)
                count += 1
                for row in (first, *others):
                    await self._room.acquire()
                    self._done.put(Outcome(**{**vars(outcome), "row": row}))
            crawler.forget(rows[0]["group"])


__all__ = ["Answer", "FetchRules", "Outcome", "fetch"]
