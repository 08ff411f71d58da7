"""Follow a Ray job in the worker, and log its end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.errors import BadTokenError, RayAuthenticationError, RayUnreachableError
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, FollowRequest, JobOutcome, await_outcome
from tradewind.triggers.ray_job import emit_lines, job_logger

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from tradewind.ray_jobs.cluster import RayCluster

MAX_PAUSE_S = 60.0
MAX_RETRY_PAUSE_S = 15.0
NOTICE_INTERVAL_S = 300.0
T = TypeVar("T")


def follow_in_worker(cluster: RayCluster, request: FollowRequest, log_bytes: int, full_log: str) -> JobOutcome:
    """Wait in the worker for the end of a job; its lines go to the task's log."""
    from tradewind.ray_jobs.follow.log_lines import JobLog

    log = JobLog(emit_lines, max_bytes=log_bytes, full_log=full_log) if log_bytes else None
    reload_connection = partial(RayHook.reload_cluster, cluster.name)  # a cluster's name is its connection's
    return asyncio.run(await_outcome(cluster, request, log, job_logger.info, reload_connection))


def retry_for(call: Callable[[], T], timeout_s: float, say: Callable[[str], None]) -> T:
    """Retry ``call()`` while the cluster does not answer, for a limited time, with growing random pauses.

    Raises:
        RayUnreachableError: It has not answered in time.
    """
    started, pause_s = time.monotonic(), 1.0
    while True:
        try:
            return call()
        except RayUnreachableError as error:
            if time.monotonic() - started + pause_s > timeout_s:
                raise
            say(f"{error} Retrying for {timeout_s:g} s at most.")
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, MAX_RETRY_PAUSE_S)


def retry_always(call: Callable[[], T], say: Callable[[str], None]) -> T:
    """Retry ``call()`` without limit while the cluster does not answer, or its token is refused or unavailable.

    Use it for a task that has a job on the cluster, or had one that was lost with the head. If the task ended, its job
    could be stopped, yet neither an outage nor a refusal says anything about the job. ``call`` reads the connection
    anew.
    """
    pause_s, logged_at, was_outage = 1.0, float("-inf"), None
    while True:
        try:
            return call()
        except (RayUnreachableError, RayAuthenticationError, BadTokenError) as error:
            is_outage = isinstance(error, RayUnreachableError)
            if is_outage is not was_outage or time.monotonic() - logged_at >= NOTICE_INTERVAL_S:
                logged_at, was_outage = time.monotonic(), is_outage
                until = "the cluster answers" if is_outage else "the token of the reloaded connection is accepted"
                say(f"{error} The job's state is unknown. Retrying until {until}.")
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, MAX_RETRY_PAUSE_S)


def stop_in_worker(cluster: RayCluster, job: str, say: Callable[[str], None]) -> None:
    """Stop a job and wait in the worker until it has ended."""
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    async def stop() -> None:
        async with JobsApi(cluster) as api:
            await stop_job(api, job, say)

    asyncio.run(stop())


def log_last_lines(log: Logger, ending: Ending) -> None:
    """Repeat the end of a failed job's log at the end of the task's log, where users look first."""
    if ending.last_lines and ending.kind is not EndingKind.STOPPED:
        log.error("Last %d lines of the job:\n%s", len(ending.last_lines), "\n".join(ending.last_lines))


def pause_before_attempt(losses: int) -> float:
    """Return seconds to wait before the next attempt: growing with each loss, and random across tasks."""
    return min(MAX_PAUSE_S, 2.0**losses) * random.uniform(0.5, 1.0)


def as_seconds(duration: timedelta | float | None) -> float | None:
    """Return a duration in any of Airflow's forms in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
