"""A cluster that refuses the token is waited for, and its connection read again until the cluster accepts what it says.

A token that is changed is never changed in both places at once, and a proxy that refuses for a moment proves nothing
either. So a refusal says nothing about any job, and ends nobody who follows one.

All whom one cluster refuses wait together: one reads the connection, and asks the cluster once, with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, RayJobsError, RayUnreachableError, token_refused
from tradewind.ray_jobs.follow.waiting import NOTICE_INTERVAL_S, OUTAGE_NOTICE_AFTER_S, duration
from tradewind.ray_jobs.follow.watch import backoff_s

ReadAgain = Callable[[], Awaitable[RayCluster]]
"""The cluster as its connection says now."""
CALM_S = 60.0
"""A refusal that comes sooner than this after the last one was over is its continuation: the pauses go on growing."""


async def first_reading(job: str, read_again: ReadAgain, notice: Callable[[str], None]) -> RayCluster:
    """The cluster of ``job``, as soon as its connection can be read: somebody followed it there before."""
    failures, noticed_at = 0, float("-inf")
    while True:
        try:
            return await read_again()
        except RayJobsError as error:
            if time.monotonic() - noticed_at >= NOTICE_INTERVAL_S:
                noticed_at = time.monotonic()
                notice(f"{error} That says nothing about job {job}; the connection is read again now and then.")
        failures += 1
        await asyncio.sleep(backoff_s(failures))


class Refusals:
    """The refusals that one follower of ``job`` meets: waited out, and told when they are long."""

    def __init__(self, job: str, read_again: ReadAgain, notice: Callable[[str], None]) -> None:
        self._job = job
        self._read_again = read_again
        self._notice = notice
        self._in_a_row = 0
        self._over_at = float("-inf")

    async def wait(self, refused: RayCluster) -> RayCluster:
        """The cluster once it accepts what the connection says; or does not answer, which is no refusal."""
        self._in_a_row = self._in_a_row + 1 if time.monotonic() - self._over_at < CALM_S else 0
        if self._in_a_row:  # it refuses only some requests
            await asyncio.sleep(backoff_s(self._in_a_row))
        with _waiting_together(refused, self._job, self._read_again) as together:
            accepted = await self._told(together)
        self._over_at = time.monotonic()
        return accepted

    async def _told(self, together: _Readmission) -> RayCluster:
        is_told, pause_s = False, OUTAGE_NOTICE_AFTER_S
        while not (await asyncio.wait({together.task}, timeout=pause_s))[0]:
            lasts = duration(time.monotonic() - together.since)
            self._notice(
                f"{together.why} It has been so for {lasts}; that says nothing about job {self._job}, which is "
                "waited for. The connection is read again now and then."
            )
            is_told, pause_s = True, NOTICE_INTERVAL_S
        accepted = together.task.result()
        if is_told:
            self._notice(f"{accepted} no longer refuses the token.")
        return accepted


class _Readmission:
    """The reading and asking for all whom one cluster refuses at the moment."""

    def __init__(self, refused: RayCluster, job: str, read_again: ReadAgain) -> None:
        self.since = time.monotonic()
        self.why = token_refused(refused)
        self.waiting = 0
        self.task = asyncio.create_task(self._until_accepted(job, read_again))

    async def _until_accepted(self, job: str, read_again: ReadAgain) -> RayCluster:
        failures = 0
        while True:
            try:
                cluster = await read_again()
                if await _is_accepted(cluster, job):
                    return cluster
                self.why = token_refused(cluster)
            except Exception as error:  # whatever keeps us from reading it: Airflow's API, a file, Secret Manager
                self.why = f"The connection cannot be read: {error}"
            failures += 1
            await asyncio.sleep(backoff_s(failures))


async def _is_accepted(cluster: RayCluster, job: str) -> bool:
    async with JobsApi(cluster) as api:
        try:
            await api.details(job)
        except RayAuthenticationError:
            return False
        except RayUnreachableError:  # whoever follows waits for it as for any silent cluster
            return True
    return True


_readmissions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RayCluster, _Readmission]]
_readmissions = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _waiting_together(refused: RayCluster, job: str, read_again: ReadAgain) -> Iterator[_Readmission]:
    """What all do together whom ``refused`` refuses; it ends when it is over, or nobody waits any more."""
    known = _readmissions.setdefault(asyncio.get_running_loop(), {})
    together = known.get(refused)
    if together is None or together.task.done():
        together = known[refused] = _Readmission(refused, job, read_again)
    together.waiting += 1
    try:
        yield together
    finally:
        together.waiting -= 1
        if not together.waiting:
            together.task.cancel()
            if known.get(refused) is together:
                del known[refused]
