"""A cluster's HTTP API from an event loop. It asks and reports; what an answer means is decided elsewhere."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError, token_refused, unreachable

REQUEST_TIMEOUT_S = 30.0


class JobsApi:
    """One cluster's API over one session of connections; use it as an async context manager.

    Raises (every method):
        RayUnreachableError: No answer, or a server error. It says nothing about any job.
        RayAuthenticationError: The token is refused.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        ca = cluster.verify
        self._ssl = ssl.create_default_context(cafile=ca) if isinstance(ca, str) else ca
        self._session = aiohttp.ClientSession(headers=cluster.headers)

    async def __aenter__(self) -> JobsApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def details(self, job: str) -> JobDetails | None:
        """The job, or None when the cluster knows none of this id."""
        fields = await self.get_json(f"/api/jobs/{job}")
        return None if fields is None else JobDetails.from_json(fields)

    async def jobs(self) -> list[JobDetails]:
        """Every job that was submitted to the cluster, ended ones included."""
        found = await self.get_json("/api/jobs/") or []
        return [JobDetails.from_json(fields) for fields in found if fields.get("submission_id")]

    async def get_json(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON answer to a GET, or None for a 404."""
        async with self.request("GET", path, params=params) as response:
            return None if response.status == 404 else await response.json()

    @asynccontextmanager
    async def request(self, method: str, path: str, **kwargs: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; a 404 is the caller's to judge, every other refusal raises."""
        kwargs.setdefault("timeout", aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S))
        with self._reachable():
            async with self._session.request(method, self._url(path), ssl=self._ssl, **kwargs) as response:
                if response.status in (401, 403):
                    raise RayAuthenticationError(token_refused(self.cluster))
                if response.status != 404 and not response.ok:
                    raise RayUnreachableError(f"{self.cluster} answered {response.status} to {method} {path}.")
                yield response

    @asynccontextmanager
    async def websocket(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """An open websocket."""
        with self._reachable():
            async with self._session.ws_connect(self._url(path), ssl=self._ssl) as socket:
                yield socket

    def _url(self, path: str) -> str:
        return self.cluster.address.rstrip("/") + path

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RayUnreachableError(unreachable(self.cluster, error)) from error
