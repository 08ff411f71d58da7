"""What a step's task notes when it ends green, and what it reads from that when it comes back.

Airflow keeps the note across retries and Clear. Clear raises a task's ``max_tries`` and a crash does not: that tells a
person who wants the step made again from a worker that died between its note and its end. A step that Airflow cleared
only because a step above it was cleared is told by its upstream tasks, whose result says how many tries they have had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context

from tradewind.plans.plan import PlannedStep
from tradewind.plans.start import Asked
from tradewind.runtime.step_turns import StepTurns

if TYPE_CHECKING:
    from tradewind.operators.step import StepOperator

NOTE: Final = "finished"
"""Key of the note in the task state store."""
TRIES: Final = "max_tries"


class StepNotes:
    """The notes of one task."""

    def __init__(self, context: Context, operator: StepOperator) -> None:
        self._context = context
        self._operator = operator

    def finished(self, output_path: str, attempt: int) -> dict[str, Any]:
        """Note that the task ends green with ``attempt``; returns the task's XCom."""
        tries = self._context["ti"].max_tries
        note: Any = {"attempt": attempt, TRIES: tries, "upstream": self._upstream_tries()}
        self._context["task_state_store"].set(NOTE, note)
        return {"output_path": output_path, "attempt": attempt, TRIES: tries}

    def told_of(self, attempt: int) -> bool:
        """Whether an earlier try ended green with ``attempt``, and not only noted it before it died."""
        note: Any = self._context["task_state_store"].get(NOTE) or {}
        return bool(note.get("attempt") == attempt and self._context["ti"].max_tries > note[TRIES])

    def asked(self, planned: PlannedStep | None, turns: StepTurns) -> Asked:
        """What is asked of this task."""
        note: Any = self._context["task_state_store"].get(NOTE) or {}
        return replace(
            Asked.by_plan(planned),
            finished_attempt=note.get("attempt"),
            tries_allowed_then=note.get(TRIES, 0),
            tries_allowed_now=self._context["ti"].max_tries,
            came_along=self._came_along(note, turns),
        )

    def _came_along(self, note: Mapping[str, Any], turns: StepTurns) -> bool:
        if not note or self._context["ti"].max_tries <= note[TRIES]:
            return False
        then, now = note.get("upstream", {}), self._upstream_tries()
        was_cleared_above = any(tries > then.get(task_id, -1) for task_id, tries in now.items())
        return was_cleared_above and turns.inputs_are_those_of(note["attempt"])

    def _upstream_tries(self) -> dict[str, int]:
        """Task id -> tries of each step above that ran in this run; a skipped one has none."""
        task_ids = sorted(self._operator.upstream_task_ids - {self._operator.plan_task_id})
        if not task_ids:
            return {}
        results: Any = self._context["ti"].xcom_pull(task_ids=task_ids)
        pairs = zip(task_ids, results, strict=True)
        return {task_id: result[TRIES] for task_id, result in pairs if isinstance(result, dict) and TRIES in result}
