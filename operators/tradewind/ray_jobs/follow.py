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
UNREACHABLE_NOTICE_S = 60.0
LAST_LINES_S = 10.0
REOPEN_INTERVAL_S = 1.0

_TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, as Ray tells it; status ``LOST`` when the cluster does not know the job."""

    status: str
    message: str = ""


async def follow_job(cluster: RayCluster, job: str, on_line: Callable[[str], None]) -> JobEnd:
    """Wait until ``job`` has ended, giving each line of its log to ``on_line``."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(headers=cluster.headers, timeout=timeout) as session:
        watch = _JobWatch(cluster, job, session)
        tail = asyncio.create_task(watch.tail(on_line))
        try:
            end = await watch.end()
            watch.ended.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(tail), LAST_LINES_S)
        finally:
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)
    return end


class _JobWatch:
    def __init__(self, cluster: RayCluster, job: str, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session
        self.url = f"{cluster.address.rstrip('/')}/api/jobs/{job}"
        self.ssl = ssl.create_default_context(cafile=cluster.verify) if isinstance(cluster.verify, str) else cluster.verify
        self.ended = asyncio.Event()

    async def end(self) -> JobEnd:
        """Poll until the job is terminal; the interval grows while nothing changes."""
        status, interval = "", FIRST_INTERVAL_S
        async for found in self._polls():
            if found.status in _TERMINAL or found.status == "LOST":
                return found
            interval = FIRST_INTERVAL_S if found.status != status else min(interval * 1.3, LONGEST_INTERVAL_S)
            status = found.status
            await asyncio.sleep(interval)
        raise AssertionError("polling goes on until the job has ended")

    async def _polls(self) -> AsyncIterator[JobEnd]:
        failing_since: float | None = None
        while True:
            try:
                async with self.session.get(self.url, ssl=self.ssl) as response:
                    if response.status == 404:
                        yield JobEnd("LOST", f"{self.cluster} knows no such job")
                        continue
                    response.raise_for_status()
                    details = await response.json()
            except (aiohttp.ClientError, TimeoutError) as error:
                now = time.monotonic()
                if failing_since is None or now - failing_since > UNREACHABLE_NOTICE_S:
                    logger.warning("%s does not answer (%s); waiting for it.", self.cluster, type(error).__name__)
                    failing_since = now
                await asyncio.sleep(LONGEST_INTERVAL_S)
                continue
            failing_since = None
            yield JobEnd(details["status"], details.get("message") or "")

    async def tail(self, on_line: Callable[[str], None]) -> None:
        """Give the log's lines to ``on_line``, each once and in order.

        Ray's stream always starts at the first byte, may end while the job runs, and may lose the last line: it is
        reopened until it has been read once more after the job's end, and lines that were given are passed over.
        """
        given = 0
        while True:
            is_last_pass = self.ended.is_set()
            number = 0
            with contextlib.suppress(aiohttp.ClientError):
                async for line in self._lines():
                    number += 1
                    if number > given:
                        on_line(line)
            given = max(given, number)
            if is_last_pass:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), REOPEN_INTERVAL_S)

    async def _lines(self) -> AsyncIterator[str]:
        rest = ""
        async with self.session.ws_connect(f"{self.url}/logs/tail", ssl=self.ssl) as socket:
            async for message in socket:
                *lines, rest = (rest + str(message.data)).split("\n")
                for line in lines:
                    yield line
        if rest:
            yield rest
