"""One poll for all followers of one cluster's jobs in one event loop.

The poll skips a job whose log is being streamed. The stream's end, or a pause in its lines (rate-limited), suggests
that the job has ended and triggers a refresh of that job (``log_reader``). For a stream that hangs, such a job is
refreshed every ``REFRESH_S`` as well. Its node is checked soon once the stream is silent (``LostNodes``).

For other jobs, the interval grows from 1 s to 15 s while nothing changes. A change, a new follower or a hint resets it.
A slow head is polled less often. In an outage, requests are retried with backoff and jitter without limit, since an
outage says nothing about any job.

The fetcher chooses the cheapest request. ``GET /api/jobs/`` returns every job that the head remembers, possibly
thousands that ended long ago. So few jobs are fetched one by one. For more, one small request comes first: the number
of jobs, and the number that have not started, or not ended. Jobs never return to an earlier state, and a new one raises
the first number: while both stay the same, no job has changed. (A submission, a deletion and a change at the same time
could hide a change until the next refresh: ``REFRESH_S``.) When a number changes, the jobs are fetched one by one, or
as the whole list if that is cheaper. If a head takes long even to count its jobs, few jobs are fetched one by one, and
rarely.

The poll runs in its own context: a follower's log lines must come from the follower's own task, because Airflow's
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

from tradewind.ray_jobs import nodes as lost_nodes
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import TERMINAL, JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError
from tradewind.timeouts import within

MAX_SINGLE_REQUESTS = 3
"""Up to this number, jobs are fetched one by one, whatever else there is."""
REQUEST_COST = 20
"""Cost of fetching one job, in jobs of the list."""
REFRESH_S = 300.0
"""Maximum interval between fetches of each job itself."""
SLOW_RESPONSE_S = 1.5
"""A head that takes longer to count its jobs is polled rarely, for single jobs only."""
SLOW_POLL_S = 60.0
"""Poll interval per job of such a head."""
_AT_ONCE = 8

Details = Mapping[str, JobDetails | None]
_Question = tuple[tuple[str, str], ...]
_NOT_STARTED: _Question = (("=", "PENDING"),)
_NOT_ENDED: _Question = tuple(("!=", status) for status in sorted(TERMINAL))


class JobStatusFetcher:
    """Fetches the jobs of one cluster for one poller; it remembers the reported numbers."""

    def __init__(self, api: JobsApi) -> None:
        self._api = api
        self._counts: dict[_Question, tuple[int, int] | None] = {}
        self._fetched_at: dict[str, float] = {}
        self._all_jobs: int | None = None
        """Reported number of jobs that the head remembers; None before the first report."""
        self._slow_until = float("-inf")

    async def fetch(
        self, known: Mapping[str, JobDetails | None], doubtful: Collection[str]
    ) -> dict[str, JobDetails | None]:
        """Return the jobs of ``known`` with their present details; None where there is no such job.

        Args:
            known: The requested jobs, each with its last details.
            doubtful: Those of them that may have changed, or have no details yet, whatever the numbers are.

        Raises:
            RayUnreachableError: No response.
            RayAuthenticationError: The cluster refuses the token.
        """
        now = time.monotonic()
        counts_slowly = now < self._slow_until and self._are_few(known)
        again_s = SLOW_POLL_S if counts_slowly else REFRESH_S
        changed = {job for job in known if job in doubtful or now - self.fetched_at(job) >= again_s}
        counts: dict[_Question, tuple[int, int] | None] = {}
        if len(known) <= MAX_SINGLE_REQUESTS:
            changed = set(known)
        elif not counts_slowly:
            for question, jobs in _by_question(known).items():
                if jobs - changed:
                    counts[question] = await self._count(question)
                    if counts[question] is None or counts[question] != self._counts.get(question):
                        changed |= jobs
        found = await self._fetch(changed)
        self._counts |= counts  # only now: after a failed fetch, jobs would seem unchanged next time
        self._fetched_at |= dict.fromkeys(changed, now)
        return {**known, **found}

    def fetched_at(self, job: str) -> float:
        """Return when the job itself was last fetched, by this process's monotonic clock."""
        return self._fetched_at.get(job, float("-inf"))

    def forget(self, job: str) -> None:
        """Drop a job that has no followers any more."""
        self._fetched_at.pop(job, None)

    async def _count(self, question: _Question) -> tuple[int, int] | None:
        """Return the number of jobs, and of those that match ``question``; None if not reported."""
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
            return None  # the fetches that follow show whether the cluster answers at all

    async def _fetch(self, jobs: Collection[str]) -> dict[str, JobDetails | None]:
        if len(jobs) <= MAX_SINGLE_REQUESTS or self._are_few(jobs):
            return await self._one_by_one(jobs)
        listed = {details.job: details for details in await self._api.jobs()}
        self._all_jobs = len(listed)
        found: dict[str, JobDetails | None] = {job: listed[job] for job in jobs if job in listed}
        return found | await self._one_by_one([job for job in jobs if job not in listed])

    def _are_few(self, jobs: Collection[str]) -> bool:
        """Return whether fetching each of ``jobs`` costs less than the list of all."""
        return len(jobs) * REQUEST_COST <= (self._all_jobs or 0)

    async def _one_by_one(self, jobs: Collection[str]) -> dict[str, JobDetails | None]:
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def details_of(job: str) -> JobDetails | None:
            async with at_once:
                return await self._api.details(job)

        try:
            async with asyncio.TaskGroup() as group:  # the first failure cancels all others
                fetches = {job: group.create_task(details_of(job)) for job in jobs}
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return {job: fetch.result() for job, fetch in fetches.items()}


def _by_question(known: Details) -> dict[_Question, set[str]]:
    """Group the jobs that have not ended by the question whose answer changes with them."""
    found: dict[_Question, set[str]] = {}
    for job, details in known.items():
        is_pending = details is not None and details.status == "PENDING"
        found.setdefault(_NOT_STARTED if is_pending else _NOT_ENDED, set()).add(job)
    return found


MIN_INTERVAL_S = 1.0
MAX_INTERVAL_S = 15.0
INTERVAL_GROWTH = 1.25
REST_FACTOR = 10.0
"""Minimum pause between two polls, as a multiple of the last one's duration, to spare the head."""
URGENT_REST_FACTOR = 3.0
"""The same after a new follower or a hint that a job has ended."""
COALESCE_S = 0.1
"""Followers that arrive within this time share a poll."""


@dataclass(frozen=True)
class Outage:
    """A time in which the cluster does not answer."""

    since: float
    error: str


class WatchedJob:
    """One job in the state of the last poll. For one consumer."""

    def __init__(self, watcher: ClusterWatcher, job: str) -> None:
        self.job = job
        self.api = watcher.api
        self.details: JobDetails | None = None
        """The job's details; None if the cluster knows no such job, or has not reported yet."""
        self.heard_at: float | None = None
        """Last response of the cluster, by this process's monotonic clock; None before the first."""
        self.is_doubtful = True
        """Whether it may have changed and needs a refresh."""
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
        """Whether the cluster has reported that it knows no such job."""
        return self.heard_at is not None and self.details is None

    async def wait_for_update(self, timeout_s: float | None = None) -> None:
        """Wait up to ``timeout_s`` for the next poll, successful or not; raise the error given to ``fail``."""
        await _set_within(self._news, timeout_s)
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    def poll_soon(self) -> None:
        """Request an early poll: something may have changed."""
        self.is_doubtful = True
        self._watcher.poll_soon()

    def refresh_soon(self) -> None:
        """Request an early refresh of this job alone, which may have ended."""
        self.is_doubtful = True
        self._watcher.refresh_soon()

    @contextlib.contextmanager
    def streamed(self) -> Iterator[None]:
        """Note that a stream of its log is open meanwhile."""
        self.is_streamed = True
        self.record_line()
        try:
            yield
        finally:
            self.is_streamed = False
            self.is_doubtful = True

    def record_line(self) -> None:
        """Note that the stream has brought data: its node is alive."""
        self._line_at = time.monotonic()

    def has_recent_output(self, now: float) -> bool:
        """Return whether its stream has brought data recently."""
        return self.is_streamed and now - self._line_at < lost_nodes.CHECK_INTERVAL_S

    def fail(self, error: BaseException) -> None:
        """Make ``wait_for_update`` raise ``error``: no more updates follow."""
        self._failure = error
        self._news.set()

    def update(self, details: JobDetails | None, now: float) -> bool:
        """Record the cluster's response; return whether anything has changed."""
        is_change = self.heard_at is None or details != self.details
        self.details, self.heard_at = details, now
        self._news.set()
        return is_change

    def wake(self) -> None:
        """Wake the consumer after a poll without response."""
        self._news.set()


class ClusterWatcher:
    """Poll of one cluster. It runs while it has followers."""

    def __init__(self, cluster: RayCluster) -> None:
        self.api = JobsApi(cluster)
        self.outage: Outage | None = None
        self.has_failed = False
        """Whether the poll has ended for good: new followers need another watcher."""
        self._watched: set[WatchedJob] = set()
        self._hurried = asyncio.Event()
        self._interval = MIN_INTERVAL_S
        self._failed_polls = 0
        self._regular_ended_at = float("-inf")
        self._took_s = 0.0
        """Duration of the last regular poll, in seconds."""
        self._responses: dict[str, JobDetails | None] = {}
        """Last response per job, before lost nodes are considered."""
        self._fetcher = JobStatusFetcher(self.api)
        self._lost_nodes = lost_nodes.LostNodes(self.api)
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    def join(self, job: str) -> WatchedJob:
        """Follow one more job; its first update comes with the next poll, which comes soon."""
        watched = WatchedJob(self, job)
        self._watched.add(watched)
        self.poll_soon()
        return watched

    def leave(self, watched: WatchedJob) -> bool:
        """Stop following it; return whether it was the last one."""
        self._watched.discard(watched)
        if all(other.job != watched.job for other in self._watched):
            self._responses.pop(watched.job, None)
            self._fetcher.forget(watched.job)
        return not self._watched

    def poll_soon(self) -> None:
        """Poll soon, and reset the interval."""
        self._interval = MIN_INTERVAL_S
        self._hurried.set()

    def refresh_soon(self) -> None:
        """Refresh the doubtful jobs soon."""
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
        except Exception as error:  # a token refusal or an internal error: no follower may wait for ever
            self.has_failed = True
            for watched in self._watched:
                watched.fail(error)

    async def _poll(self, *, is_regular: bool = True) -> None:
        """Refresh the doubtful jobs, and with ``is_regular`` all others that are due."""
        started = time.monotonic()
        followed = list(self._watched)  # later followers may have submitted after the list was made
        doubtful = {watched.job for watched in followed if watched.is_doubtful or self.outage}
        for watched in followed:
            watched.is_doubtful = False  # before the request: later changes are news
        due = doubtful | (
            {watched.job for watched in followed if self._is_due(watched, started)} if is_regular else set()
        )
        try:
            found = await self._fetcher.fetch({job: self._responses.get(job) for job in due}, doubtful) if due else {}
            known = {watched.job: found.get(watched.job, self._responses.get(watched.job)) for watched in followed}
            proven = {watched.job for watched in followed if watched.has_recent_output(started)}
            answers = await self._lost_nodes.judge(known, proven)
        except RayUnreachableError as error:
            self._failed_polls += 1
            self.outage = Outage(self.outage.since if self.outage else time.monotonic(), str(error))
            self._lost_nodes.check_soon()
            for watched in followed:
                watched.is_doubtful = True
                watched.wake()
            return
        self._responses = known
        now = time.monotonic()
        changes = []
        for watched in followed:
            answer = answers[watched.job]
            if watched.job in due or (watched.heard_at is not None and answer != watched.details):
                changes.append(watched.update(answer, now))
        if any(changes) or self.outage is not None:
            self._interval = MIN_INTERVAL_S
        elif is_regular:
            self._interval = min(self._interval * INTERVAL_GROWTH, MAX_INTERVAL_S)
        if is_regular:
            self._took_s, self._regular_ended_at = now - started, now
        self.outage, self._failed_polls = None, 0

    def _is_due(self, watched: WatchedJob, now: float) -> bool:
        """Return whether a regular poll includes it: not while a stream of its log would report its end."""
        found = self._responses.get(watched.job)
        if found is not None and found.has_ended:
            return False
        return not watched.is_streamed or self._fetcher.fetched_at(watched.job) + REFRESH_S <= now

    @property
    def _regular_at(self) -> float:
        """Return the time of the next regular poll, unless the head needs a longer pause."""
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
    """Return the backoff after so many failures in a row: 1 s, doubled up to 15 s, shortened at random."""
    longest = min(MAX_INTERVAL_S, MIN_INTERVAL_S * 2.0 ** min(failures - 1, 10))
    return longest * (0.5 + 0.5 * jitter())


_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RayCluster, ClusterWatcher]]
_watchers = weakref.WeakKeyDictionary()


@asynccontextmanager
async def watching(cluster: RayCluster, job: str) -> AsyncIterator[WatchedJob]:
    """Yield ``job`` as watched in this event loop. The last follower to leave closes the watcher."""
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
                del watchers[cluster]  # before the await: new followers get a new watcher
            await watcher.close()
