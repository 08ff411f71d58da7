"""A task without a plan stores its step as JSON; other JSON values are no step."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.plans.plan import UnplannedStep

STEP = UnplannedStep("exports/rows", "123abc", "/prefix/exports/rows-123abc")


def test_a_step_is_read_as_it_was_written() -> None:
    assert UnplannedStep.from_json(STEP.to_json()) == STEP


@pytest.mark.parametrize("told", [None, "rows", [], {}, {"name": "rows"}, {**STEP.to_json(), "output_path": 1}])
def test_what_is_no_step_is_none(told: Any) -> None:
    assert UnplannedStep.from_json(told) is None
