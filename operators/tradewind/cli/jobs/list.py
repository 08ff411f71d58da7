"""``tradewind jobs list``: a table for people, JSON for programs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict

from tradewind.cli.interrupts import Interrupts
from tradewind.cli.output import json_lines, write_lines
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.finding import JobQuery
from tradewind.ray_jobs.follow.waiting import duration
from tradewind.text_table import aligned

_HEAD = ("JOB", "STATUS", "SUBMITTED", "FOR", "COMMAND")
_LONGEST_COMMAND = 80


def list_jobs(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print the jobs that are asked for, the newest first."""
    from tradewind.ray_jobs.client import RayJobs

    found = chosen(RayJobs(cluster).jobs(), everything=arguments.all, metadata=dict(arguments.metadata))
    write_lines(json_lines([asdict(job) for job in found]) if arguments.json else table(found, time.time()))
    return 0


def chosen(jobs: Sequence[JobDetails], *, everything: bool, metadata: dict[str, str]) -> list[JobDetails]:
    """The jobs with all of these metadata, the newest first; without ``everything`` those that have not ended."""
    wanted = [job for job in jobs if everything or not job.has_ended]
    if metadata:
        return JobQuery(metadata=metadata).matching(wanted)
    return sorted(wanted, key=lambda job: job.started_ms or 0, reverse=True)


def table(jobs: Sequence[JobDetails], now: float) -> list[str]:
    """The jobs in columns under a head."""
    return aligned([_HEAD, *(_row(job, now) for job in jobs)])


def _row(job: JobDetails, now: float) -> tuple[str, ...]:
    command = " ".join(job.entrypoint.split())
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[: _LONGEST_COMMAND - 3]}..."
    if job.started_ms is None:
        return job.job, job.status, "-", "-", command
    started = job.started_ms / 1000
    ended = now if job.ended_ms is None else job.ended_ms / 1000
    submitted = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    return job.job, job.status, submitted, duration(max(0.0, ended - started)), command
