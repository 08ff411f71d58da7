"""``tradewind cluster backup-jobs`` and ``restore-jobs``: what a restart does with the jobs of people, by hand."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterable, Sequence

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.output import say, write_lines
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.lifecycle.kept_jobs import KeptJobs
from tradewind.ray_jobs.keeping.backup import JobBackup
from tradewind.ray_jobs.keeping.returning import JobReturn

_ID_LENGTH = 8


def backup_jobs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Keep the jobs of people on a cluster; the id of the backup is the output.

    Raises:
        FleetError: They cannot be kept.
    """
    kept = KeptJobs(fleet.cluster(arguments.name), say).keep(uuid.uuid4().hex[:_ID_LENGTH])
    write_lines([kept.backup.restart])
    return 0


def restore_jobs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Bring kept jobs back that do not run there any more.

    Raises:
        UsageError: Nothing says which backup is meant.
        CommandError: There is none.
        FleetError: They cannot be brought back yet.
    """
    kept = KeptJobs(fleet.cluster(arguments.name), say)
    return tell_of_lost(kept.bring_back(_chosen(kept.backups(), arguments.backup, kept)))


def tell_of_lost(found: Iterable[JobReturn]) -> int:
    """Say which jobs did not come back though they should have; the exit code."""
    lost = [one for one in found if one.is_lost]
    if lost:
        say(f"Not brought back: {', '.join(one.job for one in lost)}.")
    if any(one.may_come_back for one in lost):
        say("What may come back is still kept: 'tradewind cluster restore-jobs' tries again.")
    return 1 if lost else 0


def _chosen(backups: Sequence[JobBackup], wanted: str | None, kept: KeptJobs) -> JobBackup:
    names = ", ".join(one.restart for one in backups)
    if not backups:
        raise CommandError(f"There is no backup of jobs in {kept.folder}.")
    if wanted is None and len(backups) > 1:
        raise UsageError(f"There are several backups in {kept.folder}: say which with --backup: {names}.")
    for one in backups:
        if wanted in (None, one.restart):
            return one
    raise UsageError(f"There is no backup {wanted} in {kept.folder}, only {names}.")
