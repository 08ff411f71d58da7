"""Following one job from an event loop until it has ended: its status by polling, its log lines as they come.

Trouble with the connection says nothing about the job: it is waited out. Nothing here stops a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp

from tradewind.ray_jobs.cluster import RayCluster

logger = logging.getLogger(__name__)

FIRST_INTERVAL_S = 0.5
LONGEST_INTERVAL_S = 5.0
INTERVAL_GROWTH = 1.2
UNREACHABLE_NOTICE_S = 60.0
REOPEN_INTERVAL_S = 1.0
REQUEST_TIMEOUT_S = 30.0

_TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, as Ray tells it; status ``LOST`` when the cluster does not know the job."""

    status: str
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of the job."""
        return self.status in _TERMINAL or self.status == "LOST"


async def follow_job(cluster: RayCluster, job: str, on_line: Callable[[str], None]) -> JobEnd:
    """Wait until ``job`` has ended, giving each line of its log to ``on_line`` once and in order."""
    async with aiohttp.ClientSession(headers=cluster.headers) as session:
        api = _JobApi(cluster, job, session)
        log = _LogReader(api, on_line)
        tail = asyncio.create_task(log.tail())
        try:
            end = await _wait_for_end(api)
        finally:
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)
        await log.read_rest()
    return end


async def _wait_for_end(api: _JobApi) -> JobEnd:
    """Poll until the job has ended; the interval grows while nothing changes."""
    status, interval = "", FIRST_INTERVAL_S
    failing_since: float | None = None
    while True:
        try:
            found = await api.status()
        except (aiohttp.ClientError, TimeoutError) as error:
            now = time.monotonic()
            if failing_since is None or now - failing_since > UNREACHABLE_NOTICE_S:
                logger.warning("%s does not answer (%s); waiting for it.", api.cluster, type(error).__name__)
                failing_since = now
            await asyncio.sleep(LONGEST_INTERVAL_S)
            continue
        if found.has_ended:
            return found
        failing_since = None
        interval = FIRST_INTERVAL_S if found.status != status else min(interval * INTERVAL_GROWTH, LONGEST_INTERVAL_S)
        status = found.status
        await asyncio.sleep(interval)


class _JobApi:
    """The three things that we ask about a job."""

    def __init__(self, cluster: RayCluster, job: str, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self._session = session
        self._url = f"{cluster.address.rstrip('/')}/api/jobs/{job}"
        self._timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        ca = cluster.verify
        self._ssl = ssl.create_default_context(cafile=ca) if isinstance(ca, str) else ca

    async def status(self) -> JobEnd:
        async with self._session.get(self._url, ssl=self._ssl, timeout=self._timeout) as response:
            if response.status == 404:
                return JobEnd("LOST", f"{self.cluster} knows no such job")
            response.raise_for_status()
            details = await response.json()
        return JobEnd(details["status"], details.get("message") or "")

    async def log(self) -> str:
        """The whole log so far."""
        async with self._session.get(f"{self._url}/logs", ssl=self._ssl, timeout=self._timeout) as response:
            response.raise_for_status()
            return str((await response.json())["logs"])

    async def log_stream(self) -> AsyncIterator[str]:
        """Pieces of the log from its first byte on, as they come; may end although the job goes on."""
        async with self._session.ws_connect(f"{self._url}/logs/tail", ssl=self._ssl) as socket:
            async for message in socket:
                yield str(message.data)


class _LogReader:
    """Gives each line once: Ray's stream always starts at the first byte, so lines already given are passed over."""

    def __init__(self, api: _JobApi, on_line: Callable[[str], None]) -> None:
        self._api = api
        self._on_line = on_line
        self._given = 0

    async def tail(self) -> None:
        """Read the stream, and open it again whenever it ends, until cancelled."""
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                seen, rest = 0, ""
                async for piece in self._api.log_stream():
                    *lines, rest = (rest + piece).split("\n")
                    self._give(lines, seen)
                    seen += len(lines)
            await asyncio.sleep(REOPEN_INTERVAL_S)

    async def read_rest(self) -> None:
        """After the job's end: the lines that the stream did not bring, the last one included."""
        try:
            self._give((await self._api.log()).removesuffix("\n").split("\n"), seen=0)
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("The end of the job's log cannot be read (%s).", type(error).__name__)

    def _give(self, lines: list[str], seen: int) -> None:
        for line in lines[max(0, self._given - seen) :]:
            self._on_line(line)
        self._given = max(self._given, seen + len(lines))
