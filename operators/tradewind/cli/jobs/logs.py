"""``tradewind jobs logs``: the whole log, or the last of the lines that a pattern leaves, and then what follows."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tradewind.cli.errors import CommandError
from tradewind.cli.interrupts import Interrupts
from tradewind.cli.jobs.clusters import called
from tradewind.cli.output import say, write_lines
from tradewind.plans.linear_regex import Regex
from tradewind.ray_jobs.cluster import RayCluster

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.details import JobDetails
    from tradewind.ray_jobs.logs.lines import JobLog

Give = Callable[[Sequence[str]], None]


class ChosenLines:
    """Hands on the lines that hold a pattern; at first all of them, or on ``show_last`` the last of them.

    Args:
        give: Takes the lines.
        grep: What they must hold; None: every line will do.
        tail: How many of the lines before ``show_last`` are shown; None: all, as they come.
    """

    def __init__(self, give: Give, grep: Regex | None, tail: int | None) -> None:
        self._give = give
        self._grep = grep
        self._held: deque[str] | None = None if tail is None else deque(maxlen=tail)

    def add(self, lines: Sequence[str]) -> None:
        """The next lines of the log."""
        left = [line for line in lines if self._grep is None or self._grep.search(line)]
        if self._held is None:
            self._give(left)
        else:
            self._held.extend(left)

    def show_last(self) -> None:
        """The log is read to its present end: from now on lines are handed on as they come."""
        if self._held is not None:
            self._give(list(self._held))
            self._held = None


def logs(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print the log of a job."""
    lines = ChosenLines(write_lines, arguments.grep, arguments.tail)
    return interrupts.run(_logs(arguments.job, cluster, lines, follow=arguments.follow))


async def _logs(job: str, cluster: RayCluster, lines: ChosenLines, *, follow: bool) -> int:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.follow import follow_job
    from tradewind.ray_jobs.logs.lines import JobLog

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
    """Read the log of a job into ``log``, as far as it goes at the moment.

    Raises:
        RayUnreachableError: It cannot be read.
    """
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.logs.stream import whole_log, whole_log_file

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
    """What to say of an id that the cluster does not know."""
    known = "'tradewind jobs list --all' shows those that it knows"
    return CommandError(f"{called(cluster)} knows no job {job!r}: {known}.")
