"""Assign tests to processes: one process runs a file, or all files that share an Airflow or cluster.

The most expensive scopes start first, so that all processes have work until the end. A process beyond the number of
cores starts with the cheapest scope, since no machine can start that many clusters at the same time.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

OPEN: Final = "one Ray cluster, open"
GUARDED: Final = "one Ray cluster, guarded"
PODS: Final = "one Ray cluster, pods"
SLICES: Final = "one Ray cluster, slices"
SHARED: Final = {
    "tests/airflow/": "one Airflow",
    "tests/cli/jobs/test_in_airflow.py": OPEN,
    "tests/cli/jobs/test_on_ray.py": OPEN,
    "tests/cli/test_serve_on_ray.py": OPEN,
    "tests/evaluation/test_faults_on_ray.py": OPEN,
    "tests/ray_jobs/follow/test_endings.py": OPEN,
    "tests/ray_jobs/follow/test_follow.py": OPEN,
    "tests/ray_jobs/follow/test_refusals.py": OPEN,
    "tests/ray_jobs/follow/test_watch.py": OPEN,
    "tests/ray_jobs/test_demand.py": OPEN,
    "tests/ray_jobs/test_working_dir.py": OPEN,
    "tests/runtime/driver/test_awaiting.py": OPEN,
    "tests/serialization/test_shipping.py": OPEN,
    "tests/serving/test_generate_on_ray.py": OPEN,
    "tests/serving/test_pool.py": OPEN,
    "tests/tasks/jobs/test_placement.py": OPEN,
    "tests/cli/fleet/test_dashboard.py": GUARDED,
    "tests/cli/jobs/test_on_guarded_ray.py": GUARDED,
    "tests/deployment/test_ray_connection.py": GUARDED,
    "tests/ray_jobs/follow/test_stopping.py": GUARDED,
    "tests/ray_jobs/test_client.py": GUARDED,
    "tests/runtime/pods/test_functions.py": PODS,
    "tests/runtime/pods/test_pod.py": PODS,
    "tests/runtime/test_host_sweep.py": SLICES,
    "tests/evaluation/test_levanter_on_slices.py": SLICES,
    "tests/runtime/test_step_on_slices.py": SLICES,
}
"""Path prefix -> scope; a file without an entry is a scope of its own."""
FIRST: Final = ("one Airflow", "one Ray cluster", "tests/recipes/", "tests/runtime/", "tests/cli/", "tests/ray_jobs/")
"""Prefixes of the most expensive scopes."""
DEAR: Final = ("airflow", "ray", "slow")


class SharingScheduling(LoadScopeScheduling):
    """Distribute scopes in the order in which pytest collected the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.nodes.index(node) >= (os.cpu_count() or 1):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def scope_of(nodeid: str) -> str:
    """Return the scope of a test's file."""
    file = nodeid.partition("::")[0]
    return next((scope for beginning, scope in SHARED.items() if file.startswith(beginning)), file)


def longest_first(items: list[pytest.Item]) -> None:
    """Order the scopes; the tests of each keep their order.

    The hostile tables run last: each test forks, and a fork of a process that has loaded many modules costs three times
    as much.
    """
    dear = {scope_of(item.nodeid) for item in items if any(item.get_closest_marker(mark) for mark in DEAR)}

    def rank(item: pytest.Item) -> tuple[bool, bool, int, str]:
        scope = scope_of(item.nodeid)
        place = next((number for number, begin in enumerate(FIRST) if scope.startswith(begin)), len(FIRST))
        return scope.startswith("tests/hostile/"), scope not in dear, place, scope

    items.sort(key=rank)
