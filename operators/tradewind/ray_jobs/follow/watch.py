"""One poll for all who follow jobs of one cluster from one event loop.

A job whose log is being streamed is not polled: the stream's end is the hint that the job may have ended, and so is a
pause in its lines, now and then (``tail``); that job is looked at then, at once. Only now and then is it looked at all
the same (``looks.AGAIN_S``), for a stream that hangs; whether its node lives is looked at soon when the stream is
silent (``lost_nodes``).

For the others, the interval grows from 1 s to 15 s while nothing changes about any of them, and starts again with a
change, a new follower or a hint. A head that answers slowly is asked less often. A cluster that does not answer is
asked again with backoff and jitter, for as long as it takes: it says nothing about any job. How the cluster is asked is
chosen by what is least (``looks``).

The poll runs in a context of its own: what a follower logs must come from the follower's own task, because Airflow's
triggerer finds the log of a trigger by its context.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow.looks import AGAIN_S, FEW, JobLooks
from tradewind.ray_jobs.nodes import lost as lost_nodes
from tradewind.timeouts import within

SHORTEST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 15.0
INTERVAL_GROWTH = 1.25
REST_FACTOR = 10.0
"""Between two polls, the head has at least this many times the duration of the last one for other work."""
HURRIED_REST_FACTOR = 3.0
"""The same when somebody has just come, or has reason to think that a job has ended."""
COALESCE_S = 0.1
"""Followers that come within this time share a poll."""


@dataclass(frozen=True)
class Outage:
    """A time in which the cluster does not answer."""

    since: float
    error: str


class WatchedJob:
    """One job, as the last poll found it. For one consumer."""

    def __init__(self, watcher: ClusterWatcher, job: str) -> None:
        self.job = job
        self.api = watcher.api
        self.details: JobDetails | None = None
        """What the cluster says; None when it knows no such job, or was not heard yet."""
        self.heard_at: float | None = None
        """When the cluster last answered, by this process's monotonic clock; None: not yet."""
        self.is_doubtful = True
        """Whether it may have changed, so that it has to be looked at."""
        self.is_streamed = False
        self._line_at = float("-inf")
        self._watcher = watcher
        self._news = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def outage(self) -> Outage | None:
        """Set while the cluster does not answer."""
        return self._watcher.outage

    @property
    def is_unknown(self) -> bool:
        """Whether the cluster has said that it knows no such job."""
        return self.heard_at is not None and self.details is None

    async def news(self, timeout_s: float | None = None) -> None:
        """Wait for the next poll, answered or not, for at most ``timeout_s``; raises what ``fail`` was given."""
        await _set_within(self._news, timeout_s)
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    def hurry(self) -> None:
        """Something may have changed: look soon."""
        self.is_doubtful = True
        self._watcher.hurry()

    def look(self) -> None:
        """It may have ended: look soon at it alone, and at the others no more often than before."""
        self.is_doubtful = True
        self._watcher.look()

    @contextlib.contextmanager
    def streamed(self) -> Iterator[None]:
        """Meanwhile a stream of its log is open."""
        self.is_streamed = True
        self.has_line()
        try:
            yield
        finally:
            self.is_streamed = False
            self.is_doubtful = True

    def has_line(self) -> None:
        """The stream has brought something: its node lives."""
        self._line_at = time.monotonic()

    def has_proof_of_life(self, now: float) -> bool:
        """Whether its stream has brought something lately."""
        return self.is_streamed and now - self._line_at < lost_nodes.LOOK_S

    def fail(self, error: BaseException) -> None:
        """Nothing can be learned any more, because of ``error``."""
        self._failure = error
        self._news.set()

    def tell(self, details: JobDetails | None, now: float) -> bool:
        """The cluster has answered; whether anything has changed."""
        is_change = self.heard_at is None or details != self.details
        self.details, self.heard_at = details, now
        self._news.set()
        return is_change

    def wake(self) -> None:
        """The cluster was asked in vain."""
        self._news.set()


class ClusterWatcher:
    """The poll of one cluster. It goes on for as long as somebody follows."""

    def __init__(self, cluster: RayCluster) -> None:
        self.api = JobsApi(cluster)
        self.outage: Outage | None = None
        self.has_failed = False
        """Whether the poll has ended for good: who comes now needs another watcher."""
        self._watched: set[WatchedJob] = set()
        self._hurried = asyncio.Event()
        self._interval = SHORTEST_INTERVAL_S
        self._failed_polls = 0
        self._regular_ended_at = float("-inf")
        self._took_s = 0.0
        """How long the last regular poll took."""
        self._found: dict[str, JobDetails | None] = {}
        """What the cluster last said of each job, before anything was judged by its node."""
        self._looks = JobLooks(self.api)
        self._lost_nodes = lost_nodes.LostNodes(self.api)
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    def join(self, job: str) -> WatchedJob:
        """Follow one more job; its first news come with the next poll, which comes soon."""
        watched = WatchedJob(self, job)
        self._watched.add(watched)
        self.hurry()
        return watched

    def leave(self, watched: WatchedJob) -> bool:
        """Follow it no longer; whether that was the last one."""
        self._watched.discard(watched)
        if all(other.job != watched.job for other in self._watched):
            self._found.pop(watched.job, None)
            self._looks.forget(watched.job)
        return not self._watched

    def hurry(self) -> None:
        """Poll soon, and often again."""
        self._interval = SHORTEST_INTERVAL_S
        self._hurried.set()

    def look(self) -> None:
        """Poll those in doubt soon."""
        self._hurried.set()

    async def close(self) -> None:
        """End the poll."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.api.close()

    async def _run(self) -> None:
        try:
            while True:
                self._hurried.clear()
                started = time.monotonic()
                await self._poll(is_regular=started >= self._regular_at or self._many_doubtful())
                await self._rest(time.monotonic() - started)
        except Exception as error:  # a refused token, or a defect of ours: nobody may wait for ever because of it
            self.has_failed = True
            for watched in self._watched:
                watched.fail(error)

    async def _poll(self, *, is_regular: bool = True) -> None:
        """Look at the jobs that are in doubt, and with ``is_regular`` at all others that need to be looked at, too."""
        started = time.monotonic()
        asked = list(self._watched)  # who joins meanwhile may have submitted after the list was made
        doubtful = {watched.job for watched in asked if watched.is_doubtful or self.outage}
        for watched in asked:
            watched.is_doubtful = False  # before it is asked: what comes meanwhile is news
        due = doubtful | ({watched.job for watched in asked if self._is_due(watched, started)} if is_regular else set())
        try:
            found = await self._looks.look({job: self._found.get(job) for job in due}, doubtful) if due else {}
            known = {watched.job: found.get(watched.job, self._found.get(watched.job)) for watched in asked}
            proven = {watched.job for watched in asked if watched.has_proof_of_life(started)}
            answers = await self._lost_nodes.judged(known, proven)
        except RayUnreachableError as error:
            self._failed_polls += 1
            self.outage = Outage(self.outage.since if self.outage else time.monotonic(), str(error))
            self._lost_nodes.look_soon()
            for watched in asked:
                watched.is_doubtful = True
                watched.wake()
            return
        self._found = known
        now = time.monotonic()
        changes = [watched.tell(answers[watched.job], now) for watched in asked if self._is_news(watched, answers, due)]
        if any(changes) or self.outage is not None:
            self._interval = SHORTEST_INTERVAL_S
        elif is_regular:
            self._interval = min(self._interval * INTERVAL_GROWTH, LONGEST_INTERVAL_S)
        if is_regular:
            self._took_s, self._regular_ended_at = now - started, now
        self.outage, self._failed_polls = None, 0

    def _is_due(self, watched: WatchedJob, now: float) -> bool:
        """Whether a regular poll looks at it: not while a stream of its log would tell of its end."""
        found = self._found.get(watched.job)
        if found is not None and found.has_ended:
            return False
        return not watched.is_streamed or self._looks.looked_at(watched.job) + AGAIN_S <= now

    def _is_news(self, watched: WatchedJob, answers: Mapping[str, JobDetails | None], due: Collection[str]) -> bool:
        return watched.job in due or (watched.heard_at is not None and answers[watched.job] != watched.details)

    @property
    def _regular_at(self) -> float:
        """When the next poll of all is due, unless the head needs a longer rest."""
        return self._regular_ended_at + max(self._interval, REST_FACTOR * self._took_s)

    async def _rest(self, took_s: float) -> None:
        if self.outage:
            await asyncio.sleep(backoff_s(self._failed_polls))
            return
        await asyncio.sleep(COALESCE_S)
        least_until = time.monotonic() - COALESCE_S + HURRIED_REST_FACTOR * took_s
        while (left_s := self._regular_at - time.monotonic()) > 0:
            await _set_within(self._hurried, left_s)
            if not self._hurried.is_set():
                continue  # the regular poll is due
            await asyncio.sleep(max(0.0, least_until - time.monotonic()) if self._many_doubtful() else 0.0)
            return

    def _many_doubtful(self) -> bool:
        return len({watched.job for watched in self._watched if watched.is_doubtful}) > FEW


async def _set_within(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until ``event`` is set, for at most ``timeout_s``."""
    with suppress(TimeoutError):
        async with within(timeout_s):
            await event.wait()


def backoff_s(failures: int, jitter: Callable[[], float] = random.random) -> float:
    """How long to wait after so many failures in a row: 1 s, doubled each time up to 15 s, shortened at random."""
    longest = min(LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S * 2.0 ** min(failures - 1, 10))
    return longest * (0.5 + 0.5 * jitter())


_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RayCluster, ClusterWatcher]]
_watchers = weakref.WeakKeyDictionary()


@asynccontextmanager
async def watching(cluster: RayCluster, job: str) -> AsyncIterator[WatchedJob]:
    """``job`` as the watcher of ``cluster`` in this event loop sees it. The last to leave closes the watcher."""
    watchers = _watchers.setdefault(asyncio.get_running_loop(), {})
    watcher = watchers.get(cluster)
    if watcher is None or watcher.has_failed:
        watcher = watchers[cluster] = ClusterWatcher(cluster)
    watched = watcher.join(job)
    try:
        yield watched
    finally:
        if watcher.leave(watched):
            if watchers.get(cluster) is watcher:
                del watchers[cluster]  # before anything is awaited: who comes now gets a new one
            await watcher.close()
