"""Before what runs is ended, whose it is is said, and somebody agrees."""

from __future__ import annotations

import argparse
import sys

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.output import as_line, say, write_lines
from tradewind.fleet.access.reached import reached_anyhow
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.inventory import Inventory
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.keeping.owners import owner_of
from tradewind.text_table import aligned


def tell_of_jobs(cluster: FleetCluster, found: Inventory) -> None:
    """Say whose jobs run there, or that nobody could be asked."""
    from tradewind.ray_jobs.client import RayJobs

    if not found.heads:
        return
    try:
        with reached_anyhow(cluster) as there:
            jobs = [job for job in RayJobs(there).jobs() if not job.has_ended]
    except (FleetError, RayJobsError) as error:
        say(f"Whose jobs run there is not known: {error}")
        return
    if not jobs:
        say(f"No job runs on cluster {cluster.name}.")
        return
    say(f"{len(jobs)} {'job runs' if len(jobs) == 1 else 'jobs run'} on cluster {cluster.name}:")
    write_lines(aligned([(job.job, job.status, owner_of(job.metadata)) for job in jobs]))


def agree(arguments: argparse.Namespace, question: str) -> None:
    """Return if the person agrees, or has done so beforehand.

    Raises:
        UsageError: Nobody can be asked.
        CommandError: The person does not agree.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Nobody can be asked here: say --yes if that is what you want. Nothing was done.")
    print(f"tradewind: {as_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was done.")
