"""A step's line of its run's plan, as its task reads it, and its replacement without a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow.sdk import Context

from tradewind.plans.plan import UNPLANNED_KEY, BadPlanError, Plan, PlannedStep, UnplannedStep, chunk_key, planned_in
from tradewind.steps import ResolvedStep
from tradewind.tasks.address import clears_now
from tradewind.tasks.errors import PlanOutdatedError

_SKIPPED_KEY: Final = "left_alone"
_VALUES_KEY: Final = "values"


def push_plan(context: Context, plan: Plan, chunks: dict[str, dict[str, Any]]) -> None:
    """Push the plan as the ``plan`` task's XCom: whole for users, in chunks for steps' tasks, if any has work."""
    ti: Any = context["ti"]
    ti.xcom_push(key="return_value", value=plan.to_json())
    for key, chunk in chunks.items():
        ti.xcom_push(key=key, value=chunk)


def push_values(context: Context, values: Mapping[str, Any]) -> None:
    """Push the values that the plan of a group was made with, for its other tasks."""
    ti: Any = context["ti"]
    ti.xcom_push(key=_VALUES_KEY, value=dict(values))


def pull_values(context: Context, plan_task_id: str) -> dict[str, Any] | None:
    """Return the values that the plan of a group was made with; None without a plan."""
    ti: Any = context["ti"]
    values: Any = ti.xcom_pull(task_ids=plan_task_id, key=_VALUES_KEY)
    return values if isinstance(values, dict) else None


def planned_step(context: Context, plan_task_id: str, index: int) -> PlannedStep | None:
    """Return line ``index`` of the plan for the present task; None if there is no plan.

    A plan without work has no chunks: a task that is cleared after it reads the whole plan.

    Raises:
        PlanOutdatedError: The XCom is not a plan.
    """
    ti: Any = context["ti"]
    chunk = ti.xcom_pull(task_ids=plan_task_id, key=chunk_key(index)) or ti.xcom_pull(task_ids=plan_task_id)
    try:
        return planned_in(chunk, ti.task_id) if chunk else None
    except BadPlanError as error:
        raise PlanOutdatedError(str(error)) from None


def whole_plan(context: Context, plan_task_id: str) -> Plan:
    """Return the run's plan.

    Raises:
        PlanOutdatedError: The XCom is not a plan.
    """
    ti: Any = context["ti"]
    try:
        return Plan.from_json(ti.xcom_pull(task_ids=plan_task_id))
    except BadPlanError as error:
        raise PlanOutdatedError(str(error)) from None


def push_skipped_tasks(context: Context, task_ids: Sequence[str]) -> None:
    """List the tasks that the plan skips; Airflow spares those that run by then."""
    ti: Any = context["ti"]
    ti.xcom_push(key=_SKIPPED_KEY, value={"task_ids": list(task_ids), "clear_number": clears_now(context)})


def was_skipped_by_plan(context: Context, plan_task_id: str) -> bool:
    """Whether the plan would skip the present task, and no user has cleared a task of the run since."""
    ti: Any = context["ti"]
    skipped: Any = ti.xcom_pull(task_ids=plan_task_id, key=_SKIPPED_KEY) or {}
    return ti.task_id in skipped.get("task_ids", []) and skipped.get("clear_number") == clears_now(context)


def push_unplanned(context: Context, step: ResolvedStep) -> None:
    """Push which step the present task makes, where there is no plan."""
    ti: Any = context["ti"]
    ti.xcom_push(key=UNPLANNED_KEY, value=UnplannedStep.of(step).to_json())
