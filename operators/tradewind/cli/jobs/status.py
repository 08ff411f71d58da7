"""``tradewind jobs status``: one job, as its cluster describes it now."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict

from tradewind.cli.interrupts import Interrupts
from tradewind.cli.jobs.clusters import ends_with_us
from tradewind.cli.jobs.logs import unknown_job
from tradewind.cli.output import json_lines, write_lines
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.follow.waiting import duration
from tradewind.ray_jobs.keeping.owners import owner_of
from tradewind.text_table import aligned


def status(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print how one job is.

    Raises:
        CommandError: The cluster knows none of this id.
    """
    from tradewind.ray_jobs.client import RayJobs

    found = RayJobs(cluster).details(arguments.job)
    if found is None:
        raise unknown_job(arguments.job, cluster)
    link = None if ends_with_us(arguments.named, cluster) else cluster.job_url(found.job)
    if arguments.json:
        fields = {**asdict(found), "owner": owner_of(found.metadata), "link": link}
        write_lines(json_lines(fields))
    else:
        write_lines(aligned([*job_rows(found, link, time.time())]))
    return 0


def job_rows(job: JobDetails, link: str | None, now: float) -> Iterator[tuple[str, str]]:
    """What there is to say of ``job`` at ``now``, a name and a text each."""
    yield "job", job.job
    yield "status", job.status if job.error_type is None else f"{job.status}, {job.error_type}"
    yield "whose", owner_of(job.metadata)
    if job.started_ms is not None:
        ended = now if job.ended_ms is None else job.ended_ms / 1000
        yield "submitted", f"{_clock(job.started_ms)}, {duration(max(0.0, ended - job.started_ms / 1000))}"
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
