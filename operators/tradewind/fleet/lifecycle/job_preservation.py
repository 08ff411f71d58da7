"""Preservation of unmanaged jobs over a restart of their cluster: backed up before, restored after, each once.

Managed jobs are left alone: their task or lease makes the next attempt.

The command that holds the cluster's lock does both, and the job IDs contain the ID of the lock's run. The lock names
the jobs and the machine with their backup. A command that resumes an interrupted restart therefore has the jobs, or
reports which would be lost. It continues without them only on request. Jobs that are left behind can still be restored
on their machine, under the same IDs.

A note in the lock only informs: no command reads the path in it, since any writer of the bucket could name any path.

A backup holds the variables of jobs in clear text, and a restart that is completed on another machine cannot delete it.
So the next command about the cluster on this machine deletes the jobs that the lock reports as restored.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.access.connect import connected_gcs, connected_with_any_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError, on_one_line
from tradewind.fleet.local_paths import state_folder
from tradewind.fleet.lock import FoundLock, HeldClusterLock, LockRecord, LockState
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError, RayUnreachableError
from tradewind.ray_jobs.gcs_reader import GcsReadError, read_head
from tradewind.ray_jobs.job_backup import MAX_JOB_ID_CHARS, BadBackupError, JobBackup, backups_of, private_folder
from tradewind.ray_jobs.job_restore import JobRestorer, RestoreResult
from tradewind.ray_jobs.nodes import fetch_nodes
from tradewind.text import pluralize

_OVER: Final = ("SUCCEEDED", "STOPPED")
"""Statuses of jobs that need no restore. A failed job may have failed because its head did not answer."""
_POLL_S: Final = 2.0
_HEAD_TIMEOUT_S: Final = 600.0
_ID_LENGTH: Final = 8
_HOST: Final = "kept_on"
_FOLDER: Final = "kept_in"
_BY: Final = "kept_by"
_JOBS: Final = "kept_jobs"
_LEFT: Final = "left_behind"
_KEYS: Final = frozenset({_HOST, _FOLDER, _BY, _JOBS})
_MAX_NAMED: Final = 5
_MAX_TEXT_CHARS: Final = 4096
_MAX_SHOWN_CHARS: Final = 100
_MAX_JOBS: Final = 5000
_MAX_BYTES: Final = 512 * 1024
"""Of job IDs in the lock, which could not be read any more if it had more than 1 MiB."""


class JobBackupError(FleetError):
    """The jobs of a cluster could not be backed up; the cluster is unchanged."""


class JobRestoreError(FleetError):
    """The jobs of a cluster could not be restored yet."""


class BadBackupNoteError(FleetError):
    """The lock does not name the jobs that were backed up, so it is unknown which would be lost."""


class AbandonedJobsError(FleetError):
    """A resumption here would lose jobs that were backed up; nothing was done."""


@dataclass(frozen=True)
class BackupResult:
    """A backup, and the jobs that need none.

    Attributes:
        over: The IDs of jobs that ended by themselves.
    """

    backup: JobBackup
    over: frozenset[str]


class ClusterJobBackup:
    """Backs up and restores the jobs of one cluster.

    Args:
        root: Parent of the backups of all clusters.
        reach: Connects to the cluster.
        reach_gcs: Connects to the GCS of its head.
        timeout_s: Maximum time without an answer of a restarted head.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        tell: Callable[[str], None],
        *,
        root: Path | None = None,
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = connected_with_any_token,
        reach_gcs: Callable[[FleetCluster], AbstractContextManager[str]] = connected_gcs,
        timeout_s: float = _HEAD_TIMEOUT_S,
    ) -> None:
        self.folder = (root or backups_root()) / cluster.project / cluster.name
        self._cluster = cluster
        self._tell = tell
        self._reach = reach
        self._reach_gcs = reach_gcs
        self._timeout_s = timeout_s

    def back_up(self, restart: str, *, is_anew: bool = True) -> BackupResult:
        """Back up the jobs that run or wait now.

        Args:
            is_anew: Delete the backup of an earlier try; else keep it, without jobs that ended by themselves.

        Raises:
            JobBackupError: The jobs cannot be read.
        """
        backup = JobBackup(self.folder / restart)
        private_folder(self.folder)
        if is_anew:
            backup.delete()
        try:
            with tempfile.TemporaryDirectory(prefix=".reading-", dir=self.folder) as aside:
                with self._reach(self._cluster) as connection, self._reach_gcs(self._cluster) as gcs:
                    found = read_head(gcs, connection.token, Path(aside))
                    heads = asyncio.run(_heads(connection))
                    jobs = [replace(job, on_head=job.node_id in heads) for job in found.jobs]
                    over = [job.job for job in RayJobs(connection).jobs() if job.status in _OVER]
                backup.add(jobs, found.packages, without=over)
        except (FleetError, RayJobsError, GcsReadError, BadBackupError) as error:
            raise JobBackupError(f"Cluster {self._cluster.name}: its jobs cannot be backed up: {error}") from None
        self._tell(f"Backed up {pluralize(len(jobs), 'unmanaged job')} in {backup.folder}.")
        for skipped in found.skipped:
            self._tell(skipped.sentence)
        for job in jobs:
            if job.missing:
                self._tell(f"Job {job.job} cannot be restored: the head has lost {', '.join(job.missing)}.")
        return BackupResult(backup, frozenset(over))

    def restore(
        self,
        backup: JobBackup,
        check: Callable[[], None] = lambda: None,
        note_rest: Callable[[Collection[str]], None] = lambda jobs: None,
    ) -> list[RestoreResult]:
        """Restore the jobs of ``backup`` and delete it, except jobs that a later call may restore.

        Args:
            check: Raises when the lock is lost.
            note_rest: Called with the IDs of the jobs that stay in the backup, before the others are deleted.

        Raises:
            JobRestoreError: The head does not answer, or the backup cannot be read; a user can fix both.
        """
        deadline, found = time.monotonic() + self._timeout_s, dict[str, RestoreResult]()
        while True:
            check()
            try:
                if backup.jobs():
                    with self._reach(self._cluster) as connection:
                        for one in JobRestorer(RayJobs(connection), backup, check=check).run():
                            if one.job not in found:
                                self._tell(one.sentence)
                            found[one.job] = one
                break
            except BadBackupError as error:
                raise JobRestoreError(f"Cluster {self._cluster.name}: {error}") from None
            except (FleetError, RayUnreachableError) as error:
                if time.monotonic() >= deadline:
                    raise JobRestoreError(
                        f"Cluster {self._cluster.name}: its head does not accept its jobs yet: {error} Their backup "
                        f"is {backup.folder}."
                    ) from None
            except RayJobsError as error:
                raise JobRestoreError(f"Cluster {self._cluster.name}: {error}") from None
            time.sleep(_POLL_S)
        rest = [one.job for one in found.values() if one.is_retryable]
        note_rest(rest)
        backup.keep_only(rest)
        return list(found.values())

    def backups(self) -> list[JobBackup]:
        """Return the backups of this cluster, newest last."""
        return backups_of(self.folder)


def backups_root() -> Path:
    """Return this user's backups: ``$XDG_STATE_HOME/tradewind/jobs``, else ``~/.local/state/tradewind/jobs``."""
    return state_folder() / "jobs"


def this_host() -> str:
    """Return the name of this machine, which a note names."""
    return socket.gethostname()


async def _heads(connection: RayCluster) -> set[str]:
    """Return the IDs of the head's nodes, including those before a restart."""
    async with JobsApi(connection) as api:
        return {node.node_id for node in await fetch_nodes(api) if node.is_head}


@dataclass(frozen=True)
class BackupNote:
    """Note in a cluster's lock: jobs that were backed up and not restored.

    Attributes:
        by: The user who made the backup.
        host: The machine that has it.
        folder: Its folder there.
        jobs: Their IDs.
        left: The IDs of jobs with a backup elsewhere that a user abandoned.
    """

    by: str
    host: str
    folder: str
    jobs: tuple[str, ...]
    left: tuple[str, ...] = ()

    @staticmethod
    def of(details: Mapping[str, Any], cluster: str) -> BackupNote | None:
        """Parse the note in the lock of ``cluster``; None if it has none.

        Raises:
            BadBackupNoteError: The note is invalid.
        """
        if not _KEYS & details.keys():
            return None
        words, lists = [details.get(key) for key in (_BY, _HOST, _FOLDER)], [details.get(_JOBS), details.get(_LEFT, [])]
        is_note = all(_is_within(word, _MAX_TEXT_CHARS) for word in words) and all(
            isinstance(jobs, list) and all(_is_within(job, MAX_JOB_ID_CHARS) for job in jobs) for jobs in lists
        )
        if not is_note or sum(len(jobs or ()) for jobs in lists) > _MAX_JOBS:
            raise BadBackupNoteError(
                f"Cluster {cluster}: its lock does not say which unmanaged jobs were backed up, {_MAX_JOBS:,} at most. "
                "Ask the user who began the operation, end it with 'tradewind cluster stop', or correct the lock."
            )
        by, host, folder = map(str, words)
        jobs, left = (tuple(map(str, found or ())) for found in lists)
        return BackupNote(by, host, folder, jobs, left)

    def to_details(self) -> dict[str, Any]:
        """Return the note as the lock's details."""
        left = {_LEFT: list(self.left)} if self.left else {}
        return {_BY: self.by, _HOST: self.host, _FOLDER: self.folder, _JOBS: list(self.jobs), **left}

    def check(self, cluster: str) -> BackupNote:
        """Return the note, if the lock of ``cluster`` can hold it.

        Raises:
            FleetError: It is too large: no command could parse the lock.
        """
        size, count = len(json.dumps(self.to_details())), len(self.jobs) + len(self.left)
        if count > _MAX_JOBS or size > _MAX_BYTES:
            raise FleetError(
                f"Cluster {cluster}: {count:,} unmanaged jobs with {size:,} bytes of IDs are more than its "
                f"lock can name, which is {_MAX_JOBS:,} with {_MAX_BYTES:,}. End some of them first. Ray was "
                "not touched."
            )
        return self

    def is_in(self, host: str, folder: str) -> bool:
        """Whether it names a backup in that folder."""
        return (self.host, self.folder) == (host, folder)

    def with_left(self, *jobs: str) -> BackupNote:
        """Return the note with ``jobs`` as left behind, except its own."""
        return replace(self, left=tuple(dict.fromkeys(job for job in jobs if job not in self.jobs)))

    def missing(self, found: Collection[str]) -> list[str]:
        """Return its jobs that are not in ``found``."""
        return [job for job in self.jobs if job not in found]

    def sentence(self, jobs: Collection[str]) -> str:
        """Describe the owner and location of ``jobs``, as a noun phrase."""
        by, host, folder = map(on_one_line, (self.by, self.host, self.folder))
        names = [on_one_line(job[:_MAX_SHOWN_CHARS]) for job in list(jobs)[:_MAX_NAMED]]
        names += [f"{len(jobs) - _MAX_NAMED} more"] if len(jobs) > _MAX_NAMED else []
        return f"{pluralize(len(jobs), 'job')} that {by} backed up on {host} in {folder} ({', '.join(names)})"


def interruption(found: FoundLock | None, cluster: str, now: float) -> str:
    """Describe an interrupted operation on ``cluster`` and its backed-up jobs; empty if there is none."""
    if found is None or not found.is_interrupted:
        return ""
    sentence, note = found.sentence(cluster, now), BackupNote.of(found.marker.details, cluster)
    return f"{sentence} Not restored yet: {note.sentence(note.jobs)}." if note is not None and note.jobs else sentence


def _is_within(value: Any, max_chars: int) -> bool:
    return isinstance(value, str) and len(value) <= max_chars


def restart_id(marker: LockRecord) -> str:
    """Return the name of an operation's backup, which is also the suffix of restored job IDs."""
    return marker.run[:_ID_LENGTH]


def prune_backups(
    cluster: str, backups: ClusterJobBackup, found: FoundLock | None, tell: Callable[[str], None]
) -> None:
    """Delete restored jobs from the local backups of ``cluster`` and report the rest; skip an unfinished operation.

    Args:
        found: The cluster's lock.
        tell: Called with a sentence for each backup.
    """
    for backup in backups.backups():
        is_its = found is not None and restart_id(found.marker) == backup.restart
        if is_its and found is not None and found.marker.state is not LockState.DONE:
            continue
        try:
            if is_its and found is not None:
                _delete_restored(cluster, backup, found, tell)
            if backup.exists:
                jobs = ", ".join(job.job for job in backup.jobs())
                tell(
                    f"Backup {backup.folder} still has jobs of {cluster} ({jobs}), with their variables in clear text. "
                    f"'tradewind cluster restore-jobs {cluster} --backup {backup.restart}' restores the missing ones "
                    "and deletes the backup."
                )
        except (FleetError, BadBackupError) as error:
            tell(str(error))


def _delete_restored(cluster: str, backup: JobBackup, found: FoundLock, tell: Callable[[str], None]) -> None:
    """Keep only the jobs that a user abandoned, and those that could not be restored from here."""
    note = BackupNote.of(found.marker.details, cluster)
    if note is None:
        return
    missing = {*note.left, *(note.jobs if note.is_in(this_host(), str(backup.folder)) else ())}
    saved = [job.job for job in backup.jobs()]
    left = [job for job in saved if job in missing]
    if left != saved:
        backup.keep_only(left)
        tell(
            f"Deleted {'the restored jobs of ' if left else ''}{backup.folder}: {found.marker.operation} of {cluster} "
            f"was finished by {found.marker.holder}."
        )


class JobPreservation:
    """Preserves the jobs of one cluster over an operation under its lock.

    Args:
        backups: Backs up and restores.
        tell: Called with a sentence for each action.
        is_to_keep: Preserve the jobs that run now; else they end. Jobs with a backup are restored in any case.
        may_abandon: Continue without jobs whose backup is not here.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        backups: ClusterJobBackup,
        tell: Callable[[str], None],
        *,
        is_to_keep: bool = True,
        may_abandon: bool = False,
    ) -> None:
        self.is_to_keep = is_to_keep
        self._cluster = cluster
        self._backups = backups
        self._tell = tell
        self._may_abandon = may_abandon

    def prune(self, found: FoundLock | None) -> None:
        """Delete restored jobs from the local backups, before another operation replaces the lock's note."""
        prune_backups(self._cluster.name, self._backups, found, self._tell)

    def back_up(self, held: HeldClusterLock) -> dict[str, Any]:
        """Add the jobs that run now to the backup; return the note for the lock's details.

        Raises:
            JobBackupError: The jobs cannot be read, and there is no earlier backup. Ray was not touched.
            AbandonedJobsError: The earlier backup is not here.
            FleetError: There are more jobs than the lock can name. Ray was not touched.
        """
        held.check()
        before, backup = self._note(held), self._backup(held)
        is_all_here = before is None or (backup.exists and before.is_in(this_host(), str(backup.folder)))
        over = self._back_up_current(held, is_first=before is None) if self.is_to_keep else frozenset[str]()
        saved = [job.job for job in backup.jobs()] if backup.exists else []
        if not self.is_to_keep and before is None:
            return {}
        note = BackupNote(held.marker.holder, this_host(), str(backup.folder), tuple(saved))
        if before is not None and not is_all_here:
            missing = before.missing({*saved, *over})
            self._leave_behind(before, missing, held)
            self._report_copy(before, backup)
            note = note.with_left(*before.left, *missing)
        return note.check(self._cluster.name).to_details()

    def restore(self, held: HeldClusterLock) -> list[RestoreResult]:
        """Restore the jobs to the restarted head; return the result of each.

        Raises:
            AbandonedJobsError: Their backup is not here.
            JobRestoreError: The head does not accept them yet.
        """
        note, backup = self._note(held), self._backup(held)
        if note is None or not note.jobs:
            backup.delete()
            return []
        saved = [job.job for job in backup.jobs()] if backup.exists else []
        missing = note.missing(saved)
        self._leave_behind(note, missing, held)
        if not saved:
            return []
        rest = replace(note, jobs=tuple(saved)).with_left(*note.left, *missing)

        def note_rest(jobs: Collection[str]) -> None:
            held.advance(held.marker.phase, **replace(rest, jobs=tuple(jobs)).to_details())

        return self._backups.restore(backup, held.check, note_rest)

    def are_awaited(self, held: HeldClusterLock) -> bool:
        """Whether backed-up jobs are not restored yet."""
        note = self._note(held)
        return note is not None and bool(note.jobs)

    def forget(self, held: HeldClusterLock) -> None:
        """Delete the backup of an operation that restarted nothing."""
        self._backup(held).delete()

    def _back_up_current(self, held: HeldClusterLock, *, is_first: bool) -> frozenset[str]:
        """Back up the jobs that run now, to which users may have added since the interruption; return ended jobs."""
        try:
            return self._backups.back_up(restart_id(held.marker), is_anew=is_first).over
        except JobBackupError as error:
            if is_first:
                raise JobBackupError(
                    f"{error} Ray was not touched. If its jobs may end, run "
                    f"'tradewind cluster {held.marker.operation} {self._cluster.name} --no-preserve-jobs'."
                ) from None
            self._tell(f"The head does not answer. Continuing with the jobs that were backed up before. {error}")
            return frozenset()

    def _leave_behind(self, note: BackupNote, jobs: Collection[str], held: HeldClusterLock) -> None:
        if not jobs:
            return
        name = self._cluster.name
        later = f"'tradewind cluster restore-jobs {name} --backup {restart_id(held.marker)}' there"
        if not self._may_abandon:
            raise AbandonedJobsError(
                f"Cluster {name}: continuing here leaves {note.sentence(jobs)} behind. Run the same command there, or "
                f"add --abandon-kept-jobs, after which only {later} restores them."
            )
        self._tell(f"Left behind: {note.sentence(jobs)}. {later[0].upper()}{later[1:]} restores them.")

    def _report_copy(self, note: BackupNote, backup: JobBackup) -> None:
        """Report a backup on another machine: it holds variables in clear text, and cannot be deleted from here."""
        if not note.is_in(this_host(), str(backup.folder)):
            self._tell(
                f"The backup of {note.by} on {note.host} stays in {note.folder} until this is finished and 'tradewind "
                f"cluster status {self._cluster.name}' is run there, which deletes the restored jobs."
            )

    def _note(self, held: HeldClusterLock) -> BackupNote | None:
        return BackupNote.of(held.marker.details, self._cluster.name)

    def _backup(self, held: HeldClusterLock) -> JobBackup:
        return JobBackup(self._backups.folder / restart_id(held.marker))
