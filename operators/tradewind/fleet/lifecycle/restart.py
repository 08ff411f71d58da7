"""A restart of a cluster in three phases: the jobs of people are kept, Ray is started anew, the jobs are brought back.

Each phase is written into the marker before it begins, and each bears being done again, so a restart that was
interrupted is gone on with by the next. The ids of the jobs that come back are those of the marker's run, which stays.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Final

from tradewind.cloud_tpu.resources import TpuNode
from tradewind.cloud_tpu.slice_types import SLICE_TYPES
from tradewind.fleet.access.connect import connected
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager
from tradewind.fleet.lifecycle.inventory import SET_UP, STATUS_LABEL, CloudZone
from tradewind.fleet.lifecycle.job_preservation import JobPreservation
from tradewind.fleet.lock import ClusterLock
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.job_restore import RestoreResult
from tradewind.ray_jobs.nodes import HeadView, NodeInfo, fetch_view, registered_slices

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
        self, acts: ClusterManager, marker: ClusterLock, jobs: JobPreservation, tell: Callable[[str], None]
    ) -> None:
        self._acts = acts
        self._marker = marker
        self._jobs = jobs
        self._tell = tell

    def run(self, *, holder: str | None = None) -> list[RestoreResult]:
        """Restart it, or go on with a restart that was interrupted; what became of the jobs of people.

        Args:
            holder: Who does it; default: this user on this machine.

        Raises:
            WrongStateError: There is no head, and no restart was interrupted; or there is more than one.
            JobBackupError: Jobs could not be kept. Ray was not touched.
            JobRestoreError: Ray was started, and does not take its jobs back yet.
            AbandonedJobsError: They are kept elsewhere, and nobody said that they may be left there.
            FleetError: Any other that ``ClusterManager`` raises.
        """
        over = self._marker.read()
        self._jobs.prune(over)
        is_begun = over is not None and over.is_interrupted and over.marker.operation == RESTART
        self._acts.check_restartable(is_begun=is_begun)
        first = RestartPhase.KEEPING if self._jobs.is_to_keep else RestartPhase.RESTARTING
        with self._marker.take(RESTART, first, holder=holder) as held:
            if held.is_resumed:
                self._tell(f"Going on with the restart that was interrupted in phase {held.marker.phase}.")
            if held.marker.phase != RestartPhase.RETURNING or not self._acts.inventory().heads:
                held.advance(RestartPhase.RESTARTING, **self._jobs.back_up(held))
                self._acts.relaunch(held)
                held.advance(RestartPhase.RETURNING)
            found = self._jobs.restore(held)
            held.finish()
        return found


# When a cluster is ready: its head answers, and as many slices of each type are whole as the fleet file wants.
#
# A slice counts if all its hosts have told the head of themselves since that was started, and the autoscaler has set it
# up and looked at it twice: at its first look it begins to set up again what it has lost contact with, and what another
# file has set up, which Google's label says by the second one.

_LOOK_S: Final = 3.0
_LOOKS: Final = 2
"""How often the autoscaler must have looked."""


class NotReadyError(FleetError):
    """A cluster is not ready yet; nothing is lost, and it may still become so."""


def complete_slice_counts(nodes: Iterable[NodeInfo], there: Iterable[TpuNode]) -> Counter[str]:
    """Slice type → how many slices have all their hosts in Ray, and are not being set up by the autoscaler.

    Args:
        there: The slices as Google Cloud has them.
    """
    in_work = {one.name for one in there if one.is_of_autoscaler and one.labels.get(STATUS_LABEL) != SET_UP}
    return Counter(
        one.slice_type
        for one in registered_slices(nodes)
        if one.slice_type in SLICE_TYPES and one.hosts >= SLICE_TYPES[one.slice_type].hosts and one.name not in in_work
    )


def missing_slices(cluster: FleetCluster, whole: Mapping[str, int]) -> str:
    """Of which types there are too few, in words; empty if of none."""
    wanted = {pool.kind.name: pool.minimum for pool in cluster.pools if pool.minimum}
    few = [f"{whole.get(name, 0)} of {least} {name}" for name, least in wanted.items() if whole.get(name, 0) < least]
    return ", ".join(few)


class Readiness:
    """Waits for clusters.

    Args:
        reach: Opens the way to a cluster.
        tell: Given a sentence whenever something has changed.
        look: Asks a head for its nodes.
        slices: The slices of a cluster as Google Cloud has them.
        clock: Seconds that only grow.
        sleep: Waits.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = connected,
        look: Callable[[RayCluster], HeadView] | None = None,
        slices: Callable[[FleetCluster], Iterable[TpuNode]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tell = tell
        self._reach = reach
        self._look = look or (lambda there: asyncio.run(_view(there)))
        self._slices = slices or _slices_in_cloud
        self._clock = clock
        self._sleep = sleep

    def wait(self, cluster: FleetCluster, timeout_s: float) -> None:
        """Returns when ``cluster`` is ready.

        Raises:
            NotReadyError: It is not after ``timeout_s``.
        """
        deadline, is_told = self._clock() + timeout_s, False
        while True:
            try:
                with self._reach(cluster) as there:
                    self._tell(f"The head of {cluster.name} answers.")
                    return self._wait_for_slices(cluster, there, deadline)
            except NotReadyError:
                raise
            except (FleetError, RayJobsError) as error:
                if not is_told:
                    self._tell(f"Waiting for the head of {cluster.name} to answer.")
                    is_told = True
                if self._clock() >= deadline:
                    raise NotReadyError(
                        f"Cluster {cluster.name}: its head does not answer after {timeout_s:.0f} s: {error}"
                    ) from None
            self._sleep(_LOOK_S)

    def _wait_for_slices(self, cluster: FleetCluster, there: RayCluster, deadline: float) -> None:
        told, looks = "", set[float]()
        while missing := self._missing(cluster, there, looks):
            if missing != told:
                self._tell(f"Slices in Ray: {(told := missing)}.")
            if self._clock() >= deadline:
                raise NotReadyError(
                    f"Cluster {cluster.name}: slices in Ray by now: {missing}. Its autoscaler goes on by itself: "
                    f"'tradewind cluster status {cluster.name}' shows how far that is."
                )
            self._sleep(_LOOK_S)

    def _missing(self, cluster: FleetCluster, there: RayCluster, looks: set[float]) -> str:
        """What is missing now, in words; ``looks`` are those of the autoscaler that were seen before."""
        if not missing_slices(cluster, {}):
            return ""
        view = self._look(there)
        if view.looked_at is not None:
            looks.add(view.looked_at)
        if few := missing_slices(cluster, complete_slice_counts(view.nodes, self._slices(cluster))):
            return few
        return "" if len(looks) >= _LOOKS else "all, at which the autoscaler has still to look"


async def _view(there: RayCluster) -> HeadView:
    async with JobsApi(there) as api:
        return await fetch_view(api)


def _slices_in_cloud(cluster: FleetCluster) -> Iterable[TpuNode]:
    return CloudZone(cluster.project, cluster.zone).inventory().of(cluster.name).slices
