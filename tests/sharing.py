"""Which process runs which tests, when several do: those that share what is dear to start stay in one.

A file's tests stay together, and so do all tests of a folder in ``HOUSES``, whose files share an Airflow. The longest
come first, so that all processes have work until the end.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

HOUSES: Final = ("tests/airflow/",)
LONGEST: Final = ("tests/airflow/", "tests/chaos/", "tests/recipes/", "tests/cli/", "tests/ray_jobs/", "tests/runtime/")
DEAR: Final = ("airflow", "ray", "slow")
"""Marks of tests that take seconds."""


class SharingScheduling(LoadScopeScheduling):
    """Deals out houses and files, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return next((house for house in HOUSES if nodeid.startswith(house)), nodeid.partition("::")[0])


def longest_first(items: list[pytest.Item]) -> None:
    """Order the files of tests; each keeps the order of its own."""
    dear = {item.path for item in items if any(item.get_closest_marker(mark) for mark in DEAR)}

    def rank(item: pytest.Item) -> tuple[bool, int]:
        place = [number for number, folder in enumerate(LONGEST) if item.nodeid.startswith(folder)]
        return item.path not in dear, place[0] if place else len(LONGEST)

    items.sort(key=rank)
