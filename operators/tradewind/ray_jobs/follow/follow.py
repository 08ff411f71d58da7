"""Following one job from an event loop until it has ended: its status by a shared poll, its log lines as they come.

Trouble with the connection says nothing about the job: it is waited out. Nothing here stops a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.follow.waiting import Explain, Listener, wait_for_start
from tradewind.ray_jobs.follow.watch import watching
from tradewind.ray_jobs.logs.end import read_log_end
from tradewind.ray_jobs.logs.lines import JobLog
from tradewind.ray_jobs.logs.tail import tailing, touch


@dataclass(frozen=True)
class FollowEnd:
    """Why a job is followed no longer.

    Attributes:
        details: The job as the cluster last told of it; None when the cluster says that it knows no such job.
        last_lines: The last lines of its log, where it could be read.
        result: What followed the marker of the result in the log, if it came.
        queue_timed_out: It was pending still when the time for that was over. It was not stopped.
        infeasible: Why no node could ever serve it, if so. It was not stopped.
    """

    details: JobDetails | None
    last_lines: tuple[str, ...] = ()
    result: str | None = None
    queue_timed_out: bool = False
    infeasible: str = ""


async def follow_job(
    cluster: RayCluster,
    job: str,
    *,
    log: JobLog | None,
    notice: Callable[[str], None],
    result_marker: str | None = None,
    queue_timeout_s: float | None = None,
    explain_wait: Explain | None = None,
) -> FollowEnd:
    """Wait until ``job`` has ended, was found to be unknown, or has waited in vain to be started.

    Args:
        cluster: The cluster that it was submitted to.
        job: Its submission id.
        log: Takes its log lines; None: nobody reads them. Its position is that of the lines given, also when this is
            cancelled.
        notice: Takes sentences for the person who waits.
        result_marker: What the line of the log with the result starts with; that line is not given to ``log``.
        queue_timeout_s: For how long it may be pending.
        explain_wait: Says what a pending job waits for.

    Raises:
        RayAuthenticationError: The cluster refuses the token.
    """
    if log is not None:
        log.hide_lines_starting_with(result_marker)
    async with watching(cluster, job) as watched:
        listener = Listener(watched, notice)
        vain = await wait_for_start(listener, explain_wait, queue_timeout_s)
        if vain is not None:
            return FollowEnd(watched.details, queue_timed_out=vain.queue_timed_out, infeasible=vain.infeasible)
        details = await _until_ended(listener, log)
        if details is None:
            if log is not None:
                log.finish()
            return FollowEnd(None)
        end = await read_log_end(watched.api, details, log, notice, result_marker)
    return FollowEnd(details, end.last_lines, end.result)


async def _until_ended(listener: Listener, log: JobLog | None) -> JobDetails | None:
    """The job once it has ended, its log followed meanwhile; None when it is unknown."""
    if log is None or log.is_cut or _is_over(listener):
        return await _over(listener)
    async with tailing(listener.watched, log, listener.notice):
        return await _over(listener)


async def _over(listener: Listener) -> JobDetails | None:
    while not _is_over(listener):
        had_outage = listener.watched.outage is not None
        await listener.news()
        if had_outage and listener.watched.outage is None:
            await touch(listener.watched)
    return listener.watched.details


def _is_over(listener: Listener) -> bool:
    watched = listener.watched
    return watched.is_unknown or (watched.details is not None and watched.details.has_ended)
