"""A task of an unnamed Airflow stores its claims; the claims of a named Airflow carry its name."""

from __future__ import annotations

from typing import Any

from tests.operators.contexts import Notes
from tradewind.tasks.step_notes import MAX_NOTED_JOBS, ClaimNotes


def notes(deployment: str, kept: Notes) -> ClaimNotes:
    context: Any = {"task_state_store": kept}
    return ClaimNotes(context, {"deployment": deployment})


def test_the_last_claims_are_noted_and_not_only_the_last() -> None:
    kept = Notes()
    for number in range(MAX_NOTED_JOBS + 2):
        notes("", kept).add(f"job-{number}")
    assert notes("", kept).jobs() == tuple(f"job-{number}" for number in range(2, MAX_NOTED_JOBS + 2))


def test_an_airflow_with_a_name_needs_no_notes() -> None:
    kept = Notes()
    notes("prod", kept).add("job-1")
    assert kept == {} and notes("prod", kept).jobs() == ()
