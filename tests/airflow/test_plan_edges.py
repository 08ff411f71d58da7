"""What a step without an edge from ``plan`` does when a person clears it together with ``plan``."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import House

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def test_a_finished_step_cleared_together_with_the_plan_is_skipped_by_the_new_plan(house: House) -> None:
    run = house.run("two_steps")
    assert run.states() == {"plan": "success", "two_first": "success", "two_second": "success"}
    house.api.clear_task("two_steps", run.run_id, "plan", "two_second")
    run.wait()
    assert run.states() == {"plan": "success", "two_first": "success", "two_second": "skipped"}
    assert house.attempts("two/second") == 1
    assert house.run("two_steps").states() == {"plan": "success", "two_first": "skipped", "two_second": "skipped"}
