"""Which tests share a process."""

from __future__ import annotations

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
        ("tests/airflow/test_page_access.py::test_d", "tests/airflow/test_page_access.py"),
        ("tests/turns/test_start.py::test_e[a::b]", "tests/turns/test_start.py"),
    ],
)
def test_files_that_share_an_airflow_stay_together_and_so_do_the_tests_of_a_file(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_every_file_of_a_house_is_there_and_asks_for_it() -> None:
    for file in HOUSE_OF:
        assert "house" in (ROOT / file).read_text(), file
