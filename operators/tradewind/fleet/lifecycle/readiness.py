"""When a cluster is ready: its head answers, and as many slices of each type are whole as the fleet file wants."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from tradewind.cloud_tpu.slice_types import SLICE_TYPES
from tradewind.fleet.access.reached import reached
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.nodes.nodes import NodeFacts, fetch_nodes
from tradewind.ray_jobs.nodes.slices import registered_slices

_LOOK_S: Final = 3.0


class NotReadyError(FleetError):
    """A cluster is not ready yet; nothing is lost, and it may still become so."""


def whole_slices(nodes: Iterable[NodeFacts]) -> Counter[str]:
    """Slice type → how many slices have all their hosts in Ray."""
    return Counter(
        one.slice_type
        for one in registered_slices(nodes)
        if one.slice_type in SLICE_TYPES and one.hosts >= SLICE_TYPES[one.slice_type].hosts
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
        clock: Seconds that only grow.
        sleep: Waits.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = reached,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tell = tell
        self._reach = reach
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
        told = ""
        while few := missing_slices(cluster, whole_slices(asyncio.run(_nodes(there)))):
            if few != told:
                self._tell(f"Slices in Ray: {(told := few)}.")
            if self._clock() >= deadline:
                raise NotReadyError(
                    f"Cluster {cluster.name}: {few} are in Ray by now. Its autoscaler goes on asking for the others: "
                    f"'tradewind cluster status {cluster.name}' shows how far that is."
                )
            self._sleep(_LOOK_S)


async def _nodes(there: RayCluster) -> list[NodeFacts]:
    async with JobsApi(there) as api:
        return await fetch_nodes(api)
