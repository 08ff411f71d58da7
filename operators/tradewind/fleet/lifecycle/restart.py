"""A restart of a cluster in three phases: the jobs of people are kept, Ray is started anew, the jobs are brought back.

Each phase is written into the marker before it begins, and each bears being done again, so a restart that was
interrupted is gone on with by the next. The ids of the jobs that come back are those of the marker's run, which stays.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tradewind.fleet.lifecycle.acts import ClusterActs
from tradewind.fleet.lifecycle.preserving.preserved_jobs import PreservedJobs
from tradewind.fleet.marker import ClusterMarker
from tradewind.ray_jobs.keeping.returning import JobReturn

RESTART: Final = "restart"


class RestartPhase(StrEnum):
    """How far a restart has come, as its marker says it."""

    KEEPING = "keeping jobs"
    RESTARTING = "restarting Ray"
    RETURNING = "bringing jobs back"


class ClusterRestart:
    """Restarts one cluster.

    Args:
        jobs: Those of people there.
        tell: Given a sentence for each thing that is done.
    """

    def __init__(
        self, acts: ClusterActs, marker: ClusterMarker, jobs: PreservedJobs, tell: Callable[[str], None]
    ) -> None:
        self._acts = acts
        self._marker = marker
        self._jobs = jobs
        self._tell = tell

    def run(self, *, holder: str | None = None) -> list[JobReturn]:
        """Restart it, or go on with a restart that was interrupted; what became of the jobs of people.

        Args:
            holder: Who does it; default: this user on this machine.

        Raises:
            WrongStateError: There is no head, and no restart was interrupted; or there is more than one.
            JobsNotKeptError: Jobs could not be kept. Ray was not touched.
            JobsNotBackError: Ray was started, and does not take its jobs back yet.
            JobsLeftBehindError: They are kept elsewhere, and nobody said that they may be left there.
            FleetError: Any other that ``ClusterActs`` raises.
        """
        over = self._marker.read()
        self._jobs.tidy(over)
        is_begun = over is not None and over.is_interrupted and over.marker.operation == RESTART
        self._acts.check_restartable(is_begun=is_begun)
        first = RestartPhase.KEEPING if self._jobs.is_to_keep else RestartPhase.RESTARTING
        with self._marker.take(RESTART, first, holder=holder) as held:
            if held.is_resumed:
                self._tell(f"Going on with the restart that was interrupted in phase {held.marker.phase}.")
            if held.marker.phase != RestartPhase.RETURNING or not self._acts.inventory().heads:
                held.advance(RestartPhase.RESTARTING, **self._jobs.keep(held))
                self._acts.relaunch(held)
                held.advance(RestartPhase.RETURNING)
            found = self._jobs.bring_back(held)
            held.finish()
        return found
