"""A point of a sweep that fails stops no other, and the step that compares them names it."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import House

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def test_a_failed_point_is_named_and_the_next_run_makes_it_and_compares_again(house: House) -> None:
    run = house.run("sweep")
    assert run.state == "failed"
    assert run.states() == {
        "plan": "success",
        "sweep_0.1": "success",
        "sweep_0.5": "success",
        "sweep_2.0": "failed",
        "sweep_table": "failed",
    }
    told = run.log("sweep_table")
    assert "rate=0.1  0.1" in told
    assert "1 of 3 runs have no result: rate=2.0 (failed: ValueError: this rate is above all)." in told
    assert "rate=0.5" in (house.output("sweep/table") / "comparison.md").read_text()

    again = house.run("sweep", {"is_mended": True})
    assert again.decisions() == {
        "sweep_0.1": "REUSE",
        "sweep_0.5": "REUSE",
        "sweep_2.0": "RUN",
        "sweep_table": "RUN",
    }
    assert (again.state, house.attempts("sweep/2.0"), house.attempts("sweep/table")) == ("success", 2, 2)
    assert "rate=2" in (house.output("sweep/table") / "comparison.md").read_text()
