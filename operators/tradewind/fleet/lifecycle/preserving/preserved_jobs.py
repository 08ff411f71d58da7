"""The jobs of people of one cluster, over a restart of it: kept before and brought back after, each once.

It is for whoever holds the cluster's marker, and its ids are those of the marker's run. The marker says which jobs were
kept and where. So who goes on with what was interrupted has them, or is told what would be lost, and goes on without
them only if that was asked for. What is left behind can still be brought back where it lies, under the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.kept_jobs import JobsNotKeptError, KeptJobs, this_host
from tradewind.fleet.lifecycle.preserving.kept_note import KeptNote
from tradewind.fleet.marker import MarkerHolding
from tradewind.ray_jobs.keeping.backup import JobBackup
from tradewind.ray_jobs.keeping.returning import JobReturn

_ID_LENGTH: Final = 8


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
        if before is not None and not is_all_here:
            self._leave_behind(before, before.missing({*there, *over}), held)
        if not self.is_to_keep and before is None:
            return {}
        note = KeptNote(held.marker.holder, this_host(), str(backup.folder), tuple(there))
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
        self._leave_behind(note, note.missing(there), held)
        if not there:
            return []

        def note_rest(jobs: Collection[str]) -> None:
            held.advance(held.marker.phase, **KeptNote(note.by, note.host, note.folder, tuple(jobs)).to_details())

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
            return self._kept.keep(_restart_id(held), is_anew=is_first).over
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
        later = f"'tradewind cluster restore-jobs {name} --backup {_restart_id(held)}' there"
        if not self._may_abandon:
            raise JobsLeftBehindError(
                f"Cluster {name}: to go on here leaves {note.sentence(jobs)} behind: run the same command there, or "
                f"say --abandon-kept-jobs, after which only {later} brings them back."
            )
        self._tell(f"Left behind: {note.sentence(jobs)}. {later[0].upper()}{later[1:]} brings them back.")

    def _note(self, held: MarkerHolding) -> KeptNote | None:
        return KeptNote.of(held.marker.details, self._cluster.name)

    def _backup(self, held: MarkerHolding) -> JobBackup:
        return JobBackup(self._kept.folder / _restart_id(held))


def _restart_id(held: MarkerHolding) -> str:
    return held.marker.run[:_ID_LENGTH]
