"""Reads plans and steps from XComs, as plain JSON and never as the objects that they may name."""

from __future__ import annotations

import json
from typing import Any, Final

from airflow.models.xcom import XComModel
from sqlalchemy import Text, cast, func, or_, select
from sqlalchemy.orm import Session

from tradewind.plans.plan import UNPLANNED_KEY, Plan, PlannedStep, UnplannedStep
from tradewind.storage.bounded_read import value_count

PLAN_TASK_ID: Final = "plan"
MAX_PLAN_TASKS: Final = 100
MAX_XCOM_CHARS: Final = 12 << 20
"""Of one XCom, and of all plans of a run that a page shows."""
MAX_XCOM_VALUES: Final = 400_000
"""Values in an XCom: a small object takes 8 characters, and 200 bytes of memory when it is parsed. A plan of 10,000
steps has half as many."""


class UnreadableXComError(ValueError):
    """An XCom is no readable JSON, or too large. The page shows the text."""


def plan_tasks(dag_id: str, run_id: str, session: Session) -> dict[str, int]:
    """Return the tasks that may have left a plan → its characters: one, or one for each group of steps in a user's DAG.

    Of more than ``MAX_PLAN_TASKS``, it returns the first.
    """
    is_plan = or_(XComModel.task_id == PLAN_TASK_ID, XComModel.task_id.endswith(f".{PLAN_TASK_ID}"))
    of_run = (XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == "return_value")
    is_single = XComModel.map_index == -1
    found = select(XComModel.task_id, func.length(cast(XComModel.value, Text))).where(*of_run, is_plan, is_single)
    rows = session.execute(found.order_by(XComModel.task_id).limit(MAX_PLAN_TASKS))
    return {task_id: size or 0 for task_id, size in rows}


def group_of(plan_task: str) -> str:
    """Return what the task ids of the plan's group begin with; empty in a DAG that is one experiment."""
    return plan_task.removesuffix(PLAN_TASK_ID)


def read_plan(dag_id: str, run_id: str, plan_task: str, session: Session) -> Plan | None:
    """Return the plan that a task left; None if its XCom is something else.

    Raises:
        BadPlanError: It is no plan.
        UnreadableXComError: It cannot be read.
    """
    plan = read_xcom(dag_id, run_id, plan_task, "return_value", session)
    return Plan.from_json(plan) if isinstance(plan, dict) and "steps" in plan else None


def read_step(
    dag_id: str, run_id: str, task_id: str, map_index: int, session: Session
) -> PlannedStep | UnplannedStep | None:
    """Return the step of a task: its line of the run's plan, or else what the task reported; None if it is no step.

    Raises:
        BadPlanError: A plan of the run is none.
        UnreadableXComError: It cannot be read.
    """
    for plan_task in plan_tasks(dag_id, run_id, session):
        if not task_id.startswith(group_of(plan_task)):
            continue
        plan = read_plan(dag_id, run_id, plan_task, session)
        if plan is not None and (planned := plan.of_task(task_id)) is not None:
            return planned
    return UnplannedStep.from_json(read_xcom(dag_id, run_id, task_id, UNPLANNED_KEY, session, map_index))


def read_xcom(dag_id: str, run_id: str, task_id: str, key: str, session: Session, map_index: int = -1) -> Any:
    """Read a task's XCom under that key as plain JSON; None if there is none.

    Raises:
        UnreadableXComError: It is no JSON, too large, or nested too deeply.
    """
    row = (
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == key,
    )
    size = session.scalar(select(func.length(cast(XComModel.value, Text))).where(*row))
    if size is not None and size > MAX_XCOM_CHARS:
        limit = f"and a page shows at most {MAX_XCOM_CHARS}"
        raise UnreadableXComError(f"XCom {key!r} of task {task_id!r} has {size} characters, {limit}")
    text = session.scalars(select(cast(XComModel.value, Text)).where(*row)).first()
    if text is None:
        return None
    try:
        value = _parsed(text)
        return _parsed(value) if isinstance(value, str) and value[:1] in "{[" else value
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, _TooManyValuesError) else "is no readable JSON"
        raise UnreadableXComError(f"XCom {key!r} of task {task_id!r} {why}") from None


class _TooManyValuesError(ValueError):
    """The text has more values than a page shows."""


def _parsed(text: str) -> Any:
    if value_count(text) > MAX_XCOM_VALUES:
        raise _TooManyValuesError(f"has more than {MAX_XCOM_VALUES:,} values")
    return json.loads(text)
