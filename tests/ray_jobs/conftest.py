"""What several files of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay


@pytest.fixture(scope="package")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayJobs]:
    """The jobs of a head that several files share: their ids differ."""
    stack = LocalStack(tmp_path_factory.mktemp("ray"))
    ray = LocalRay(stack, token="", num_cpus=2)
    try:
        ray.start()
        yield RayJobs(RayCluster("here", ray.address))
    finally:
        stack.stop()
