"""The jobs of people outlive a restart of their cluster: they are kept before it, and brought back after it.

Those that belong to Airflow's tasks or to steps are left alone: who waits for them makes the next attempt.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
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
"""Of jobs that nobody has to bring back. One that failed may have done so because its head did not answer."""
_LOOK_S: Final = 2.0
_HEAD_S: Final = 600.0


class JobBackupError(FleetError):
    """The jobs of a cluster could not be kept; it was left as it is."""


class JobRestoreError(FleetError):
    """The jobs of a cluster could not be brought back yet."""


@dataclass(frozen=True)
class BackupResult:
    """What was kept.

    Attributes:
        over: The ids of jobs that have ended by themselves.
    """

    backup: JobBackup
    over: frozenset[str]


class ClusterJobBackup:
    """Keeps the jobs of one cluster, and brings them back.

    Args:
        root: Below it lie the backups of all clusters.
        reach: Opens the way to the cluster.
        reach_memory: Opens that to its head's memory.
        patience_s: For how long a head may not answer once it was started again.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        tell: Callable[[str], None],
        *,
        root: Path | None = None,
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = connected_with_any_token,
        reach_memory: Callable[[FleetCluster], AbstractContextManager[str]] = connected_gcs,
        patience_s: float = _HEAD_S,
    ) -> None:
        self.folder = (root or backups_root()) / cluster.project / cluster.name
        self._cluster = cluster
        self._tell = tell
        self._reach = reach
        self._reach_memory = reach_memory
        self._patience_s = patience_s

    def back_up(self, restart: str, *, is_anew: bool = True) -> BackupResult:
        """Write down the jobs that run or wait now.

        Args:
            is_anew: Forget what an earlier try has kept; else that stays, but for jobs that have ended by themselves.

        Raises:
            JobBackupError: They cannot be read.
        """
        backup = JobBackup(self.folder / restart)
        private_folder(self.folder)
        if is_anew:
            backup.delete()
        try:
            with tempfile.TemporaryDirectory(prefix=".reading-", dir=self.folder) as aside:
                with self._reach(self._cluster) as there, self._reach_memory(self._cluster) as memory:
                    found = read_head(memory, there.token, Path(aside))
                    heads = asyncio.run(_heads(there))
                    jobs = [replace(job, on_head=job.node_id in heads) for job in found.jobs]
                    over = [job.job for job in RayJobs(there).jobs() if job.status in _OVER]
                backup.add(jobs, found.packages, without=over)
        except (FleetError, RayJobsError, GcsReadError, BadBackupError) as error:
            raise JobBackupError(f"Cluster {self._cluster.name}: its jobs cannot be kept: {error}") from None
        self._tell(f"Kept {pluralize(len(jobs), 'job')} of people in {backup.folder}.")
        for unkept in found.unkept:
            self._tell(unkept.sentence)
        for job in jobs:
            if job.missing:
                self._tell(f"Job {job.job} cannot be brought back: the head has lost {', '.join(job.missing)}.")
        return BackupResult(backup, frozenset(over))

    def restore(
        self,
        backup: JobBackup,
        check: Callable[[], None] = lambda: None,
        note_rest: Callable[[Collection[str]], None] = lambda jobs: None,
    ) -> list[RestoreResult]:
        """Bring the jobs of ``backup`` back, and delete it, but for what may still come back.

        Args:
            check: Raises when nothing may be done any more.
            note_rest: Given the ids of what may still come back, before the others are deleted.

        Raises:
            JobRestoreError: The head does not answer, or the backup cannot be read; both may be mended.
        """
        deadline, found = time.monotonic() + self._patience_s, dict[str, RestoreResult]()
        while True:
            check()
            try:
                for one in self._returns(backup, check):
                    if one.job not in found:
                        self._tell(one.sentence)
                    found[one.job] = one
                break
            except BadBackupError as error:
                raise JobRestoreError(f"Cluster {self._cluster.name}: {error}") from None
            except (FleetError, RayUnreachableError) as error:
                if time.monotonic() >= deadline:
                    raise JobRestoreError(
                        f"Cluster {self._cluster.name}: its head does not take its jobs back yet: {error} They are "
                        f"kept in {backup.folder}."
                    ) from None
            except RayJobsError as error:
                raise JobRestoreError(f"Cluster {self._cluster.name}: {error}") from None
            time.sleep(_LOOK_S)
        rest = [one.job for one in found.values() if one.may_come_back]
        note_rest(rest)
        backup.keep_only(rest)
        return list(found.values())

    def backups(self) -> list[JobBackup]:
        """Those that there are of this cluster, the newest last."""
        return backups_of(self.folder)

    def _returns(self, backup: JobBackup, check: Callable[[], None]) -> Iterator[RestoreResult]:
        if backup.jobs():
            with self._reach(self._cluster) as there:
                yield from JobRestorer(RayJobs(there), backup, check=check).run()


def backups_root() -> Path:
    """Where this user's backups are: ``$XDG_STATE_HOME/tradewind/jobs``, else ``~/.local/state/tradewind/jobs``."""
    return state_folder() / "jobs"


def this_host() -> str:
    """Which machine a backup lies on."""
    return socket.gethostname()


async def _heads(there: RayCluster) -> set[str]:
    """The head's own nodes, those of its former lives included."""
    async with JobsApi(there) as api:
        return {node.node_id for node in await fetch_nodes(api) if node.is_head}


# What the marker of a cluster says of the jobs that were kept: which, by whom, and where they lie.
#
# It is for people, and to see what would be lost. Nothing is ever read from the place that it names: whoever can write
# the bucket could name any.

_HOST: Final = "kept_on"
_FOLDER: Final = "kept_in"
_BY: Final = "kept_by"
_JOBS: Final = "kept_jobs"
_LEFT: Final = "left_behind"
_KEYS: Final = frozenset({_HOST, _FOLDER, _BY, _JOBS})
_MOST_NAMED: Final = 5
_LONGEST_WORDS: Final = 4096
_LONGEST_SHOWN: Final = 100
_MOST_JOBS: Final = 5000
_MOST_BYTES: Final = 512 * 1024
"""Of their ids in the marker, which could not be read any more if it had more than 1 MiB."""


class BadBackupNoteError(FleetError):
    """The marker does not say which jobs were kept, so nobody knows what would be lost."""


@dataclass(frozen=True)
class BackupNote:
    """Jobs that were kept and are not back.

    Attributes:
        by: Who kept them.
        host: On which machine they lie.
        folder: In which folder there.
        jobs: Their ids.
        left: The ids of others, which were kept elsewhere, and which somebody went on without.
    """

    by: str
    host: str
    folder: str
    jobs: tuple[str, ...]
    left: tuple[str, ...] = ()

    @staticmethod
    def of(details: Mapping[str, Any], cluster: str) -> BackupNote | None:
        """That in the marker of ``cluster``; None if nothing was kept.

        Raises:
            BadBackupNoteError: It cannot be read.
        """
        if not _KEYS & details.keys():
            return None
        words, lists = [details.get(key) for key in (_BY, _HOST, _FOLDER)], [details.get(_JOBS), details.get(_LEFT, [])]
        is_note = all(_is_within(word, _LONGEST_WORDS) for word in words) and all(
            isinstance(jobs, list) and all(_is_within(job, MAX_JOB_ID_CHARS) for job in jobs) for jobs in lists
        )
        if not is_note or sum(len(jobs or ()) for jobs in lists) > _MOST_JOBS:
            raise BadBackupNoteError(
                f"Cluster {cluster}: its marker does not say which jobs of people were kept, {_MOST_JOBS:,} at most: "
                "ask who began, and have what was begun ended with 'tradewind cluster stop', or put the marker right."
            )
        by, host, folder = map(str, words)
        jobs, left = (tuple(map(str, found or ())) for found in lists)
        return BackupNote(by, host, folder, jobs, left)

    def to_details(self) -> dict[str, Any]:
        """The same for the marker."""
        left = {_LEFT: list(self.left)} if self.left else {}
        return {_BY: self.by, _HOST: self.host, _FOLDER: self.folder, _JOBS: list(self.jobs), **left}

    def check(self, cluster: str) -> BackupNote:
        """The same, if the marker of ``cluster`` can hold it.

        Raises:
            FleetError: It cannot: nobody could read it then.
        """
        size, count = len(json.dumps(self.to_details())), len(self.jobs) + len(self.left)
        if count > _MOST_JOBS or size > _MOST_BYTES:
            raise FleetError(
                f"Cluster {cluster}: {count:,} jobs of people with {size:,} bytes of ids are more than its "
                f"marker can name, which is {_MOST_JOBS:,} with {_MOST_BYTES:,}: have some of them end first. Ray was "
                "not touched."
            )
        return self

    def lies_in(self, host: str, folder: str) -> bool:
        """Whether it is about what lies there."""
        return (self.host, self.folder) == (host, folder)

    def with_left(self, *jobs: str) -> BackupNote:
        """The same, which says that those of ``jobs`` were left behind that are not among its own."""
        return replace(self, left=tuple(dict.fromkeys(job for job in jobs if job not in self.jobs)))

    def missing(self, found: Collection[str]) -> list[str]:
        """Which of the jobs are not among those that were ``found``."""
        return [job for job in self.jobs if job not in found]

    def sentence(self, jobs: Collection[str]) -> str:
        """Whose ``jobs`` of it are and where, as the end of a sentence."""
        count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        by, host, folder = map(on_one_line, (self.by, self.host, self.folder))
        return f"{count} of people that {by} kept on {host} in {folder} ({_named(list(jobs))})"


def interruption(found: FoundLock | None, cluster: str, now: float) -> str:
    """Who left ``cluster`` half-changed, and whose jobs are kept since then, in sentences; empty if nobody did."""
    if found is None or not found.is_interrupted:
        return ""
    sentence, note = found.sentence(cluster, now), BackupNote.of(found.marker.details, cluster)
    return f"{sentence} Not back yet: {note.sentence(note.jobs)}." if note is not None and note.jobs else sentence


def _named(jobs: list[str]) -> str:
    more = len(jobs) - _MOST_NAMED
    shown = [on_one_line(job[:_LONGEST_SHOWN]) for job in jobs[:_MOST_NAMED]]
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _is_within(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest


# What this user keeps of a cluster's jobs on this machine, once somebody elsewhere has finished what it was kept for.
#
# It holds the variables of jobs in clear, and who finished it cannot reach it. So the next command about the cluster on
# this machine deletes what is back by then, as the cluster's marker says, and names whatever else lies here.

_ID_LENGTH: Final = 8


def restart_id(marker: LockRecord) -> str:
    """What the backup of an operation is called, and what the ids of jobs that come back end with."""
    return marker.run[:_ID_LENGTH]


def prune_backups(cluster: str, kept: ClusterJobBackup, found: FoundLock | None, tell: Callable[[str], None]) -> None:
    """Delete what is back of the backups of ``cluster`` here, and say what else lies here; nothing of what goes on.

    Args:
        found: The cluster's marker.
        tell: Given a sentence for each of them.
    """
    for backup in kept.backups():
        is_its = found is not None and restart_id(found.marker) == backup.restart
        if is_its and found is not None and found.marker.state is not LockState.DONE:
            continue
        try:
            if is_its and found is not None:
                _forget_what_is_back(cluster, backup, found, tell)
            if backup.is_there:
                tell(_whats_left(cluster, backup))
        except (FleetError, BadBackupError) as error:
            tell(str(error))


def _forget_what_is_back(cluster: str, backup: JobBackup, found: FoundLock, tell: Callable[[str], None]) -> None:
    """All but what somebody left behind who went on without it, and what could not come back from here."""
    note = BackupNote.of(found.marker.details, cluster)
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


# The jobs of people of one cluster, over a restart of it: kept before and brought back after, each once.
#
# It is for whoever holds the cluster's marker, and its ids are those of the marker's run. The marker says which jobs
# were kept and where. So who goes on with what was interrupted has them, or is told what would be lost, and goes on
# without them only if that was asked for. What is left behind can still be brought back where it lies, under the same
# ids.


class AbandonedJobsError(FleetError):
    """Jobs that were kept would be lost by going on; nothing was done."""


class JobPreservation:
    """Keeps the jobs of one cluster and brings them back.

    Args:
        kept: What does both.
        tell: Given a sentence for each thing that is done.
        is_to_keep: Keep what runs now; else it ends. What was kept before is brought back in any case.
        may_abandon: Go on without kept jobs that are not here.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        kept: ClusterJobBackup,
        tell: Callable[[str], None],
        *,
        is_to_keep: bool = True,
        may_abandon: bool = False,
    ) -> None:
        self.is_to_keep = is_to_keep
        self._cluster = cluster
        self._kept = kept
        self._tell = tell
        self._may_abandon = may_abandon

    def prune(self, found: FoundLock | None) -> None:
        """Delete what is back of what is kept here, by the cluster's marker, before it is taken for something else."""
        prune_backups(self._cluster.name, self._kept, found, self._tell)

    def back_up(self, held: HeldClusterLock) -> dict[str, Any]:
        """Keep what runs now, beside what was kept before; what the marker is to say of it from then on.

        Raises:
            JobBackupError: It cannot be read, and nothing was kept before. Ray was not touched.
            AbandonedJobsError: What was kept before is not here.
            FleetError: There are more than the marker can name. Ray was not touched.
        """
        held.check()
        before, backup = self._note(held), self._backup(held)
        is_all_here = before is None or (backup.is_there and before.lies_in(this_host(), str(backup.folder)))
        over = self._keep(held, is_first=before is None) if self.is_to_keep else frozenset[str]()
        there = [job.job for job in backup.jobs()] if backup.is_there else []
        if not self.is_to_keep and before is None:
            return {}
        note = BackupNote(held.marker.holder, this_host(), str(backup.folder), tuple(there))
        if before is not None and not is_all_here:
            missing = before.missing({*there, *over})
            self._leave_behind(before, missing, held)
            self._tell_of_copy(before, backup)
            note = note.with_left(*before.left, *missing)
        return note.check(self._cluster.name).to_details()

    def restore(self, held: HeldClusterLock) -> list[RestoreResult]:
        """Bring them back to the head that was started again; what became of each.

        Raises:
            AbandonedJobsError: They are not here.
            JobRestoreError: The head does not take them yet.
        """
        note, backup = self._note(held), self._backup(held)
        if note is None or not note.jobs:
            backup.delete()
            return []
        there = [job.job for job in backup.jobs()] if backup.is_there else []
        missing = note.missing(there)
        self._leave_behind(note, missing, held)
        if not there:
            return []
        rest = replace(note, jobs=tuple(there)).with_left(*note.left, *missing)

        def note_rest(jobs: Collection[str]) -> None:
            held.advance(held.marker.phase, **replace(rest, jobs=tuple(jobs)).to_details())

        return self._kept.restore(backup, held.check, note_rest)

    def are_awaited(self, held: HeldClusterLock) -> bool:
        """Whether some were kept that are not back."""
        note = self._note(held)
        return note is not None and bool(note.jobs)

    def forget(self, held: HeldClusterLock) -> None:
        """Delete what was kept, where nothing was restarted after all."""
        self._backup(held).delete()

    def _keep(self, held: HeldClusterLock, *, is_first: bool) -> frozenset[str]:
        """Keep what runs now: in what is gone on with, people may have submitted more meanwhile; what is over."""
        try:
            return self._kept.back_up(restart_id(held.marker), is_anew=is_first).over
        except JobBackupError as error:
            if is_first:
                raise JobBackupError(
                    f"{error} Ray was not touched. If its jobs may end: "
                    f"'tradewind cluster {held.marker.operation} {self._cluster.name} --no-preserve-jobs'."
                ) from None
            self._tell(f"The head does not answer; going on with the jobs that were kept before. {error}")
            return frozenset()

    def _leave_behind(self, note: BackupNote, jobs: Collection[str], held: HeldClusterLock) -> None:
        if not jobs:
            return
        name = self._cluster.name
        later = f"'tradewind cluster restore-jobs {name} --backup {restart_id(held.marker)}' there"
        if not self._may_abandon:
            raise AbandonedJobsError(
                f"Cluster {name}: to go on here leaves {note.sentence(jobs)} behind: run the same command there, or "
                f"say --abandon-kept-jobs, after which only {later} brings them back."
            )
        self._tell(f"Left behind: {note.sentence(jobs)}. {later[0].upper()}{later[1:]} brings them back.")

    def _tell_of_copy(self, note: BackupNote, backup: JobBackup) -> None:
        """What lies on another machine holds variables in clear, and nobody deletes it from here."""
        if not note.lies_in(this_host(), str(backup.folder)):
            self._tell(
                f"What {note.by} kept on {note.host} stays in {note.folder} until this is finished and 'tradewind "
                f"cluster status {self._cluster.name}' is run there, which deletes what is back."
            )

    def _note(self, held: HeldClusterLock) -> BackupNote | None:
        return BackupNote.of(held.marker.details, self._cluster.name)

    def _backup(self, held: HeldClusterLock) -> JobBackup:
        return JobBackup(self._kept.folder / restart_id(held.marker))
