"""What a follower says while there is nothing to follow: the job waits, or the cluster does not answer.

Neither is a failure. Both can last for days, so they are told now and then, and with their reasons.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow.watch import Outage, WatchedJob
from tradewind.ray_jobs.nodes.demand import WaitJudgement

OUTAGE_NOTICE_AFTER_S = 5.0
FIRST_EXPLANATION_S = 15.0
FIRST_NOTICE_S = 60.0
NOTICE_INTERVAL_S = 300.0

Explain = Callable[[JobsApi], Awaitable[WaitJudgement]]


class Listener:
    """A follower's ear: the news of its job, with a notice when the cluster falls silent and when it is back."""

    def __init__(self, watched: WatchedJob, notice: Callable[[str], None]) -> None:
        self.watched = watched
        self.notice = notice
        self._noticed_at: float | None = None

    async def news(self, timeout_s: float | None = None) -> None:
        """Wait for the next poll, for at most ``timeout_s``."""
        await self.watched.news(timeout_s)
        outage, now = self.watched.outage, time.monotonic()
        if outage:
            self._tell_of(outage, now)
        elif self._noticed_at is not None:
            self._noticed_at = None
            self.notice(f"{self.watched.api.cluster} answers again.")

    def _tell_of(self, outage: Outage, now: float) -> None:
        lasts_s = now - outage.since
        if lasts_s < OUTAGE_NOTICE_AFTER_S:
            return
        if self._noticed_at is None or now - self._noticed_at >= NOTICE_INTERVAL_S:
            self._noticed_at = now
            self.notice(
                f"{outage.error} It has been silent for {duration(lasts_s)}; that says nothing about job "
                f"{self.watched.job}, which is waited for."
            )


@dataclass(frozen=True)
class WaitedInVain:
    """The wait for a job's start is over, though it has not started."""

    queue_timed_out: bool = False
    infeasible: str = ""


async def wait_for_start(
    listener: Listener, explain: Explain | None, queue_timeout_s: float | None
) -> WaitedInVain | None:
    """Wait until the job is no longer pending, or unknown; None then."""
    watched, started = listener.watched, time.monotonic()
    explain_at, notice_at = started + FIRST_EXPLANATION_S, started + FIRST_NOTICE_S
    while watched.heard_at is None or (watched.details is not None and watched.details.status == "PENDING"):
        now = time.monotonic()
        left_s = None
        if watched.heard_at is not None and queue_timeout_s is not None:
            left_s = queue_timeout_s - waited_s(watched, started)
            if left_s + (now - watched.heard_at) <= 0:  # it was pending still when the time was over
                return WaitedInVain(queue_timed_out=True)
        if watched.heard_at is not None and now >= explain_at and not watched.outage:
            judgement = await _ask(explain, watched.api)
            if judgement.is_infeasible:
                return WaitedInVain(infeasible=judgement.text)
            if now >= notice_at:
                since = duration(waited_s(watched, started))
                listener.notice(f"Ray job {watched.job} has been waiting for {since}: {judgement.text}")
                notice_at = now + NOTICE_INTERVAL_S
            explain_at = notice_at
        if left_s is not None and left_s <= 0:
            watched.hurry()
        await listener.news(_until(explain_at, left_s))
    return None


def waited_s(watched: WatchedJob, since: float) -> float:
    """How long ago the job was submitted, by the cluster's own clock where it is known; else since ``since``."""
    details, ahead_s = watched.details, watched.api.clock_ahead_s
    if details is None or details.started_ms is None or ahead_s is None:
        return time.monotonic() - since
    return max(0.0, time.time() + ahead_s - details.started_ms / 1000)


def duration(seconds: float) -> str:
    """Such as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


async def _ask(explain: Explain | None, api: JobsApi) -> WaitJudgement:
    if explain is not None:
        try:
            return await explain(api)
        except RayUnreachableError:
            pass  # asked again with the next notice
    return WaitJudgement("the cluster has not started it yet.")


def _until(moment: float, left_s: float | None) -> float | None:
    """Seconds to ``moment``, or to the end of the queue timeout if that is sooner; None: until the next news."""
    seconds = [moment - time.monotonic()] + ([left_s] if left_s is not None else [])
    return min(seconds) if min(seconds) > 0 else None
