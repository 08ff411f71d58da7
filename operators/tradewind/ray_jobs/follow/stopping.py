"""Stop a job and wait until it has ended; Ray's response alone does not prove that.

Ray answers ``true`` to a stop without effect: a job that waits for resources or for its environment reads the message
only when it starts, and starts (ray#58353). So a small job on the head kills the supervisor of a job that stays pending
(``supervisor_killer``), one for all concurrent stops. Ray kills a running job that ignores SIGTERM after 3 s.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tradewind.ray_jobs.cluster import RayCluster, job_path
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.nodes import LostNodes
from tradewind.ray_jobs.worker_python import command_of_ray

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

KILLER_PREFIX = "tradewind-stop-"
"""Prefix of the small jobs' IDs."""
PENDING_TIMEOUT_S = 2.0
"""How long a job may stay pending after the stop request."""
_RETRY_S = 10.0
_POLL_S = 0.3
_GATHER_S = 0.2
_MAX_PAUSE_S = 30.0
_OUTAGE_NOTICE_S = 60.0
_MAX_JOBS = 500
_SOURCE = Path(__file__).with_name("supervisor_killer.py")


async def stop_job(api: JobsApi, job: str, notice: Callable[[str], None]) -> JobDetails | None:
    """Stop ``job`` and return it once it has ended; None if the cluster does not know it.

    A job that had not started never will. Outages are waited out, until cancellation.

    Raises:
        RayAuthenticationError: The cluster refuses the token.
    """
    stop = _Stop(api, job, notice)
    failures, noticed_at = 0, float("-inf")
    while True:
        try:
            details = await stop.advance()
        except RayUnreachableError as error:
            if time.monotonic() - noticed_at >= _OUTAGE_NOTICE_S:
                noticed_at = time.monotonic()
                notice(f"{error} Still stopping job {job}.")
            failures += 1
            await asyncio.sleep(min(2.0 ** min(failures, 10) / 2, _MAX_PAUSE_S) * random.uniform(0.5, 1.0))
            continue
        if details is None or details.has_ended:
            return details
        failures = 0
        await asyncio.sleep(_POLL_S)


class _Stop:
    """The stop of one job: last actions and their times."""

    def __init__(self, api: JobsApi, job: str, notice: Callable[[str], None]) -> None:
        self._api = api
        self._job = job
        self._notice = notice
        self._lost_nodes = LostNodes(api)
        self._stop_at = float("-inf")
        self._kill_at: float | None = None

    async def advance(self) -> JobDetails | None:
        """Fetch the job, act if due, and return the fetched details."""
        found = await self._lost_nodes.judge({self._job: await self._api.details(self._job)})
        details = found[self._job]
        if details is None or details.has_ended:
            return details
        now = time.monotonic()
        if now >= self._stop_at:
            async with self._api.request("POST", f"{job_path(self._job)}/stop"):
                pass  # Ray's response means little; the job's status decides
            self._stop_at = now + _RETRY_S
            self._kill_at = self._kill_at or now + PENDING_TIMEOUT_S
        elif details.status == "PENDING" and self._kill_at is not None and now >= self._kill_at:
            self._notice(f"Ray job {self._job} is still pending, which Ray's stop ignores: killing its supervisor.")
            killer = _killers.setdefault(asyncio.get_running_loop(), {}).setdefault(
                self._api.cluster, _SupervisorKiller()
            )
            if problem := await killer.kill(self._api, self._job):
                self._notice(f"Its supervisor was not killed, and the kill is retried: {problem}")
            self._kill_at = time.monotonic() + _RETRY_S
        return details


class _SupervisorKiller:
    """Kills the supervisors of pending jobs; concurrent requests share one run."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._lock = asyncio.Lock()

    async def kill(self, api: JobsApi, job: str) -> str | None:
        """Kill the supervisor of ``job``; return an error message, or None."""
        self._wanted.add(job)
        async with self._lock:
            await asyncio.sleep(_GATHER_S)
            if job not in self._wanted:  # it was part of another run
                return None
            jobs = sorted({job, *sorted(self._wanted)[:_MAX_JOBS]})
            self._wanted.difference_update(jobs)
            return await _run_killer(api, jobs)


_killers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RayCluster, _SupervisorKiller]] = WeakKeyDictionary()


async def _run_killer(api: JobsApi, jobs: list[str]) -> str | None:
    """Run the killer to its end. It stays in Ray's list: Ray lists a deleted one again, as failed."""
    killer = KILLER_PREFIX + secrets.token_hex(6)
    entrypoint = command_of_ray(["-c", _SOURCE.read_text(encoding="utf-8"), *jobs])
    async with api.request("POST", "/api/jobs/", json={"submission_id": killer, "entrypoint": entrypoint}):
        pass
    while (details := await api.details(killer)) is not None and not details.has_ended:
        await asyncio.sleep(_POLL_S)
    if details is None or details.status != "SUCCEEDED":
        return f"{killer} ended as {details.status}: {details.message[-500:]}" if details else f"{killer} is unknown"
    return None
