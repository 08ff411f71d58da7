"""The dashboards of clusters on this machine, one ``ssh`` each, and how each cluster is, looked at now and then.

Each has a host name of its own, ``NAME.localhost``: Ray's dashboard keeps the token in a cookie, and cookies know hosts
but no ports, so that at one host the last token would be sent to all clusters.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from tradewind.fleet.access.reached import reached
from tradewind.fleet.access.tunnel import free_port
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.nodes.nodes import NodeFacts, fetch_nodes
from tradewind.ray_jobs.nodes.slices import hosts_alive

LOOK_S: Final = 15.0
_GRACE_S: Final = 6.0

Reach = Callable[[FleetCluster, int], AbstractContextManager[RayCluster]]


@dataclass(frozen=True)
class DashboardTile:
    """How a cluster is, for who wants its dashboard.

    Attributes:
        url: Where its dashboard is on this machine.
        why: Why it does not answer; None if it does.
        slices: How many slices have live hosts in Ray.
        hosts: How many hosts those are.
        jobs: How many jobs run.
    """

    cluster: str
    region: str
    url: str
    why: str | None = "it was not looked at yet"
    ray_version: str = ""
    slices: int = 0
    hosts: int = 0
    jobs: int = 0


class Dashboards:
    """Those of ``clusters``, open within the block. One whose cluster does not answer is tried again.

    Args:
        tell: Told of each cluster that begins or ceases to answer.
        look_s: How long between two looks.
    """

    def __init__(
        self,
        clusters: Sequence[FleetCluster],
        tell: Callable[[str], None],
        *,
        reach: Reach = reached,
        look_s: float = LOOK_S,
    ) -> None:
        self._tell = tell
        self._reach = reach
        self._look_s = look_s
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._tiles: dict[str, DashboardTile] = {}
        self._looks: dict[str, int] = dict.fromkeys((cluster.name for cluster in clusters), 0)
        self._threads = []
        for cluster in clusters:
            port = free_port()
            url = f"http://{cluster.name}.localhost:{port}"
            self._tiles[cluster.name] = DashboardTile(cluster.name, cluster.region, url)
            self._threads.append(threading.Thread(target=self._keep, args=(cluster, port), daemon=True))

    def tiles(self) -> list[DashboardTile]:
        """How they were when they were looked at last, in the order in which they were given."""
        with self._changed:
            return list(self._tiles.values())

    def wait_for_first_look(self) -> None:
        """Returns when each was looked at, whether it answers or not."""
        with self._changed:
            self._changed.wait_for(lambda: all(self._looks.values()))

    def __enter__(self) -> Dashboards:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """One that is still being opened is not waited for: its ``ssh`` ends by itself once it is through."""
        self._over.set()
        for thread in self._threads:
            thread.join(_GRACE_S)

    def _keep(self, cluster: FleetCluster, port: int) -> None:
        while not self._over.is_set():
            try:
                with self._reach(cluster, port) as there:
                    while not self._over.is_set():
                        self._show(looked_at(cluster, there, self._tiles[cluster.name].url))
                        self._over.wait(self._look_s)
            except (FleetError, RayJobsError, OSError) as error:
                tile = self._tiles[cluster.name]
                self._show(DashboardTile(tile.cluster, tile.region, tile.url, str(error)))
                self._over.wait(self._look_s)

    def _show(self, tile: DashboardTile) -> None:
        with self._changed:
            before, self._tiles[tile.cluster] = self._tiles[tile.cluster], tile
            is_first = not self._looks[tile.cluster]
            self._looks[tile.cluster] += 1
            self._changed.notify_all()
        if tile.why is None and before.why is not None:
            self._tell(f"The dashboard of {tile.cluster} is at {tile.url} until Ctrl-C.")
        elif tile.why is not None and (before.why is None or is_first):
            self._tell(f"{tile.cluster} does not answer: {tile.why}")


def looked_at(cluster: FleetCluster, there: RayCluster, url: str) -> DashboardTile:
    """How ``cluster`` is, whose dashboard people find at ``url``.

    Raises:
        RayJobsError: It does not answer.
    """
    jobs = RayJobs(there)
    hosts = hosts_alive(asyncio.run(_nodes(there)))
    running = sum(job.status == "RUNNING" for job in jobs.jobs())
    version = jobs.version()
    return DashboardTile(cluster.name, cluster.region, url, None, version, len(hosts), sum(hosts.values()), running)


async def _nodes(there: RayCluster) -> list[NodeFacts]:
    async with JobsApi(there) as api:
        return await fetch_nodes(api)
