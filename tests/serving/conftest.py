"""Ray for tests of pools: the cluster that several files share, with this process as its driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.pods.cluster import driver_on
from tests.support.shared_clusters import shared_cluster


@pytest.fixture(scope="module")
def ray_driver() -> Iterator[None]:
    """Connect this process to the shared cluster without a token, which has two CPUs."""
    with driver_on(shared_cluster("open")):
        yield
