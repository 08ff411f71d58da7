"""Gateway: an OpenAI-compatible address on this host for clients that know no token, no retries and no pauses.

It forwards requests to a pool or any other OpenAI-compatible server. While the server is lost (no connection, 429, 502,
503, 504) the client waits, and the gateway looks for the server's present address and sends the request again. It keeps
each answer (``answers``): a request that was answered is not sent again, also not by the next attempt. When no answer
has come for ``recovery_timeout_s``, it gives up.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from tradewind.datasets.http_reader import MAX_RETRY_AFTER_S, retry_after_s
from tradewind.serving.answer_form import flaw_of
from tradewind.serving.answers import Answers, RequestKey
from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import PoolError, ServedPool, ensure_pool, resolved
from tradewind.text import format_duration, single_line

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

_LOST: Final = frozenset({408, 425, 429, 502, 503, 504})
_BUSY: Final = frozenset({408, 425, 429, 503})
"""Statuses of a server that is there, and takes the request later."""
_OF_ONE: Final = frozenset({429, 502})
"""Statuses that a server may give for one request forever: it is too large for a limit, or breaks the connection."""
_REFUSED: Final = frozenset({401})
_MAX_REFUSALS: Final = 3
"""A pool that was started again knows a token only after a client has joined again."""
_MAX_SERVER_ERRORS: Final = 3
_MAX_STRIKES: Final = 5
"""How often the server may be lost over one request while it answers others."""
_FIRST_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 20.0
_SHUTDOWN_S: Final = 5.0
"""How long requests on their way may take at the end, whose answers are kept."""
_MAX_REQUEST_BYTES: Final = 256 << 20
_TOLD_AFTER_S: Final = 2.0
"""A pause that is shorter is not logged."""
_MAX_MESSAGE_CHARS: Final = 400
_JSON: Final = "application/json"
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds and tries: the connection to a machine that vanished ends after half a minute."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server is now: the base URL of its API, and a bearer token if it wants one."""

    base_url: str
    token: str | None = field(default=None, repr=False)


class Target(Protocol):
    """A server whose address may change."""

    def resolve(self) -> Endpoint:
        """Return its present address; the call may take long, or raise any exception if there is none now."""


@dataclass(frozen=True)
class FixedTarget:
    """A server at an address; ``api_key`` names the environment variable with its key."""

    address: str
    api_key: str | None = None

    def resolve(self) -> Endpoint:
        """Return the address with the key.

        Raises:
            ValueError: The variable is not set.
        """
        key = None if self.api_key is None else os.environ.get(self.api_key)
        if self.api_key is not None and not key:
            raise ValueError(
                f"The environment variable {self.api_key} with the key for {self.address} is not set: give "
                f"secrets={{{self.api_key!r}: 'projects/P/secrets/S'}}."
            )
        return Endpoint(self.address.rstrip("/"), key)


class PoolTarget:
    """A pool, started if there is none."""

    def __init__(self, config: ServingConfig) -> None:
        self._config = config
        self.pool: ServedPool | None = None

    def resolve(self) -> Endpoint:
        """Return the pool's present address.

        Raises:
            PoolError: It cannot be started.
        """
        try:
            pool = None if self.pool is None else self.pool.rejoin()
        except PoolError:  # it has ended
            pool = None
        if self.pool is None:  # from now on it is this export, whatever the training writes
            self._config, _ = resolved(self._config)
        self.pool = pool or ensure_pool(self._config)
        return Endpoint(self.pool.address.rstrip("/"), self.pool.token)

    def wait_ready(self) -> str:
        """Wait until an engine of the pool is ready; return the pool's name. One that ends meanwhile is started again.

        Raises:
            PoolError: Its engines do not start.
        """
        for is_last in (False, False, True):
            self.resolve()
            assert self.pool is not None
            try:
                return self.pool.wait_ready().name
            except PoolError:
                if is_last or not _has_ended(self.pool):
                    raise
        raise AssertionError


def _has_ended(pool: ServedPool) -> bool:
    """Whether its starter has ended it, or its time is over."""
    try:
        pool.status()
    except PoolError:
        return True
    return False


@dataclass(frozen=True)
class Traffic:
    """What went through a gateway.

    Attributes:
        requests: Requests of the client, with those that were answered by the cache.
        cached: Requests that an earlier answer served.
        answered: Requests that have an answer, also the cached.
        errors: Requests that the server refused.
        prompt_tokens, completion_tokens: As the server counts them; None if it does not.
        paused_s: Seconds in which requests waited for the server to come back.
    """

    requests: int = 0
    cached: int = 0
    answered: int = 0
    errors: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    paused_s: float = 0.0


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes
    content_type: str

    @cached_property
    def document(self) -> Any:
        """The body's JSON; None if it is none."""
        return _parsed(self.body)


class _GaveUpError(Exception):
    """The server did not come back, or refuses the key."""


class Gateway:
    """A gateway while its block runs, in a thread with a loop of its own.

    Args:
        target: The server.
        answers: Answers so far; None to keep none.
        log: Prints a line for the user.
        max_concurrent: Requests that the server gets at once.
        recovery_timeout_s: How long requests wait for the server.
    """

    def __init__(
        self,
        target: Target,
        answers: Answers | None = None,
        *,
        log: Callable[[str], None] = print,
        max_concurrent: int = 16,
        recovery_timeout_s: float = 1800.0,
    ) -> None:
        self._target = target
        self._answers = answers
        self._log = log
        self._max_concurrent = max_concurrent
        self._recovery_timeout_s = recovery_timeout_s
        self._traffic = Traffic()
        self._endpoint: Endpoint | None = None
        self._resolved = 0
        self._failures = self._refusals = self._answer_count = self._blamed = 0
        self._paused_at: float | None = None
        self._told_pause = self._told_store = False
        self._started: threading.Event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self.base_url = ""
        """For clients on this host."""
        self.given_up: str | None = None
        """Why it sends no more requests."""
        self.is_refused = False
        """Whether it gave up because the server refuses the key, which a retry does not mend."""

    def __enter__(self) -> Gateway:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def traffic(self) -> Traffic:
        """What went through so far."""
        return replace(self._traffic, paused_s=self._traffic.paused_s + self.pause_s)

    @property
    def pause_s(self) -> float:
        """For how long requests have been waiting for the server now; 0 if they do not."""
        paused_at = self._paused_at
        return 0.0 if paused_at is None else time.monotonic() - paused_at

    def rewind(self) -> None:
        """Count equal requests from the first again, since the client starts anew."""
        if self._answers is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._rewind(), self._loop).result()

    async def _rewind(self) -> None:
        if self._answers is not None:
            self._answers.rewind()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._slots = asyncio.Semaphore(self._max_concurrent)
        self._recovering = asyncio.Lock()
        connector = TCPConnector(limit=0, socket_factory=_kept_alive)
        timeout = ClientTimeout(
            total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=max(self._recovery_timeout_s, 60.0)
        )
        app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_route("*", "/v1/{path:.*}", self._handle)
        async with ClientSession(connector=connector, timeout=timeout) as self._session:
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S)
            await runner.setup()
            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            await web.SockSite(runner, listener).start()
            self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            self._started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        path, body = request.match_info["path"], await request.read()
        document = _parsed(body) if request.method == "POST" else None
        try:
            if isinstance(document, dict) and document.get("stream"):
                refusal = _error("The gateway keeps whole answers: ask without 'stream'.", "no_streams")
                return web.json_response(refusal, status=400)
            if isinstance(document, dict):
                answer = await self._answer(path, body, document)
            else:
                async with self._slots:
                    answer = await self._ask(request.method, path, body)
        except _GaveUpError as error:
            return web.json_response(_error(str(error), "gave_up"), status=503)
        return web.Response(body=answer.body, status=answer.status, headers={"Content-Type": answer.content_type})

    async def _answer(self, path: str, body: bytes, document: Any) -> _Answer:
        """Answer from the cache, or ask the server and keep what it answers."""
        key = None if self._answers is None else self._answers.key(path, document)
        self._count(requests=1)
        found = None if key is None or self._answers is None else self._answers.find(key)
        if found is not None:
            self._count(cached=1, answered=1)
            return _Answer(200, found, _JSON)
        async with self._slots:
            answer = await self._ask("POST", path, body)
        if answer.status == 200 and (flaw := flaw_of(path, document, answer.document)) is not None:
            answer = _refusal(f"The server's answer is not what was asked for: {flaw}.")
        self._keep(key, answer)
        return answer

    def _keep(self, key: RequestKey | None, answer: _Answer) -> None:
        document = answer.document
        if answer.status != 200 or not isinstance(document, dict) or document.get("error") is not None:
            self._count(errors=1)
            return
        usage = document.get("usage")
        self._count(answered=1)
        for name in ("prompt_tokens", "completion_tokens"):
            if isinstance(usage, dict) and type(usage.get(name)) is int:
                self._count(**{name: usage[name]})
        if key is not None and self._answers is not None:
            try:
                self._answers.add(key, answer.body)
            except OSError as error:  # a full disk
                if not self._told_store:
                    self._log(f"Answers cannot be kept, and a next attempt asks for them again: {single_line(error)}")
                self._told_store = True

    def _count(self, **more: int) -> None:
        now = {name: (getattr(self._traffic, name) or 0) + count for name, count in more.items()}
        self._traffic = replace(self._traffic, **now)

    async def _ask(self, method: str, path: str, body: bytes) -> _Answer:
        """Send a request until it is answered.

        Raises:
            _GaveUpError: The server did not come back.
        """
        server_errors = strikes = 0
        answers = self._answer_count
        while True:
            endpoint, resolved = await self._present()
            try:
                async with self._send(endpoint, method, path, body) as response:
                    answer = _Answer(response.status, await response.read(), response.content_type)
                    pause_s = retry_after_s(response.headers.get("Retry-After"))
            except Exception as error:  # any failure of a connection
                answer, pause_s = _Answer(502, json.dumps(_error(_why(error), "lost")).encode(), _JSON), None
            if (lost := _loss(answer)) is not None:
                strikes += answer.status == 504 or (answer.status not in _BUSY and self._answer_count > answers)
                answers = self._answer_count
                if strikes >= _MAX_STRIKES:
                    return answer
                if answer.status in _OF_ONE and await self._is_to_blame(endpoint):
                    return _refusal(lost)
                await self._recover(resolved, lost, pause_s, refused=answer.status in _REFUSED)
            elif answer.status == 500 and server_errors < _MAX_SERVER_ERRORS - 1:
                server_errors += 1
                await asyncio.sleep(_FIRST_PAUSE_S)
            else:
                self._note_answer()
                return answer

    def _send(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> Any:
        headers = {"Content-Type": _JSON} if body else {}
        if endpoint.token is not None:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        session: ClientSession = self._session
        return session.request(
            method, f"{endpoint.base_url}/{path}", data=body or None, headers=headers, allow_redirects=False
        )

    async def _is_to_blame(self, endpoint: Endpoint) -> bool:
        """Whether a request that is not answered in time is itself the reason: the server is there, and has answered
        since as many were blamed as it gets at once."""
        if self.pause_s <= self._recovery_timeout_s or self._blamed >= self._max_concurrent:
            return False
        self._blamed += 1
        try:
            async with self._send(endpoint, "GET", "models", b"") as response:
                return bool(response.status == 200)
        except Exception:  # any failure of a connection
            return False

    async def _present(self) -> tuple[Endpoint, int]:
        """Return the present address, and how often it was looked for."""
        if self.given_up is not None:
            raise _GaveUpError(self.given_up)
        while self._endpoint is None:
            await self._recover(self._resolved, "", None)
        return self._endpoint, self._resolved

    async def _recover(self, resolved: int, why: str, pause_s: float | None, *, refused: bool = False) -> None:
        """Wait, and look for the server; requests that are lost together wait together."""
        if why and self._paused_at is None:
            self._paused_at = time.monotonic()
        async with self._recovering:
            if self.given_up is not None:
                raise _GaveUpError(self.given_up)
            if self._resolved != resolved:
                return  # another request has found it meanwhile
            self._refusals += refused
            if why:
                self._tell_pause(why)
                self._check_patience(why)
                own = min(_FIRST_PAUSE_S * 2 ** min(self._failures, 10), _MAX_PAUSE_S)
                await asyncio.sleep(own if pause_s is None else min(pause_s, MAX_RETRY_AFTER_S))
                self._failures += 1
            try:
                self._endpoint = await asyncio.to_thread(self._target.resolve)
            except Exception as error:  # whatever a cluster that is gone raises
                self._endpoint = None
                if self._paused_at is None:
                    self._paused_at = time.monotonic()
                self._tell_pause(_why(error))
                self._check_patience(_why(error))
                await asyncio.sleep(_FIRST_PAUSE_S * 4)
            self._resolved += 1

    def _tell_pause(self, why: str) -> None:
        if not self._told_pause and self.pause_s > _TOLD_AFTER_S:
            self._told_pause = True
            self._log(f"The model's server does not answer ({why}): paused until it is back.")

    def _check_patience(self, why: str) -> None:
        """Give up after the timeout, or if the server refuses the key again and again.

        Raises:
            _GaveUpError: It gives up.
        """
        if self._refusals >= _MAX_REFUSALS:
            self.is_refused = True
            self._give_up(f"The model's server refuses the key: {why}.")
        if self.pause_s > self._recovery_timeout_s:
            self._give_up(f"The model's server has not answered for {format_duration(self.pause_s)}: {why}.")

    def _give_up(self, why: str) -> None:
        self.given_up = why
        self._log(why)
        raise _GaveUpError(why)

    def _note_answer(self) -> None:
        self._failures = self._refusals = self._blamed = 0
        self._answer_count += 1
        if self._paused_at is not None:
            paused_s = self.pause_s
            self._traffic = replace(self._traffic, paused_s=self._traffic.paused_s + paused_s)
            self._paused_at = None
            if self._told_pause:
                self._told_pause = False
                self._log(f"The model's server answers again, after {format_duration(paused_s)}.")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _loss(answer: _Answer) -> str | None:
    """Return why this is no answer of the model; None if it is one."""
    if answer.status in _LOST | _REFUSED:
        return f"HTTP {answer.status}: {error_message(answer.body)}"
    if answer.status == 200 and answer.document is None:
        return "HTTP 200 with a body that is no JSON"
    return None


def error_message(body: bytes) -> str:
    """Return the message of an error in OpenAI's form, or the begin of any other text."""
    document = _parsed(body)
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return single_line(message if isinstance(message, str) else body.decode(errors="replace"), _MAX_MESSAGE_CHARS)


def _why(error: BaseException) -> str:
    return single_line(f"{type(error).__name__}: {error}".rstrip(": "), 200)


def _refusal(message: str) -> _Answer:
    """Return an answer that costs a client this request alone."""
    return _Answer(422, json.dumps(_error(message, "refused")).encode(), _JSON)


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "code": code}}


def _kept_alive(address: Any) -> socket.socket:
    """Return a socket that notices a machine that vanished without a word."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
