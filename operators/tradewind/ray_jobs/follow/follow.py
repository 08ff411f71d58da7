"""Follow one job from an event loop until it ends: status by a shared poll, log lines as they come.

Connection errors say nothing about the job and are waited out. Nothing here stops a job. A waiting job and an outage
are no failures, but can last for days, so users get occasional notices with the reasons.

A token refusal is waited out as well: the handler reloads the connection until the cluster accepts its token. A new
token never reaches both sides at once, and a proxy may refuse for a moment. So a refusal says nothing about any job,
and ends no follower. All followers that one cluster refuses share one reload and one request, with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import CACHE_TTL_S, PendingReason, explain_waiting_work
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayJobsError, RayUnreachableError, token_refused
from tradewind.ray_jobs.follow.log_lines import JobLog
from tradewind.ray_jobs.follow.log_reader import read_log_end, tailing, touch
from tradewind.ray_jobs.follow.poller import Outage, WatchedJob, backoff_s, watching
from tradewind.text import format_duration

OUTAGE_NOTICE_AFTER_S = 5.0
FIRST_EXPLANATION_S = 15.0
FIRST_NOTICE_S = 60.0
NOTICE_INTERVAL_S = 300.0
MAX_NOTICE_INTERVAL_S = 3600.0
CALM_S = 60.0
"""A refusal that follows the last one within this time continues it: the pauses keep growing."""
Explain = Callable[[JobsApi], Awaitable[PendingReason]]
ReloadConnection = Callable[[], Awaitable[RayCluster]]
"""Returns the cluster as its connection describes it now."""


class OutageNotifier:
    """Updates of one followed job, with notices when an outage begins and ends."""

    def __init__(self, watched: WatchedJob, notice: Callable[[str], None]) -> None:
        self.watched = watched
        self.notice = notice
        self._noticed_at: float | None = None

    async def wait_for_update(self, timeout_s: float | None = None) -> None:
        """Wait for the next poll, for at most ``timeout_s``."""
        await self.watched.wait_for_update(timeout_s)
        outage, now = self.watched.outage, time.monotonic()
        if outage:
            self._notice_outage(outage, now)
        elif self._noticed_at is not None:
            self._noticed_at = None
            self.notice(f"{self.watched.api.cluster} answers again.")

    def _notice_outage(self, outage: Outage, now: float) -> None:
        duration_s = now - outage.since
        if duration_s < OUTAGE_NOTICE_AFTER_S:
            return
        if self._noticed_at is None or now - self._noticed_at >= NOTICE_INTERVAL_S:
            self._noticed_at = now
            self.notice(
                f"{outage.error} No answer for {format_duration(duration_s)}. This says nothing about job "
                f"{self.watched.job}; still waiting for it."
            )


@dataclass(frozen=True)
class FollowResult:
    """Result of following a job.

    Attributes:
        details: The job's last known state; None if the cluster knows no such job.
        last_lines: The last lines of its log, if readable.
        result: Text after the result marker in the log, if any.
        queue_timed_out: Why it was still pending at the queue timeout, if so. It was not stopped.
        infeasible: Why no node could ever run it, if so. It was not stopped.
    """

    details: JobDetails | None
    last_lines: tuple[str, ...] = ()
    result: str | None = None
    queue_timed_out: PendingReason | None = None
    infeasible: str = ""


async def wait_for_start(
    listener: OutageNotifier, explain: Explain | None, queue_timeout_s: float | None
) -> FollowResult | None:
    """Wait until the job is no longer pending, or unknown; None then. A timeout or infeasible demand ends the wait."""
    watched, started = listener.watched, time.monotonic()
    explain_at, notice_at = started + FIRST_EXPLANATION_S, started + FIRST_NOTICE_S
    while watched.heard_at is None or (watched.details is not None and watched.details.status == "PENDING"):
        now = time.monotonic()
        left_s = None
        if watched.heard_at is not None and queue_timeout_s is not None:
            left_s = queue_timeout_s - waited_s(watched, started)
            if left_s + (now - watched.heard_at) <= 0:  # still pending at the timeout
                return FollowResult(watched.details, queue_timed_out=await _explain(explain, watched.api))
        if watched.heard_at is not None and now >= explain_at and not watched.outage:
            reason = await _explain(explain, watched.api)
            if reason.is_infeasible:
                return FollowResult(watched.details, infeasible=reason.text)
            if now >= notice_at:
                since = format_duration(waited_s(watched, started))
                listener.notice(f"Ray job {watched.job} has been waiting for {since}: {reason.text}")
                notice_at = now + NOTICE_INTERVAL_S
            explain_at = notice_at
        if left_s is not None and left_s <= 0:
            watched.poll_soon()
        next_s = explain_at - time.monotonic() if left_s is None else min(explain_at - time.monotonic(), left_s)
        await listener.wait_for_update(next_s if next_s > 0 else None)
    return None


def waited_s(watched: WatchedJob, since: float) -> float:
    """Return the time since the submission, by the cluster's clock if known; else since ``since``."""
    details, ahead_s = watched.details, watched.api.clock_ahead_s
    if details is None or details.started_ms is None or ahead_s is None:
        return time.monotonic() - since
    return max(0.0, time.time() + ahead_s - details.started_ms / 1000)


async def _explain(explain: Explain | None, api: JobsApi) -> PendingReason:
    if explain is not None:
        try:
            return await explain(api)
        except RayUnreachableError:
            pass  # asked again with the next notice
    return PendingReason("the cluster has not started it yet")


async def follow_job(
    cluster: RayCluster,
    job: str,
    *,
    log: JobLog | None,
    notice: Callable[[str], None],
    result_marker: str | None = None,
    queue_timeout_s: float | None = None,
    explain_wait: Explain | None = None,
) -> FollowResult:
    """Wait until ``job`` has ended, is unknown, or cannot start in time.

    Args:
        cluster: The cluster that it was submitted to.
        job: Its submission ID.
        log: Takes its log lines; None: the log is not read. Its position is that of the lines given, also after
            cancellation.
        notice: Takes sentences for the waiting user.
        result_marker: Prefix of the log line with the result; that line is not given to ``log``.
        queue_timeout_s: How long it may be pending.
        explain_wait: Explains why a job is pending.

    Raises:
        RayAuthenticationError: The cluster refuses the token.
    """
    if log is not None:
        log.hide_lines_starting_with(result_marker)
    async with watching(cluster, job) as watched:
        listener = OutageNotifier(watched, notice)
        if (unstarted := await wait_for_start(listener, explain_wait, queue_timeout_s)) is not None:
            return unstarted
        details = await _follow_to_end(listener, log)
        if details is None:
            if log is not None:
                log.finish()
            return FollowResult(None)
        end = await read_log_end(watched.api, details, log, notice, result_marker)
    return FollowResult(details, end.last_lines, end.result)


async def _follow_to_end(listener: OutageNotifier, log: JobLog | None) -> JobDetails | None:
    """Return the job once it has ended, following its log meanwhile; None if it is unknown."""
    if log is None or log.is_cut or _has_ended(listener):
        return await _wait_for_end(listener, log)
    async with tailing(listener.watched, log, listener.notice):
        return await _wait_for_end(listener, log)


async def _wait_for_end(listener: OutageNotifier, log: JobLog | None) -> JobDetails | None:
    stalls = StallNotifier(listener, log)
    while not _has_ended(listener):
        had_outage = listener.watched.outage is not None
        await listener.wait_for_update(await stalls.check())
        if had_outage and listener.watched.outage is None:
            await touch(listener.watched)
    return listener.watched.details


class StallNotifier:
    """Notices of a running job that prints nothing while its Ray tasks wait for room."""

    def __init__(self, listener: OutageNotifier, log: JobLog | None) -> None:
        self._listener = listener
        self._log = log
        self._began_at = time.monotonic()
        self._next_at = 0.0
        self._pause_s = NOTICE_INTERVAL_S

    async def check(self) -> float:
        """Give a notice if one is due; return the seconds until the next check."""
        now, watched = time.monotonic(), self._listener.watched
        quiet_since = self._began_at if self._log is None else self._log.taken_at
        if quiet_since + FIRST_NOTICE_S > now:
            self._pause_s = NOTICE_INTERVAL_S
        due_at = max(quiet_since + FIRST_NOTICE_S, self._next_at)
        if now < due_at:
            return due_at - now
        self._next_at = now + CACHE_TTL_S
        if watched.outage is None and watched.details is not None and watched.details.status == "RUNNING":
            with contextlib.suppress(RayUnreachableError, RayAuthenticationError):  # the poll reports both
                if reason := await explain_waiting_work(watched.api, watched.job):
                    self._listener.notice(f"Ray job {watched.job} runs, but {reason}")
                    self._next_at = now + self._pause_s
                    self._pause_s = min(2 * self._pause_s, MAX_NOTICE_INTERVAL_S)
        return self._next_at - now


def _has_ended(listener: OutageNotifier) -> bool:
    watched = listener.watched
    return watched.is_unknown or (watched.details is not None and watched.details.has_ended)


async def read_connection_first(job: str, reload: ReloadConnection, notice: Callable[[str], None]) -> RayCluster:
    """Return the cluster of ``job`` once its connection is readable: an earlier follower used it."""
    failures, noticed_at = 0, float("-inf")
    while True:
        try:
            return await reload()
        except RayJobsError as error:
            if time.monotonic() - noticed_at >= NOTICE_INTERVAL_S:
                noticed_at = time.monotonic()
                notice(f"{error} This says nothing about job {job}; retrying at intervals.")
        failures += 1
        await asyncio.sleep(backoff_s(failures))


class TokenRefusalHandler:
    """Token refusals that one follower of ``job`` meets: waited out, and reported if they are long."""

    def __init__(self, job: str, reload: ReloadConnection, notice: Callable[[str], None]) -> None:
        self._job = job
        self._reload = reload
        self._notice = notice
        self._in_a_row = 0
        self._accepted_at = float("-inf")

    async def wait(self, refused: RayCluster) -> RayCluster:
        """Return the cluster once it accepts the connection's token, or does not answer, which is no refusal."""
        self._in_a_row = self._in_a_row + 1 if time.monotonic() - self._accepted_at < CALM_S else 0
        if self._in_a_row:  # it refuses only some requests
            await asyncio.sleep(backoff_s(self._in_a_row))
        with _sharing_reload(refused, self._job, self._reload) as shared:
            accepted = await self._wait_with_notices(shared)
        self._accepted_at = time.monotonic()
        return accepted

    async def _wait_with_notices(self, shared: _ConnectionReload) -> RayCluster:
        has_noticed, pause_s = False, OUTAGE_NOTICE_AFTER_S
        while not (await asyncio.wait({shared.task}, timeout=pause_s))[0]:
            lasts = format_duration(time.monotonic() - shared.since)
            self._notice(
                f"{shared.why} The refusal has lasted for {lasts} and says nothing about job {self._job}; still "
                "waiting for it. The connection is reloaded at intervals."
            )
            has_noticed, pause_s = True, NOTICE_INTERVAL_S
        accepted = shared.task.result()
        if has_noticed:
            self._notice(f"{accepted} no longer refuses the token.")
        return accepted


class _ConnectionReload:
    """Shared connection reload of all followers that one cluster refuses at the moment."""

    def __init__(self, refused: RayCluster, job: str, reload: ReloadConnection) -> None:
        self.since = time.monotonic()
        self.why = token_refused(refused)
        self.waiting = 0
        self.task = asyncio.create_task(self._until_accepted(job, reload))

    async def _until_accepted(self, job: str, reload: ReloadConnection) -> RayCluster:
        failures = 0
        while True:
            try:
                cluster = await reload()
                if await _is_accepted(cluster, job):
                    return cluster
                self.why = token_refused(cluster)
            except Exception as error:  # any failure to read it: Airflow's API, a file, Secret Manager
                self.why = f"The connection cannot be read: {error}"
            failures += 1
            await asyncio.sleep(backoff_s(failures))


async def _is_accepted(cluster: RayCluster, job: str) -> bool:
    async with JobsApi(cluster) as api:
        try:
            await api.details(job)
        except RayAuthenticationError:
            return False
        except RayUnreachableError:  # the follower waits this outage out like any other
            return True
    return True


_reloads: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RayCluster, _ConnectionReload]]
_reloads = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _sharing_reload(refused: RayCluster, job: str, reload: ReloadConnection) -> Iterator[_ConnectionReload]:
    """Share one reload among all followers that ``refused`` refuses; it ends with its last waiter."""
    known = _reloads.setdefault(asyncio.get_running_loop(), {})
    shared = known.get(refused)
    if shared is None or shared.task.done():
        shared = known[refused] = _ConnectionReload(refused, job, reload)
    shared.waiting += 1
    try:
        yield shared
    finally:
        shared.waiting -= 1
        if not shared.waiting:
            shared.task.cancel()
            if known.get(refused) is shared:
                del known[refused]
