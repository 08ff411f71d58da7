"""The jobs of people of one cluster, over a restart of it: kept before and brought back after, each once.

It is for whoever holds the cluster's marker, and its ids are those of the marker's run. The marker says which jobs were
kept and where. So who goes on with what was interrupted has them, or is told what would be lost, and goes on without
them only if that was asked for. What is left behind can still be brought back where it lies, under the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.kept_jobs import JobsNotKeptError, KeptJobs, this_host
from tradewind.fleet.lifecycle.preserving.kept_note import KeptNote
from tradewind.fleet.lifecycle.preserving.own_backups import restart_id, tidy_backups
from tradewind.fleet.marker import MarkerHolding
from tradewind.fleet.marker_value import FoundMarker
from tradewind.ray_jobs.keeping.backup import JobBackup
from tradewind.ray_jobs.keeping.returning import JobReturn


class JobsLeftBehindError(FleetError):
    """Jobs that were kept would be lost by going on; nothing was done."""


class PreservedJobs:
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
        kept: KeptJobs,
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

    def tidy(self, found: FoundMarker | None) -> None:
        """Delete what is back of what is kept here, by the cluster's marker, before it is taken for something else."""
        tidy_backups(self._cluster.name, self._kept, found, self._tell)

    def keep(self, held: MarkerHolding) -> dict[str, Any]:
        """Keep what runs now, beside what was kept before; what the marker is to say of it from then on.

        Raises:
            JobsNotKeptError: It cannot be read, and nothing was kept before. Ray was not touched.
            JobsLeftBehindError: What was kept before is not here.
            TooManyJobsError: There are more than the marker can name. Ray was not touched.
        """
        held.check()
        before, backup = self._note(held), self._backup(held)
        is_all_here = before is None or (backup.is_there and before.lies_in(this_host(), str(backup.folder)))
        over = self._keep(held, is_first=before is None) if self.is_to_keep else frozenset[str]()
        there = [job.job for job in backup.jobs()] if backup.is_there else []
        if not self.is_to_keep and before is None:
            return {}
        note = KeptNote(held.marker.holder, this_host(), str(backup.folder), tuple(there))
        if before is not None and not is_all_here:
            missing = before.missing({*there, *over})
            self._leave_behind(before, missing, held)
            self._tell_of_copy(before, backup)
            note = note.with_left(*before.left, *missing)
        return note.check(self._cluster.name).to_details()

    def bring_back(self, held: MarkerHolding) -> list[JobReturn]:
        """Bring them back to the head that was started again; what became of each.

        Raises:
            JobsLeftBehindError: They are not here.
            JobsNotBackError: The head does not take them yet.
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

        return self._kept.bring_back(backup, held.check, note_rest)

    def are_awaited(self, held: MarkerHolding) -> bool:
        """Whether some were kept that are not back."""
        note = self._note(held)
        return note is not None and bool(note.jobs)

    def forget(self, held: MarkerHolding) -> None:
        """Delete what was kept, where nothing was restarted after all."""
        self._backup(held).delete()

    def _keep(self, held: MarkerHolding, *, is_first: bool) -> frozenset[str]:
        """Keep what runs now: in what is gone on with, people may have submitted more meanwhile; what is over."""
        try:
            return self._kept.keep(restart_id(held.marker), is_anew=is_first).over
        except JobsNotKeptError as error:
            if is_first:
                raise JobsNotKeptError(
                    f"{error} Ray was not touched. If its jobs may end: "
                    f"'tradewind cluster {held.marker.operation} {self._cluster.name} --no-preserve-jobs'."
                ) from None
            self._tell(f"The head does not answer; going on with the jobs that were kept before. {error}")
            return frozenset()

    def _leave_behind(self, note: KeptNote, jobs: Collection[str], held: MarkerHolding) -> None:
        if not jobs:
            return
        name = self._cluster.name
        later = f"'tradewind cluster restore-jobs {name} --backup {restart_id(held.marker)}' there"
        if not self._may_abandon:
            raise JobsLeftBehindError(
                f"Cluster {name}: to go on here leaves {note.sentence(jobs)} behind: run the same command there, or "
                f"say --abandon-kept-jobs, after which only {later} brings them back."
            )
        self._tell(f"Left behind: {note.sentence(jobs)}. {later[0].upper()}{later[1:]} brings them back.")

    def _tell_of_copy(self, note: KeptNote, backup: JobBackup) -> None:
        """What lies on another machine holds variables in clear, and nobody deletes it from here."""
        if not note.lies_in(this_host(), str(backup.folder)):
            self._tell(
                f"What {note.by} kept on {note.host} stays in {note.folder} until this is finished and 'tradewind "
                f"cluster status {self._cluster.name}' is run there, which deletes what is back."
            )

    def _note(self, held: MarkerHolding) -> KeptNote | None:
        return KeptNote.of(held.marker.details, self._cluster.name)

    def _backup(self, held: MarkerHolding) -> JobBackup:
        return JobBackup(self._kept.folder / restart_id(held.marker))
