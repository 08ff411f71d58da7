"""Restart of a cluster in three phases: back up unmanaged jobs, restart Ray, restore the jobs; and wait for readiness.

Each phase is recorded in the cluster lock before it begins, and is repeatable, so the next restart resumes an
interrupted one. Restored jobs have the ID of the lock's run in theirs, which a resumption keeps.

A cluster is ready when its head answers and has as many complete slices of each type as the fleet file wants. A slice
is complete if all its hosts have registered since the head started, and the autoscaler has set it up and updated twice.
At its first update, the autoscaler sets up again slices without contact and slices of another file. Google's label
shows the latter only by the second update.
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
_POLL_S: Final = 3.0
_MIN_UPDATES: Final = 2
"""Updates of the autoscaler before a cluster counts as ready."""


class RestartPhase(StrEnum):
    """Progress of a restart, as its lock has it."""

    KEEPING = "keeping jobs"
    RESTARTING = "restarting Ray"
    RETURNING = "bringing jobs back"


class ClusterRestart:
    """Restarts one cluster.

    Args:
        jobs: Preserves its unmanaged jobs.
        tell: Called with a sentence for each action.
    """

    def __init__(
        self, manager: ClusterManager, marker: ClusterLock, jobs: JobPreservation, tell: Callable[[str], None]
    ) -> None:
        self._manager = manager
        self._marker = marker
        self._jobs = jobs
        self._tell = tell

    def run(self, *, holder: str | None = None) -> list[RestoreResult]:
        """Restart the cluster, or resume an interrupted restart; return the results of its unmanaged jobs.

        Args:
            holder: Name of the lock's holder; default: this user on this machine.

        Raises:
            WrongStateError: There is no head, and no restart was interrupted; or there is more than one.
            JobBackupError: Jobs could not be backed up. Ray was not touched.
            JobRestoreError: Ray was started, and does not accept its jobs yet.
            AbandonedJobsError: The jobs' backup is on another machine, and the user did not agree to abandon them.
            FleetError: Any other that ``ClusterManager`` raises.
        """
        over = self._marker.read()
        self._jobs.prune(over)
        is_begun = over is not None and over.is_interrupted and over.marker.operation == RESTART
        self._manager.check_restartable(is_begun=is_begun)
        first = RestartPhase.KEEPING if self._jobs.is_to_keep else RestartPhase.RESTARTING
        with self._marker.take(RESTART, first, holder=holder) as held:
            if held.is_resumed:
                self._tell(f"Resuming the restart that was interrupted in phase {held.marker.phase}.")
            if held.marker.phase != RestartPhase.RETURNING or not self._manager.inventory().heads:
                held.advance(RestartPhase.RESTARTING, **self._jobs.back_up(held))
                self._manager.relaunch(held)
                held.advance(RestartPhase.RETURNING)
            results = self._jobs.restore(held)
            held.finish()
        return results


class NotReadyError(FleetError):
    """A cluster is not ready yet; it may still become ready."""


def complete_slice_counts(nodes: Iterable[NodeInfo], in_cloud: Iterable[TpuNode]) -> Counter[str]:
    """Return slice type → number of slices with all hosts in Ray that the autoscaler is not setting up.

    Args:
        in_cloud: The slices in Google Cloud.
    """
    being_set_up = {one.name for one in in_cloud if one.is_of_autoscaler and one.labels.get(STATUS_LABEL) != SET_UP}
    return Counter(
        one.slice_type
        for one in registered_slices(nodes)
        if one.slice_type in SLICE_TYPES
        and one.hosts >= SLICE_TYPES[one.slice_type].hosts
        and one.name not in being_set_up
    )


def missing_slices(cluster: FleetCluster, whole: Mapping[str, int]) -> str:
    """Describe the types with too few slices; empty if there are none."""
    counts = [(pool.kind.name, pool.minimum, whole.get(pool.kind.name, 0)) for pool in cluster.pools]
    return ", ".join(f"{count} of {minimum} {name}" for name, minimum, count in counts if count < minimum)


class Readiness:
    """Waits for clusters.

    Args:
        reach: Connects to a cluster.
        tell: Called with a sentence at each change.
        fetch: Returns the nodes of a head.
        slices: Returns the slices of a cluster in Google Cloud.
        clock: A monotonic clock, in seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = connected,
        fetch: Callable[[RayCluster], HeadView] | None = None,
        slices: Callable[[FleetCluster], Iterable[TpuNode]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tell = tell
        self._reach = reach
        self._fetch = fetch or (lambda connection: asyncio.run(_view(connection)))
        self._slices = slices or (lambda one: CloudZone(one.project, one.zone).inventory().of(one.name).slices)
        self._clock = clock
        self._sleep = sleep

    def wait(self, cluster: FleetCluster, timeout_s: float) -> None:
        """Wait until ``cluster`` is ready.

        Raises:
            NotReadyError: It is not after ``timeout_s``.
        """
        deadline, is_reported = self._clock() + timeout_s, False
        while True:
            try:
                with self._reach(cluster) as connection:
                    self._tell(f"The head of {cluster.name} answers.")
                    return self._wait_for_slices(cluster, connection, deadline)
            except NotReadyError:
                raise
            except (FleetError, RayJobsError) as error:
                if not is_reported:
                    self._tell(f"Waiting for the head of {cluster.name} to answer.")
                    is_reported = True
                if self._clock() >= deadline:
                    raise NotReadyError(
                        f"Cluster {cluster.name}: its head does not answer after {timeout_s:.0f} s: {error}"
                    ) from None
            self._sleep(_POLL_S)

    def _wait_for_slices(self, cluster: FleetCluster, connection: RayCluster, deadline: float) -> None:
        reported, updates = "", set[float]()
        while missing := self._missing(cluster, connection, updates):
            if missing != reported:
                self._tell(f"Slices in Ray: {(reported := missing)}.")
            if self._clock() >= deadline:
                raise NotReadyError(
                    f"Cluster {cluster.name}: slices in Ray by now: {missing}. Its autoscaler continues by itself: "
                    f"'tradewind cluster status {cluster.name}' shows the progress."
                )
            self._sleep(_POLL_S)

    def _missing(self, cluster: FleetCluster, connection: RayCluster, updates: set[float]) -> str:
        """Describe the missing slices; ``updates`` are the times of the autoscaler's updates so far."""
        if not missing_slices(cluster, {}):
            return ""
        view = self._fetch(connection)
        if view.updated_at is not None:
            updates.add(view.updated_at)
        if few := missing_slices(cluster, complete_slice_counts(view.nodes, self._slices(cluster))):
            return few
        return "" if len(updates) >= _MIN_UPDATES else "all, which the autoscaler has not checked yet"


async def _view(connection: RayCluster) -> HeadView:
    async with JobsApi(connection) as api:
        return await fetch_view(api)
