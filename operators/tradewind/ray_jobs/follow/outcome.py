"""From a submitted job to its ending: follow it, then judge how it ended. It is stopped only when its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.ray_jobs.follow.endings import Ending, EndingKind, judge_ending
from tradewind.ray_jobs.nodes.demand import Demand, judge_wait
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.ray_jobs.follow.refusals import ReadAgain
    from tradewind.ray_jobs.logs.lines import JobLog


@dataclass(frozen=True)
class Watch:
    """What is watched for, besides the end of the job.

    Attributes:
        job: Its submission id.
        demand: What its entrypoint asks for, to say what it waits for.
        result_marker: What the line of its log begins with that holds its result, if it is to give one.
        queue_timeout_s: How long it may wait for its resources; without a limit if None.
        queued_since: Unix time by our clock since which it waits to be started; from now on if None.
        deadline: Unix time by our clock at which it is stopped; never if None.
    """

    job: str
    demand: Demand
    result_marker: str | None = None
    queue_timeout_s: float | None = None
    queued_since: float | None = None
    deadline: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"demand": self.demand.to_json()}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Watch:
        """What ``to_json`` wrote down."""
        return Watch(**{**fields, "demand": Demand.from_json(fields["demand"])})


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended, and the result that it printed, if it did."""

    ending: Ending
    result: str | None = None


async def await_outcome(
    cluster: RayCluster,
    watch: Watch,
    log: JobLog | None,
    notice: Callable[[str], None],
    read_again: ReadAgain | None = None,
) -> JobOutcome:
    """Follow the job of ``watch`` until it has ended, or its time is over; then it is stopped.

    Args:
        cluster: Where it was submitted.
        watch: The job and what is watched for.
        log: Takes its log lines.
        notice: Takes sentences for the person who waits.
        read_again: Gives the cluster as its connection says now. With it, a refused token is waited out: whatever
            was being done is begun again once the cluster accepts what the connection says.

    Raises:
        RayAuthenticationError: The cluster refuses the token, and nothing is there to read again.
    """
    if read_again is None:
        return await _outcome(cluster, watch, log, notice)
    from tradewind.ray_jobs.follow.refusals import Refusals

    refusals = Refusals(watch.job, read_again, notice)
    while True:
        try:
            return await _outcome(cluster, watch, log, notice)
        except RayAuthenticationError:
            cluster = await refusals.wait(cluster)


async def _outcome(cluster: RayCluster, watch: Watch, log: JobLog | None, notice: Callable[[str], None]) -> JobOutcome:
    from tradewind.ray_jobs.api import JobsApi

    left = None if watch.deadline is None else max(0.0, watch.deadline - time.time())
    async with JobsApi(cluster) as api:
        try:
            async with within(left) as limit:
                return await _follow(api, watch, log, notice)
        except TimeoutError:
            if not limit.expired():
                raise
        over = Ending(EndingKind.TIMED_OUT, f"Ray job {watch.job!r} ran longer than its timeout and was stopped.")
        return await _stopped(api, watch, over, notice)


async def _follow(api: JobsApi, watch: Watch, log: JobLog | None, notice: Callable[[str], None]) -> JobOutcome:
    from tradewind.ray_jobs.follow.follow import follow_job

    since = watch.queued_since or time.time()
    end = await follow_job(
        api.cluster,
        watch.job,
        log=log,
        notice=notice,
        result_marker=watch.result_marker,
        queue_timeout_s=watch.queue_timeout_s,
        explain_wait=lambda asked: judge_wait(asked, watch.demand, waited_s=time.time() - since),
    )
    if end.infeasible:
        ending = Ending(EndingKind.INFEASIBLE, f"Ray job {watch.job!r} can never run: {end.infeasible}")
        return await _stopped(api, watch, ending, notice)
    if end.queue_timed_out:
        ending = Ending(
            EndingKind.QUEUE_TIMED_OUT,
            f"Ray job {watch.job!r} was not started within {watch.queue_timeout_s:.0f} s, its queue timeout, and is "
            "taken out of the queue: give it more time, or the cluster more room.",
        )
        return await _stopped(api, watch, ending, notice)
    return JobOutcome(await judge_ending(api, watch.job, end.details, end.last_lines), end.result)


async def _stopped(api: JobsApi, watch: Watch, ending: Ending, notice: Callable[[str], None]) -> JobOutcome:
    """``ending``, once the job has really ended; if it was faster and succeeded, that counts."""
    from tradewind.ray_jobs.follow.stopping import stop_job

    notice(ending.sentence)
    details = await stop_job(api, watch.job, notice)
    return await _follow(api, watch, None, notice) if details and details.status == "SUCCEEDED" else JobOutcome(ending)
