"""``tradewind jobs list``, ``logs``, ``status``, ``stop`` and ``wait``.

``list`` prints a table for users, or JSON for programs. ``logs`` prints the whole log, or the last of the lines that
match a pattern, and then follows it. ``stop`` returns when the jobs have ended, not when Ray accepts the request.
``wait`` returns when the job has ended, with an exit code for its ending.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tradewind.cli.interrupts import Interrupts
from tradewind.cli.jobs.clusters import cluster_label, is_temporary_address
from tradewind.cli.output import CommandError, UsageError, json_lines, say, write_lines
from tradewind.plans.selection import Regex
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails, owner_of
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind
from tradewind.ray_jobs.job_query import JobQuery
from tradewind.text import format_columns, format_duration
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.log_lines import JobLog

_HEAD = ("JOB", "STATUS", "SUBMITTED", "FOR", "COMMAND")
_MAX_COMMAND_CHARS = 80
TIMEOUT_EXIT_CODE = 2


def list_jobs(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print the chosen jobs, newest first."""
    from tradewind.ray_jobs.client import RayJobs

    found = chosen(RayJobs(cluster).jobs(), everything=arguments.all, metadata=dict(arguments.metadata))
    write_lines(json_lines([asdict(job) for job in found]) if arguments.json else table(found, time.time()))
    return 0


def chosen(jobs: Sequence[JobDetails], *, everything: bool, metadata: dict[str, str]) -> list[JobDetails]:
    """Return jobs with all of these metadata, newest first; without ``everything`` only unfinished ones."""
    wanted = [job for job in jobs if everything or not job.has_ended]
    if metadata:
        return JobQuery(metadata=metadata).matching(wanted)
    return sorted(wanted, key=lambda job: job.started_ms or 0, reverse=True)


def table(jobs: Sequence[JobDetails], now: float) -> list[str]:
    """Format the jobs in columns with a header."""
    return format_columns([_HEAD, *(_row(job, now) for job in jobs)])


def _row(job: JobDetails, now: float) -> tuple[str, ...]:
    command = " ".join(job.entrypoint.split())
    if len(command) > _MAX_COMMAND_CHARS:
        command = f"{command[: _MAX_COMMAND_CHARS - 3]}..."
    if job.started_ms is None:
        return job.job, job.status, "-", "-", command
    started = job.started_ms / 1000
    ended = now if job.ended_ms is None else job.ended_ms / 1000
    submitted = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    return job.job, job.status, submitted, format_duration(max(0.0, ended - started)), command


class LineFilter:
    """Pass on the lines that match a pattern; with ``tail``, hold them back until ``show_last``.

    Args:
        emit: Takes the lines.
        grep: The pattern; None: every line.
        tail: Number of lines to show on ``show_last``; None: all, as they arrive.
    """

    def __init__(self, emit: Callable[[Sequence[str]], None], grep: Regex | None, tail: int | None) -> None:
        self._emit = emit
        self._grep = grep
        self._held: deque[str] | None = None if tail is None else deque(maxlen=tail)

    def add(self, lines: Sequence[str]) -> None:
        """Add the next lines of the log."""
        left = [line for line in lines if self._grep is None or self._grep.search(line)]
        if self._held is None:
            self._emit(left)
        else:
            self._held.extend(left)

    def show_last(self) -> None:
        """Show the last lines at the log's present end; later lines are passed on as they arrive."""
        if self._held is not None:
            self._emit(list(self._held))
            self._held = None


def logs(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print the log of a job."""
    lines = LineFilter(write_lines, arguments.grep, arguments.tail)
    return interrupts.run(_logs(arguments.job, cluster, lines, follow=arguments.follow))


async def _logs(job: str, cluster: RayCluster, lines: LineFilter, *, follow: bool) -> int:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.follow import follow_job
    from tradewind.ray_jobs.follow.log_lines import JobLog

    log = JobLog(lines.add, max_bytes=None)
    async with JobsApi(cluster) as api:
        details = await api.details(job)
        if details is None:
            raise unknown_job(job, cluster)
        await read_so_far(api, details, log)
    is_all = details.has_ended or not follow
    if is_all:
        log.finish()
    log.flush()
    lines.show_last()
    if is_all:
        return 0
    rest = JobLog(lines.add, start=log.position, max_bytes=None)
    end = await follow_job(cluster, job, log=rest, notice=say)
    return 0 if end.details is not None else 1


async def read_so_far(api: JobsApi, details: JobDetails, log: JobLog) -> None:
    """Read the log of a job into ``log``, up to its present end.

    Raises:
        RayUnreachableError: The log cannot be read.
    """
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.follow.log_reader import whole_log, whole_log_file

    sources = (whole_log, whole_log_file) if details.node_id else (whole_log,)
    for source in sources:
        log.begin()
        try:
            async for piece in source(api, details):
                log.read(piece)
            return
        except RayUnreachableError:
            if source is sources[-1]:
                raise


def unknown_job(job: str, cluster: RayCluster) -> CommandError:
    """Make the error for an id that the cluster does not know."""
    return CommandError(f"{cluster_label(cluster)} has no job {job!r}. 'tradewind jobs list --all' lists its jobs.")


def status(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print the state of one job.

    Raises:
        CommandError: The cluster knows no job of this id.
    """
    from tradewind.ray_jobs.client import RayJobs

    found = RayJobs(cluster).details(arguments.job)
    if found is None:
        raise unknown_job(arguments.job, cluster)
    link = None if is_temporary_address(arguments.named, cluster) else cluster.job_url(found.job)
    if arguments.json:
        fields = {**asdict(found), "owner": owner_of(found.metadata), "link": link}
        write_lines(json_lines(fields))
    else:
        write_lines(format_columns([*job_rows(found, link, time.time())]))
    return 0


def job_rows(job: JobDetails, link: str | None, now: float) -> Iterator[tuple[str, str]]:
    """Yield the properties of ``job`` at ``now``, a name and a text each."""
    yield "job", job.job
    yield "status", job.status if job.error_type is None else f"{job.status}, {job.error_type}"
    yield "whose", owner_of(job.metadata)
    if job.started_ms is not None:
        ended = now if job.ended_ms is None else job.ended_ms / 1000
        yield "submitted", f"{_clock(job.started_ms)}, {format_duration(max(0.0, ended - job.started_ms / 1000))}"
    if job.ended_ms is not None:
        yield "ended", _clock(job.ended_ms)
    if job.exit_code is not None:
        yield "exit code", str(job.exit_code)
    yield "command", job.entrypoint
    if message := job.message.strip():
        yield "message", message.splitlines()[0]
        yield from (("", line) for line in message.splitlines()[1:])
    if link is not None:
        yield "link", link


def _clock(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def stop(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Stop the named jobs, or those with the given metadata.

    Raises:
        UsageError: Neither is given, or both are.
    """
    if bool(arguments.jobs) == bool(arguments.metadata):
        raise UsageError("give either the ids of the jobs or --metadata.")
    return interrupts.run(_stop(list(dict.fromkeys(arguments.jobs)), dict(arguments.metadata), cluster))


async def _stop(ids: Sequence[str], metadata: Mapping[str, str], cluster: RayCluster) -> int:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    async with JobsApi(cluster) as api:
        unknown: list[str] = []
        if metadata:
            found = [job for job in JobQuery(metadata=metadata).matching(await api.jobs()) if not job.has_ended]
            known = [job.job for job in found]
            if not known:
                say("No job with these metadata is active.")
        else:
            details_of = {job: await api.details(job) for job in ids}  # during an outage the command ends here
            known = [job for job in ids if details_of[job] is not None]
            unknown = [job for job in ids if details_of[job] is None]
        ended = await asyncio.gather(*(stop_job(api, job, say) for job in known))
    states = [details.status if details else "no longer known" for details in ended]
    write_lines([f"{job}: {state}" for job, state in zip(known, states, strict=True)])
    for job in unknown:
        say(str(unknown_job(job, cluster)))
    return 1 if unknown or None in ended else 0


def wait(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Wait for the end of a job, and print each of its states.

    Raises:
        UsageError: No job is named, or two are.
    """
    if bool(arguments.job) == bool(arguments.match):
        raise UsageError("give either the id of the job or --match.")
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
            say(f"Job {job} has not ended within {arguments.timeout:g} s and continues.")
            return TIMEOUT_EXIT_CODE
        if details is not None and arguments.show_logs:
            await _show_log(api, details, arguments)
        ending = await _ending(api, job, details)
    say(ending.sentence)
    return 0 if ending.kind is EndingKind.SUCCEEDED else 1


def newest_match(jobs: list[JobDetails], text: str, cluster: RayCluster) -> str:
    """Return the id of the newest job whose id contains ``text``.

    Raises:
        CommandError: There is none.
    """
    found = [job for job in jobs if text in job.job]
    if not found:
        raise CommandError(f"{cluster_label(cluster)} has no job with {text!r} in its id.")
    return max(found, key=lambda job: job.started_ms or 0).job


async def _until_ended(api: JobsApi, job: str, poll_s: float) -> JobDetails | None:
    """Return the job once it has ended, or None once it is unknown; wait through outages."""
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.nodes import LostNodes

    status, is_outage, lost_nodes = None, False, LostNodes(api)
    while True:
        try:
            details = (await lost_nodes.judge({job: await api.details(job)}))[job]
        except RayUnreachableError as error:
            if not is_outage:
                say(f"{error} Still waiting.")
            is_outage = True
            lost_nodes.check_soon()
        else:
            is_outage = False
            if details is not None and details.status != status:
                status = details.status
                write_lines([f"{time.strftime('%Y-%m-%d %H:%M:%S')} {job} {status}"])
            if details is None or details.has_ended:
                return details
        await asyncio.sleep(poll_s)


async def _show_log(api: JobsApi, details: JobDetails, arguments: argparse.Namespace) -> None:
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.follow.log_lines import JobLog

    lines = LineFilter(write_lines, arguments.grep, arguments.tail)
    log = JobLog(lines.add, max_bytes=None)
    try:
        await read_so_far(api, details, log)
    except RayUnreachableError as error:  # the command's answer is the job's ending
        say(f"Cannot read the log of job {details.job}: {error}")
    log.finish()
    lines.show_last()


async def _ending(api: JobsApi, job: str, details: JobDetails | None) -> Ending:
    from tradewind.ray_jobs.follow.log_reader import read_log_end
    from tradewind.ray_jobs.follow.outcomes import judge_ending

    if details is None or details.status == "SUCCEEDED":
        return await judge_ending(api, job, details)
    end = await read_log_end(api, details, None, say, None)
    return await judge_ending(api, job, details, end.last_lines)
