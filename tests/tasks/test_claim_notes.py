"""A task of an unnamed Airflow stores its claims; the claims of a named Airflow carry its name."""

from __future__ import annotations

from typing import Any

from tests.operators.contexts import Notes
from tradewind.tasks.step_notes import MAX_NOTED_JOBS, ClaimNotes


def notes(deployment: str, store: Notes) -> ClaimNotes:
    context: Any = {"task_state_store": store}
    return ClaimNotes(context, {"deployment": deployment})


def test_last_claims_of_unnamed_airflow_are_noted() -> None:
    store = Notes()
    for number in range(MAX_NOTED_JOBS + 2):
        notes("", store).add(f"job-{number}")
    assert notes("", store).jobs() == tuple(f"job-{number}" for number in range(2, MAX_NOTED_JOBS + 2))


def test_named_airflow_needs_no_notes() -> None:
    store = Notes()
    notes("prod", store).add("job-1")
    assert store == {} and notes("prod", store).jobs() == ()
