"""Fixtures that several files of this folder share."""

from __future__ import annotations

import pytest

from tests.support.shared_clusters import shared_cluster
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster


@pytest.fixture(scope="module")
def jobs() -> RayJobs:
    """Return the jobs of the cluster without a token, which several files share."""
    return RayJobs(RayCluster("here", shared_cluster("open").address))
