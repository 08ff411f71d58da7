"""A restart of a cluster in three phases: the jobs of people are kept, Ray is started anew, the jobs are brought back.

Each phase is written into the marker before it begins, and each bears being done again, so a restart that was
interrupted is gone on with by the next. The ids of the jobs that come back are those of the marker's run, which stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.acts import ClusterActs
from tradewind.fleet.lifecycle.kept_jobs import JobsNotKeptError, KeptJobs, this_host
from tradewind.fleet.marker import ClusterMarker, MarkerHolding
from tradewind.ray_jobs.keeping.backup import JobBackup
from tradewind.ray_jobs.keeping.returning import JobReturn

RESTART: Final = "restart"
_ID_LENGTH: Final = 8
_HOST: Final = "kept_on"
_FOLDER: Final = "kept_in"


class RestartPhase(StrEnum):
    """How far a restart has come, as its marker says it."""

    KEEPING = "keeping jobs"
    RESTARTING = "restarting Ray"
    RETURNING = "bringing jobs back"


class BackupElsewhereError(FleetError):
    """The jobs of an interrupted restart are kept where this command cannot read them."""


class ClusterRestart:
    """Restarts one cluster.

    Args:
        kept: Keeps the jobs of people; None if they are to end.
        tell: Given a sentence for each thing that is done.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        acts: ClusterActs,
        marker: ClusterMarker,
        kept: KeptJobs | None,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._marker = marker
        self._kept = kept
        self._tell = tell

    def run(self, *, holder: str | None = None) -> list[JobReturn]:
        """Restart it, or go on with a restart that was interrupted; what became of the jobs of people.

        Args:
            holder: Who does it; default: this user on this machine.

        Raises:
            WrongStateError: There is no head, or more than one.
            JobsNotKeptError: Jobs could not be kept. Ray was not touched.
            JobsNotBackError: Ray was started, and does not take its jobs back yet.
            BackupElsewhereError: They are kept on another machine.
            FleetError: Any other that ``ClusterActs`` raises.
        """
        self._acts.check_restartable()
        first = RestartPhase.KEEPING if self._kept else RestartPhase.RESTARTING
        with self._marker.take(RESTART, first, holder=holder) as held:
            if held.is_resumed:
                self._tell(f"Going on with the restart that was interrupted in phase {held.marker.phase}.")
            backup = self._backup(held)
            if held.marker.phase != RestartPhase.RETURNING:
                self._restart(held, backup)
            found = self._bring_back(held, backup)
            held.finish()
        return found

    def _restart(self, held: MarkerHolding, backup: JobBackup | None) -> None:
        if self._kept is not None:
            is_kept = held.marker.phase == RestartPhase.RESTARTING and backup is not None
            backup = self._keep(held, may_fail=is_kept) or backup
            assert backup is not None
            held.advance(RestartPhase.RESTARTING, **{_HOST: this_host(), _FOLDER: str(backup.folder)})
        elif held.marker.phase != RestartPhase.RESTARTING:
            held.advance(RestartPhase.RESTARTING)
        self._acts.relaunch(held)
        if self._kept is not None:
            held.advance(RestartPhase.RETURNING)

    def _keep(self, held: MarkerHolding, *, may_fail: bool) -> JobBackup | None:
        """Keep what runs now: in a restart that is gone on with, people may have submitted more meanwhile."""
        assert self._kept is not None
        held.check()
        try:
            return self._kept.keep(_restart_id(held), is_anew=not may_fail)
        except JobsNotKeptError as error:
            if not may_fail:
                raise JobsNotKeptError(
                    f"{error} Ray was not touched. If its jobs may end: "
                    f"'tradewind cluster restart {self._cluster.name} --no-preserve-jobs'."
                ) from None
            self._tell(f"The head does not answer; going on with the jobs that were kept before. {error}")
            return None

    def _bring_back(self, held: MarkerHolding, backup: JobBackup | None) -> list[JobReturn]:
        written = self._written(held.marker.details)
        if self._kept is None:
            if written is not None:
                self._tell(f"The jobs that were kept on {written[0]} in {written[1]} are not brought back.")
            return []
        backup = backup or self._backup(held)
        return self._kept.bring_back(backup, held.check) if backup else []

    def _backup(self, held: MarkerHolding) -> JobBackup | None:
        """The backup that the marker names.

        Raises:
            BackupElsewhereError: It is not here.
        """
        written = self._written(held.marker.details)
        if self._kept is None or written is None:
            return None
        host, folder = written
        backup = JobBackup(Path(folder))
        # Once all are back it is deleted, and the marker is done right after: whoever goes on then finds no backup.
        if not backup.is_there and (host != this_host() or held.marker.phase != RestartPhase.RETURNING):
            raise BackupElsewhereError(
                f"Cluster {self._cluster.name}: its jobs are kept on {host} in {folder}, which is not here: go on "
                "there, or give them up with --no-preserve-jobs."
            )
        return backup if backup.is_there else None

    def _written(self, details: Mapping[str, Any]) -> tuple[str, str] | None:
        host, folder = details.get(_HOST), details.get(_FOLDER)
        return (host, folder) if isinstance(host, str) and isinstance(folder, str) else None


def _restart_id(held: MarkerHolding) -> str:
    return held.marker.run[:_ID_LENGTH]
