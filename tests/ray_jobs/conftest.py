"""What several files of this folder share."""

from __future__ import annotations

import pytest

from tests.support.shared_clusters import shared_cluster
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster


@pytest.fixture(scope="module")
def jobs() -> RayJobs:
    """The jobs of the open cluster that several files share."""
    return RayJobs(RayCluster("here", shared_cluster("open").address))
