"""Which tests share a process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sharing import CLUSTERS, HOUSE_OF, PIPELINES, scope_of

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/airflow/test_nightly.py::test_a[x]", PIPELINES),
        ("tests/airflow/test_hello_world.py::test_b", PIPELINES),
        ("tests/airflow/test_ray_jobs.py::test_c", CLUSTERS),
        ("tests/airflow/test_sweeps.py::test_c", CLUSTERS),
        ("tests/airflow/test_page_access.py::test_d", "tests/airflow/test_page_access.py"),
        ("tests/turns/test_start.py::test_e[a::b]", "tests/turns/test_start.py"),
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
