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
from typing import TYPE_CHECKING

from tradewind.ray_jobs import nodes as lost_nodes
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import TERMINAL, JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

# What a cluster says of many jobs, asked for at the least cost to the head, to the network and to us.
#
# ``GET /api/jobs/`` tells of every job that the head remembers, which may be thousands that ended long ago. So few jobs
# are asked for one by one. For more, one small question comes first: how many jobs there are, and how many of them have
# not started, or not ended. Jobs only ever go on, and a new one raises the first number: while both numbers stay, none
# of them has changed. (One that is submitted while another is deleted and a third changes could hide that, until the
# next look at each: ``REFRESH_S``.) When they do not stay, the jobs are asked for one by one, or with the whole list
# where that is less. A head that remembers so much that even counting takes it long is asked for each of few jobs, and
# seldom.

MAX_SINGLE_REQUESTS = 3
"""So many jobs are asked for one by one, whatever else there is."""
REQUEST_COST = 20
"""A look at one job costs as much as so many jobs in the list."""
REFRESH_S = 300.0
"""A job is asked for itself at least so often."""
SLOW_RESPONSE_S = 1.5
"""A head that takes longer to count remembers too much to be asked often, and is asked for single jobs instead."""
SLOW_POLL_S = 60.0
"""How often for each of them."""
_AT_ONCE = 8

Details = Mapping[str, JobDetails | None]
_Question = tuple[tuple[str, str], ...]
_NOT_STARTED: _Question = (("=", "PENDING"),)
_NOT_ENDED: _Question = tuple(("!=", status) for status in sorted(TERMINAL))


class JobStatusFetcher:
    """The looks of one follower at the jobs of one cluster: it remembers the numbers that were told."""

    def __init__(self, api: JobsApi) -> None:
        self._api = api
        self._told: dict[_Question, tuple[int, int] | None] = {}
        self._looked_at: dict[str, float] = {}
        self._all_jobs: int | None = None
        """How many jobs the head remembers, as far as it was told."""
        self._slow_until = float("-inf")

    async def look(
        self, known: Mapping[str, JobDetails | None], doubtful: Collection[str]
    ) -> dict[str, JobDetails | None]:
        """The jobs of ``known``, each with its last details, as they are now; None where there is no such job.

        Args:
            known: The jobs that are asked for, and what was last heard of each.
            doubtful: Those of them that may have changed, or were not heard of yet, whatever numbers say.

        Raises:
            RayUnreachableError: No answer.
            RayAuthenticationError: The token is refused.
        """
        now = time.monotonic()
        counts_slowly = now < self._slow_until and self._are_few(known)
        again_s = SLOW_POLL_S if counts_slowly else REFRESH_S
        changed = {job for job in known if job in doubtful or now - self.looked_at(job) >= again_s}
        told: dict[_Question, tuple[int, int] | None] = {}
        if len(known) <= MAX_SINGLE_REQUESTS:
            changed = set(known)
        elif not counts_slowly:
            for question, jobs in _by_question(known).items():
                if jobs - changed:
                    told[question] = await self._ask(question)
                    if told[question] is None or told[question] != self._told.get(question):
                        changed |= jobs
        found = await self._ask_for(changed)
        self._told |= told  # only now: what was not looked at would else seem to be unchanged next time
        self._looked_at |= dict.fromkeys(changed, now)
        return {**known, **found}

    def looked_at(self, job: str) -> float:
        """When the job was last asked for itself, by this process's monotonic clock."""
        return self._looked_at.get(job, float("-inf"))

    def forget(self, job: str) -> None:
        """Nobody follows the job any more."""
        self._looked_at.pop(job, None)

    async def _ask(self, question: _Question) -> tuple[int, int] | None:
        """How many jobs there are, and how many are as ``question`` says; None where that is not told."""
        params = [("limit", "0"), ("timeout", "20")]
        for predicate, status in question:
            params += [("filter_keys", "status"), ("filter_predicates", predicate), ("filter_values", status)]
        started = time.monotonic()
        try:
            answer = await self._api.get_json("/api/v0/jobs", params)
            if (now := time.monotonic()) - started > SLOW_RESPONSE_S:
                self._slow_until = now + REFRESH_S
            numbers = answer["data"]["result"]
            self._all_jobs = int(numbers["total"])
            return self._all_jobs, int(numbers["num_filtered"])
        except (RayUnreachableError, RayAuthenticationError, KeyError, TypeError):
            return None  # the looks that follow say whether the cluster answers at all

    async def _ask_for(self, jobs: Collection[str]) -> dict[str, JobDetails | None]:
        if len(jobs) <= MAX_SINGLE_REQUESTS or self._are_few(jobs):
            return await self._one_by_one(jobs)
        listed = {details.job: details for details in await self._api.jobs()}
        self._all_jobs = len(listed)
        found: dict[str, JobDetails | None] = {job: listed[job] for job in jobs if job in listed}
        return found | await self._one_by_one([job for job in jobs if job not in listed])

    def _are_few(self, jobs: Collection[str]) -> bool:
        """Whether looks at each of ``jobs`` cost less than the list of all."""
        return len(jobs) * REQUEST_COST <= (self._all_jobs or 0)

    async def _one_by_one(self, jobs: Collection[str]) -> dict[str, JobDetails | None]:
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def details_of(job: str) -> JobDetails | None:
            async with at_once:
                return await self._api.details(job)

        try:
            async with asyncio.TaskGroup() as group:  # with the first that fails, all others end
                looks = {job: group.create_task(details_of(job)) for job in jobs}
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return {job: look.result() for job, look in looks.items()}


def _by_question(known: Details) -> dict[_Question, set[str]]:
    """The jobs that have not ended, by the question whose answer changes when one of them changes."""
    found: dict[_Question, set[str]] = {}
    for job, details in known.items():
        is_pending = details is not None and details.status == "PENDING"
        found.setdefault(_NOT_STARTED if is_pending else _NOT_ENDED, set()).add(job)
    return found


MIN_INTERVAL_S = 1.0
MAX_INTERVAL_S = 15.0
INTERVAL_GROWTH = 1.25
REST_FACTOR = 10.0
"""Between two polls, the head has at least this many times the duration of the last one for other work."""
URGENT_REST_FACTOR = 3.0
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

    async def wait_for_update(self, timeout_s: float | None = None) -> None:
        """Wait for the next poll, answered or not, for at most ``timeout_s``; raises what ``fail`` was given."""
        await _set_within(self._news, timeout_s)
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    def poll_soon(self) -> None:
        """Something may have changed: look soon."""
        self.is_doubtful = True
        self._watcher.poll_soon()

    def look(self) -> None:
        """It may have ended: look soon at it alone, and at the others no more often than before."""
        self.is_doubtful = True
        self._watcher.look()

    @contextlib.contextmanager
    def streamed(self) -> Iterator[None]:
        """Meanwhile a stream of its log is open."""
        self.is_streamed = True
        self.record_line()
        try:
            yield
        finally:
            self.is_streamed = False
            self.is_doubtful = True

    def record_line(self) -> None:
        """The stream has brought something: its node lives."""
        self._line_at = time.monotonic()

    def has_recent_output(self, now: float) -> bool:
        """Whether its stream has brought something lately."""
        return self.is_streamed and now - self._line_at < lost_nodes.CHECK_INTERVAL_S

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
        self._interval = MIN_INTERVAL_S
        self._failed_polls = 0
        self._regular_ended_at = float("-inf")
        self._took_s = 0.0
        """How long the last regular poll took."""
        self._found: dict[str, JobDetails | None] = {}
        """What the cluster last said of each job, before anything was judged by its node."""
        self._looks = JobStatusFetcher(self.api)
        self._lost_nodes = lost_nodes.LostNodes(self.api)
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    def join(self, job: str) -> WatchedJob:
        """Follow one more job; its first news come with the next poll, which comes soon."""
        watched = WatchedJob(self, job)
        self._watched.add(watched)
        self.poll_soon()
        return watched

    def leave(self, watched: WatchedJob) -> bool:
        """Follow it no longer; whether that was the last one."""
        self._watched.discard(watched)
        if all(other.job != watched.job for other in self._watched):
            self._found.pop(watched.job, None)
            self._looks.forget(watched.job)
        return not self._watched

    def poll_soon(self) -> None:
        """Poll soon, and often again."""
        self._interval = MIN_INTERVAL_S
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
            proven = {watched.job for watched in asked if watched.has_recent_output(started)}
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
            self._interval = MIN_INTERVAL_S
        elif is_regular:
            self._interval = min(self._interval * INTERVAL_GROWTH, MAX_INTERVAL_S)
        if is_regular:
            self._took_s, self._regular_ended_at = now - started, now
        self.outage, self._failed_polls = None, 0

    def _is_due(self, watched: WatchedJob, now: float) -> bool:
        """Whether a regular poll looks at it: not while a stream of its log would tell of its end."""
        found = self._found.get(watched.job)
        if found is not None and found.has_ended:
            return False
        return not watched.is_streamed or self._looks.looked_at(watched.job) + REFRESH_S <= now

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
        least_until = time.monotonic() - COALESCE_S + URGENT_REST_FACTOR * took_s
        while (left_s := self._regular_at - time.monotonic()) > 0:
            await _set_within(self._hurried, left_s)
            if not self._hurried.is_set():
                continue  # the regular poll is due
            await asyncio.sleep(max(0.0, least_until - time.monotonic()) if self._many_doubtful() else 0.0)
            return

    def _many_doubtful(self) -> bool:
        return len({watched.job for watched in self._watched if watched.is_doubtful}) > MAX_SINGLE_REQUESTS


async def _set_within(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until ``event`` is set, for at most ``timeout_s``."""
    with suppress(TimeoutError):
        async with within(timeout_s):
            await event.wait()


def backoff_s(failures: int, jitter: Callable[[], float] = random.random) -> float:
    """How long to wait after so many failures in a row: 1 s, doubled each time up to 15 s, shortened at random."""
    longest = min(MAX_INTERVAL_S, MIN_INTERVAL_S * 2.0 ** min(failures - 1, 10))
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
