"""What this user keeps of a cluster's jobs on this machine, once somebody elsewhere has finished what it was kept for.

It holds the variables of jobs in clear, and who finished it cannot reach it. So the next command about the cluster on
this machine deletes what is back by then, as the cluster's marker says, and names whatever else lies here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.kept_jobs import KeptJobs, this_host
from tradewind.fleet.lifecycle.preserving.kept_note import KeptNote
from tradewind.fleet.marker_value import FoundMarker, Marker, MarkerState
from tradewind.ray_jobs.keeping.backup import BadBackupError, JobBackup

_ID_LENGTH: Final = 8


def restart_id(marker: Marker) -> str:
    """What the backup of an operation is called, and what the ids of jobs that come back end with."""
    return marker.run[:_ID_LENGTH]


def tidy_backups(cluster: str, kept: KeptJobs, found: FoundMarker | None, tell: Callable[[str], None]) -> None:
    """Delete what is back of the backups of ``cluster`` here, and say what else lies here; nothing of what goes on.

    Args:
        found: The cluster's marker.
        tell: Given a sentence for each of them.
    """
    for backup in kept.backups():
        is_its = found is not None and restart_id(found.marker) == backup.restart
        if is_its and found is not None and found.marker.state is not MarkerState.DONE:
            continue
        try:
            if is_its and found is not None:
                _forget_what_is_back(cluster, backup, found, tell)
            if backup.is_there:
                tell(_whats_left(cluster, backup))
        except (FleetError, BadBackupError) as error:
            tell(str(error))


def _forget_what_is_back(cluster: str, backup: JobBackup, found: FoundMarker, tell: Callable[[str], None]) -> None:
    """All but what somebody left behind who went on without it, and what could not come back from here."""
    note = KeptNote.of(found.marker.details, cluster)
    if note is None:
        return
    missing = {*note.left, *(note.jobs if note.lies_in(this_host(), str(backup.folder)) else ())}
    there = [job.job for job in backup.jobs()]
    left = [job for job in there if job in missing]
    if left != there:
        backup.keep_only(left)
        tell(
            f"Deleted {'what is back of ' if left else ''}{backup.folder}: {found.marker.operation} of {cluster} was "
            f"finished by {found.marker.holder}."
        )


def _whats_left(cluster: str, backup: JobBackup) -> str:
    jobs = ", ".join(job.job for job in backup.jobs())
    return (
        f"Jobs of {cluster} are kept in {backup.folder} ({jobs}), with their variables in clear: 'tradewind cluster "
        f"restore-jobs {cluster} --backup {backup.restart}' brings back what is not there, and deletes that."
    )
