"""Asynchronous client of a cluster's HTTP API. It reports responses; callers interpret them."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from tradewind.ray_jobs.cluster import RayCluster, job_path
from tradewind.ray_jobs.details import JobDetails, submitted_jobs
from tradewind.ray_jobs.errors import (
    RayAuthenticationError,
    RayUnreachableError,
    check_redirect,
    token_refused,
    unreachable,
)

REQUEST_TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 128 << 20
"""Of JSON. Logs are read in pieces, whatever their size."""
_PIECE_BYTES = 64 * 1024
_CLOSING_TIMEOUT_S = 0.2
"""Ray never answers a closing websocket message."""
Query = Mapping[str, str] | Sequence[tuple[str, str]]
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class JobsApi:
    """API of one cluster over one session of connections; an async context manager.

    Raises (every method):
        RayUnreachableError: No response, or a server error. It says nothing about any job.
        RayAuthenticationError: The cluster refuses the token.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        self.requests_sent = 0
        """Number of requests that this session has sent, opened websockets included."""
        self.clock_ahead_s: float | None = None
        """Seconds by which the cluster's clock is ahead of the local one; None before the first response."""
        ca = cluster.verify
        self._ssl = ssl.create_default_context(cafile=ca) if isinstance(ca, str) else ca
        connector = aiohttp.TCPConnector(limit=0)  # each followed log holds a connection
        self._session = aiohttp.ClientSession(headers=cluster.headers, connector=connector)

    async def __aenter__(self) -> JobsApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def details(self, job: str) -> JobDetails | None:
        """Return the job, or None if the cluster knows no job with this ID."""
        fields = await self.get_json(job_path(job))
        return None if fields is None else JobDetails.from_json(fields, self.cluster)

    async def jobs(self) -> list[JobDetails]:
        """Return every job that was submitted to the cluster, ended ones included."""
        return submitted_jobs(await self.get_json("/api/jobs/"), self.cluster)

    async def get_json(self, path: str, params: Query | None = None) -> Any:
        """Return the JSON response to a GET, or None for a 404."""
        async with self.request("GET", path, params=params) as response:
            if response.status == 404:
                return None
            body = bytearray()
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                body += piece
                if len(body) > MAX_RESPONSE_BYTES:
                    raise RayUnreachableError(
                        f"{self.cluster} answered more than {MAX_RESPONSE_BYTES >> 20} MiB to GET {path}, which Ray "
                        "never does: correct its address."
                    )
            try:
                return json.loads(body) if body.strip() else None
            except (ValueError, RecursionError):
                raise RayUnreachableError(f"{self.cluster} answered no JSON to GET {path}.") from None

    @asynccontextmanager
    async def request(self, method: str, path: str, **kwargs: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request. The caller interprets a 404; every other refusal raises."""
        kwargs.setdefault("timeout", aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S))
        kwargs["allow_redirects"] = False
        self.requests_sent += 1
        with self._reachable():
            async with self._session.request(method, self._url(path), ssl=self._ssl, **kwargs) as response:
                self._note_clock(response)
                if response.status in (401, 403):
                    raise RayAuthenticationError(token_refused(self.cluster))
                check_redirect(self.cluster, response.status, response.headers)
                if response.status != 404 and not response.ok:
                    raise RayUnreachableError(f"{self.cluster} answered {response.status} to {method} {path}.")
                yield response

    @asynccontextmanager
    async def websocket(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a websocket. A peer that has vanished is noticed after about a minute and closes it."""
        timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSING_TIMEOUT_S)
        self.requests_sent += 1
        with self._reachable():
            opened = await self._session.ws_connect(self._url(path), ssl=self._ssl, timeout=timeout)
        try:  # errors of the body pass through: a websocket reports its own errors as messages
            _keep_alive(opened.get_extra_info("socket"))
            yield opened
        finally:
            await opened.close()

    def _url(self, path: str) -> str:
        return self.cluster.address.rstrip("/") + path

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                raise RayAuthenticationError(token_refused(self.cluster)) from error
            raise RayUnreachableError(f"{self.cluster} answered {error.status} to a request for a stream.") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RayUnreachableError(unreachable(self.cluster, error)) from error

    def _note_clock(self, response: aiohttp.ClientResponse) -> None:
        if date := response.headers.get("Date"):
            try:
                self.clock_ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
            except ValueError:
                return


def _keep_alive(connection: Any) -> None:
    """Enable TCP keepalive: Ray's head reads nothing from the websocket, so it answers no pings."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
