"""``tradewind jobs wait``: it ends when the job has, and its exit code is the job's fate."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.interrupts import Interrupts
from tradewind.cli.jobs.clusters import called
from tradewind.cli.jobs.logs import ChosenLines, read_so_far, unknown_job
from tradewind.cli.output import say, write_lines
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.follow.endings import Ending, EndingKind
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.details import JobDetails

OUT_OF_TIME = 2


def wait(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Wait for the end of a job, printing each of its states.

    Raises:
        UsageError: No job is named, or two are.
    """
    if bool(arguments.job) == bool(arguments.match):
        raise UsageError("say which job is meant: by its id or by --match, one of them.")
    return interrupts.run(_wait(arguments, cluster))


async def _wait(arguments: argparse.Namespace, cluster: RayCluster) -> int:
    from tradewind.ray_jobs.api import JobsApi

    async with JobsApi(cluster) as api:
        job = arguments.job or newest_match(await api.jobs(), arguments.match, cluster)
        if await api.details(job) is None:
            raise unknown_job(job, cluster)
        try:
            async with within(arguments.timeout):
                details = await _until_ended(api, job, arguments.poll)
        except TimeoutError:
            say(f"Job {job} has not ended within {arguments.timeout:g} s; it goes on.")
            return OUT_OF_TIME
        if details is not None and arguments.show_logs:
            await _show_log(api, details, arguments)
        ending = await _ending(api, job, details)
    say(ending.sentence)
    return 0 if ending.kind is EndingKind.SUCCEEDED else 1


def newest_match(jobs: list[JobDetails], text: str, cluster: RayCluster) -> str:
    """The id of the job submitted last of those whose id holds ``text``.

    Raises:
        CommandError: There is none.
    """
    found = [job for job in jobs if text in job.job]
    if not found:
        raise CommandError(f"{called(cluster)} knows no job with {text!r} in its id.")
    return max(found, key=lambda job: job.started_ms or 0).job


async def _until_ended(api: JobsApi, job: str, poll_s: float) -> JobDetails | None:
    """The job once it has ended, or None once it is unknown; a cluster that falls silent is waited for."""
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.nodes.lost import LostNodes

    status, is_silent, lost_nodes = None, False, LostNodes(api)
    while True:
        try:
            details = (await lost_nodes.judged({job: await api.details(job)}))[job]
        except RayUnreachableError as error:
            if not is_silent:
                say(f"{error} Going on with waiting.")
            is_silent = True
            lost_nodes.look_soon()
        else:
            is_silent = False
            if details is not None and details.status != status:
                status = details.status
                write_lines([f"{time.strftime('%Y-%m-%d %H:%M:%S')} {job} {status}"])
            if details is None or details.has_ended:
                return details
        await asyncio.sleep(poll_s)


async def _show_log(api: JobsApi, details: JobDetails, arguments: argparse.Namespace) -> None:
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.logs.lines import JobLog

    lines = ChosenLines(write_lines, arguments.grep, arguments.tail)
    log = JobLog(lines.add, max_bytes=None)
    try:
        await read_so_far(api, details, log)
    except RayUnreachableError as error:  # the job's fate is what was asked for
        say(f"Its log cannot be read: {error}")
    log.finish()
    lines.show_last()


async def _ending(api: JobsApi, job: str, details: JobDetails | None) -> Ending:
    from tradewind.ray_jobs.follow.endings import judge_ending
    from tradewind.ray_jobs.logs.end import read_log_end

    if details is None or details.status == "SUCCEEDED":
        return await judge_ending(api, job, details)
    end = await read_log_end(api, details, None, say, None)
    return await judge_ending(api, job, details, end.last_lines)
