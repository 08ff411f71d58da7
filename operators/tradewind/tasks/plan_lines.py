"""A step's line of its run's plan, as the step's task reads it, and what a task without a plan says instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from airflow.sdk import Context

from tradewind.plans.plan import UNPLANNED_KEY, BadPlanError, Plan, PlannedStep, UnplannedStep, chunk_key, planned_in
from tradewind.steps import ResolvedStep
from tradewind.tasks.address import clears_now
from tradewind.tasks.errors import PlanOutdatedError

_LEFT_ALONE: Final = "left_alone"


def push_plan(context: Context, plan: Plan, pieces: dict[str, dict[str, Any]]) -> None:
    """Make the plan the ``plan`` task's XCom: whole for people, in pieces for the steps' tasks, if any has work."""
    ti: Any = context["ti"]
    ti.xcom_push(key="return_value", value=plan.to_json())
    for key, piece in pieces.items():
        ti.xcom_push(key=key, value=piece)


def planned_step(context: Context, plan_task_id: str, index: int) -> PlannedStep | None:
    """The line of the present task, which is the plan's number ``index``; None where no plan was made.

    A plan that left nothing to do has no pieces: whoever is cleared after it reads the whole.

    Raises:
        PlanOutdatedError: What is there is no plan.
    """
    ti: Any = context["ti"]
    piece = ti.xcom_pull(task_ids=plan_task_id, key=chunk_key(index)) or ti.xcom_pull(task_ids=plan_task_id)
    try:
        return planned_in(piece, ti.task_id) if piece else None
    except BadPlanError as error:
        raise PlanOutdatedError(str(error)) from None


def push_skipped_tasks(context: Context, task_ids: Sequence[str]) -> None:
    """Tell the tasks that the plan skips, of which Airflow spares those that are at work by then."""
    ti: Any = context["ti"]
    ti.xcom_push(key=_LEFT_ALONE, value={"task_ids": list(task_ids), "clear_number": clears_now(context)})


def was_skipped_by_plan(context: Context, plan_task_id: str) -> bool:
    """Whether the plan would have skipped the present task, and nobody has cleared a task of the run since."""
    ti: Any = context["ti"]
    left: Any = ti.xcom_pull(task_ids=plan_task_id, key=_LEFT_ALONE) or {}
    return ti.task_id in left.get("task_ids", []) and left.get("clear_number") == clears_now(context)


def push_unplanned(context: Context, step: ResolvedStep) -> None:
    """Tell which step the present task makes, where no plan does."""
    ti: Any = context["ti"]
    ti.xcom_push(key=UNPLANNED_KEY, value=UnplannedStep.of(step).to_json())
