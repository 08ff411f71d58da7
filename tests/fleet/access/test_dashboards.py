"""Dashboards: opened in parallel, retried when a cluster does not answer, all closed at the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fleet.fleets import many_clusters, write_fleet
from tradewind.fleet.access.dashboards import Dashboards
from tradewind.fleet.cloud.heads import NoHeadError
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.machine import free_port
from tradewind.ray_jobs.cluster import RayCluster


@pytest.fixture
def clusters(tmp_path: Path) -> list[FleetCluster]:
    return list(load_fleet(write_fleet(tmp_path, many_clusters(1), inside=False)).clusters.values())


class Reaching:
    """Connections to clusters: ``here`` leads to a closed port, the other clusters have no head."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.open: set[int] = set()
        self.again = threading.Semaphore(0)

    @contextmanager
    def reach(self, cluster: FleetCluster, port: int) -> Iterator[RayCluster]:
        self.tried[cluster.name] += 1
        self.again.release()
        if cluster.name != "here":
            raise NoHeadError(f"Cluster {cluster.name} has no head.")
        self.open.add(port)
        try:
            yield RayCluster(cluster.name, f"http://127.0.0.1:{free_port()}")
        finally:
            self.open.remove(port)


def test_dashboards_have_own_host_name_and_report_no_answer(clusters: list[FleetCluster]) -> None:
    reaching, messages = Reaching(), []
    with Dashboards(clusters, messages.append, reach=reaching.reach) as dashboards:
        assert [tile.cluster for tile in dashboards.tiles()] == ["here", "extra-0"]
        dashboards.wait_for_first_check()
        here, extra = dashboards.tiles()
    assert here.url.startswith("http://here.localhost:") and extra.url.startswith("http://extra-0.localhost:")
    assert here.why is not None and "does not answer" in here.why and extra.why == "Cluster extra-0 has no head."
    assert sorted(messages)[0] == "extra-0 does not answer: Cluster extra-0 has no head." and len(messages) == 2
    assert not reaching.open


def test_unreachable_dashboard_is_retried_and_reported_once(clusters: list[FleetCluster]) -> None:
    reaching, messages = Reaching(), []
    with Dashboards(clusters, messages.append, reach=reaching.reach, interval_s=0.01):
        while min(reaching.tried[cluster.name] for cluster in clusters) < 3:
            assert reaching.again.acquire(timeout=60.0)
    assert len(messages) == 2 and not reaching.open
    assert not [thread for thread in threading.enumerate() if "_watch" in thread.name]
