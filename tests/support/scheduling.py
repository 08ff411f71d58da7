"""Which process runs which tests, when several do: those that share what is dear to start stay in one.

A file's tests stay together, and so do those of the files of ``HOUSES``, which share an Airflow. The longest come
first, so that all processes have work until the end; but a process more than there are cores begins with the quickest.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

PIPELINES: Final = "tests/airflow, pipelines"
CLUSTERS: Final = "tests/airflow, clusters"
HOUSES: Final = {
    PIPELINES: "bad_input hello_world nightly plan_edges plan_page shared_versions steps_at_work",
    CLUSTERS: "fleet_maintenance marin ray_faults ray_jobs ray_logs ray_tokens restart_figure sweeps",
}
"""Two Airflows, since one after another all of their tests would take longer than everything else. A file that stands
in neither has one of its own, if it asks for one."""
LONGEST: Final = (
    PIPELINES,
    "tests/chaos/test_training",
    CLUSTERS,
    "tests/chaos/",
    "tests/fleet/lifecycle/",
    "tests/airflow/",
    "tests/recipes/",
    "tests/runtime/pods/test_pod.py",
    "tests/runtime/test_step_on_slices.py",
    "tests/cli/",
    "tests/ray_jobs/",
    "tests/runtime/",
)
"""Beginnings of scopes."""
DEEDS: Final = "tests/hostile/"
DEAR: Final = ("airflow", "ray", "slow")
"""Marks of tests that take seconds."""

HOUSE_OF: Final = {f"tests/airflow/test_{name}.py": house for house, names in HOUSES.items() for name in names.split()}


class SharingScheduling(LoadScopeScheduling):
    """Deals out houses and files, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """With a cluster or an Airflow for each process, a slow machine answers none of them in time."""
        if self.nodes.index(node) >= (os.cpu_count() or 1):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def scope_of(nodeid: str) -> str:
    """What stays in one process: the house of a test, or else its file."""
    file = nodeid.partition("::")[0]
    return HOUSE_OF.get(file, file)


def longest_first(items: list[pytest.Item]) -> None:
    """Order the files of tests; each keeps the order of its own.

    The hostile deeds stand at the end, where a process more than there are cores begins: each is a fork, and three
    times as dear in a process that has loaded much.
    """
    dear = {item.path for item in items if any(item.get_closest_marker(mark) for mark in DEAR)}

    def rank(item: pytest.Item) -> tuple[bool, bool, int]:
        scope = scope_of(item.nodeid)
        place = [number for number, beginning in enumerate(LONGEST) if scope.startswith(beginning)]
        is_deed = scope.startswith(DEEDS)
        return is_deed, item.path not in dear, min(place, default=len(LONGEST))

    items.sort(key=rank)
