"""Which tests share a process."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.scheduling import CLUSTERS, HOUSE_OF, PIPELINES, SharingScheduling, scope_of

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/airflow/test_nightly.py::test_a[x]", PIPELINES),
        ("tests/airflow/test_hello_world.py::test_b", PIPELINES),
        ("tests/airflow/test_ray_jobs.py::test_c", CLUSTERS),
        ("tests/airflow/test_sweeps.py::test_c", CLUSTERS),
        ("tests/airflow/test_page_access.py::test_d", "tests/airflow/test_page_access.py"),
        ("tests/attempts/test_start.py::test_e[a::b]", "tests/attempts/test_start.py"),
    ],
)
def test_files_that_share_an_airflow_stay_together_and_so_do_the_tests_of_a_file(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_the_files_of_the_houses_are_those_that_ask_for_one() -> None:
    asking = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests" / "airflow").glob("test_*.py")
        if re.search(r"\bhouse: House\b", file.read_text())
    }
    assert asking == set(HOUSE_OF)


class Process:
    """One that does the work, as the scheduling sees it."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.tests: list[int] = []

    def send_runtest_some(self, tests: Sequence[int]) -> None:
        self.tests += tests


def test_a_process_more_than_there_are_cores_begins_with_the_quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    options: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * 3, option=SimpleNamespace(loadscopereorder=False))
    scheduling, processes = SharingScheduling(options), [Process() for _ in range(3)]
    tests = [f"tests/test_{file}.py::test_{number}" for file in "abcde" for number in range(3)]
    for process in processes:
        scheduling.add_node(process)
        scheduling.add_node_collection(process, tests)
    scheduling.schedule()
    assert [{tests[number][:15] for number in process.tests} for process in processes] == [
        {"tests/test_a.py"}, {"tests/test_b.py"}, {"tests/test_e.py"},
    ]  # fmt: skip
