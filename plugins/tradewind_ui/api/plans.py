"""The plans of a run: what runs, what is reused, and why; and one step beside its earlier versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import State
from fastapi import APIRouter, HTTPException, Response
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from tradewind.plans.plan import BadPlanError, Plan, PlannedStep
from tradewind.plans.step_history import (
    MAX_CHUNKS,
    VERSIONS_KEY,
    StepHistory,
    parse_version_chunk,
    read_step_history,
)
from tradewind.plans.version_records import Version
from tradewind.storage import OutsideRootsError, StorageError
from tradewind_ui.api.json_response import JsonResponse
from tradewind_ui.api.security import READS_RUN
from tradewind_ui.api.step_outputs import READS_PLANS, READS_STORE
from tradewind_ui.api.xcoms import (
    MAX_PLAN_TASKS,
    MAX_XCOM_CHARS,
    PLAN_TASK_ID,
    UnreadableXComError,
    group_of,
    plan_tasks,
    read_plan,
    read_xcom,
)

T = TypeVar("T")
router = APIRouter(dependencies=READS_RUN)

MAX_STEPS: Final = 10_000
MAX_INPUTS: Final = 40_000
"""Edges of a graph, of all steps of a plan."""
MAX_TEXT_CHARS: Final = 4_000
MAX_PLAN_CHARS: Final = 8_000_000
"""Of all texts of a plan; a normal step has about 600."""
PLAN_OPERATOR: Final = "PlanOperator"


@dataclass(frozen=True)
class PlanTask:
    """A task that plans.

    Attributes:
        state: Its state in Airflow; None before it is scheduled.
        is_final: Whether it has ended.
    """

    task_id: str
    state: str | None
    is_final: bool


@dataclass(frozen=True)
class GroupPlan:
    """The plan of one group of steps.

    Attributes:
        group: Name of the task group; empty in a DAG that is one experiment.
        plan: The plan, of which the last steps may be left out.
        problem: Why there is no plan to show; None if there is one.
        left_out: How many steps are left out.
        inputs_left_out: Whether the steps state no inputs, since there are too many.
    """

    group: str
    plan: Plan | None
    problem: str | None = None
    left_out: int = 0
    inputs_left_out: bool = False


@dataclass(frozen=True)
class RunPlans:
    """The plans of a run, and the tasks that make them."""

    plans: list[GroupPlan]
    tasks: list[PlanTask]


@router.get("/plans/{dag_id}/{run_id:path}", response_model=RunPlans, dependencies=READS_PLANS)
def plans_of_run(dag_id: str, run_id: str, session: SessionDep) -> Response:
    """Return the plans of a run; none if it has not planned yet."""
    plans = list(_plans(dag_id, run_id, session))
    return JsonResponse(RunPlans(plans, _tasks_that_plan(dag_id, run_id, session)))


def _plans(dag_id: str, run_id: str, session: Session) -> Iterator[GroupPlan]:
    """Yield the plans of all groups, as many as have ``MAX_XCOM_CHARS`` together."""
    left = MAX_XCOM_CHARS
    for plan_task, size in plan_tasks(dag_id, run_id, session).items():
        group = group_of(plan_task).removesuffix(".")
        left -= size if size <= MAX_XCOM_CHARS else 0  # a longer one is refused by itself
        try:
            if left < 0:
                raise UnreadableXComError(
                    f"The plans of the run are too long to show all: see the log of {plan_task!r}"
                )
            plan = read_plan(dag_id, run_id, plan_task, session)
        except (BadPlanError, UnreadableXComError) as error:
            yield GroupPlan(group, None, str(error))
            continue
        if plan is not None:
            yield bounded(group, plan)


@router.get("/step_history/{dag_id}/{task_id}/{run_id:path}", response_model=StepHistory, dependencies=READS_STORE)
def history_of_step(
    dag_id: str, task_id: str, run_id: str, session: SessionDep, against: str | None = None
) -> Response:
    """Return a step of the run's plan beside its earlier versions.

    Raises:
        HTTPException: 404: the task is no step of a plan; 422: a plan cannot be read; 403: its output path is not
            allowed; 503: the store does not answer.
    """
    from tradewind.deployment.fleet import deployment_roots

    try:
        plan_task, plan, line = _find_line(dag_id, task_id, run_id, session)
        records = _version_records(dag_id, run_id, plan_task, session)
        history = read_step_history(line, plan, records, deployment_roots(), against)
    except (BadPlanError, UnreadableXComError) as error:
        raise HTTPException(422, str(error)) from None
    except OutsideRootsError as error:
        raise HTTPException(403, str(error)) from None
    except StorageError as error:
        raise HTTPException(503, str(error)) from None
    return JsonResponse(history)


def _find_line(dag_id: str, task_id: str, run_id: str, session: Session) -> tuple[str, Plan, PlannedStep]:
    for plan_task in plan_tasks(dag_id, run_id, session):
        if not task_id.startswith(group_of(plan_task)):
            continue
        plan = read_plan(dag_id, run_id, plan_task, session)
        if plan is not None and (line := plan.of_task(task_id)) is not None:
            return plan_task, plan, line
    raise HTTPException(404, f"Task {task_id!r} is no step of this run's plan.")


def _version_records(dag_id: str, run_id: str, plan_task: str, session: Session) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for number in range(MAX_CHUNKS):
        chunk = read_xcom(dag_id, run_id, plan_task, f"{VERSIONS_KEY}_{number}", session)
        if chunk is None:
            break
        found.update(parse_version_chunk(chunk))
    return found


def _tasks_that_plan(dag_id: str, run_id: str, session: Session) -> list[PlanTask]:
    is_plan = or_(TaskInstance.task_id == PLAN_TASK_ID, TaskInstance.task_id.endswith(f".{PLAN_TASK_ID}"))
    of_run = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.operator == PLAN_OPERATOR)
    rows = session.execute(
        select(TaskInstance.task_id, TaskInstance.state)
        .where(*of_run, is_plan)
        .order_by(TaskInstance.task_id)
        .limit(MAX_PLAN_TASKS)
    )
    return [
        PlanTask(task_id, None if state is None else str(state), state in State.finished) for task_id, state in rows
    ]


def bounded(group: str, plan: Plan) -> GroupPlan:
    """Return the plan with as many steps and characters as a page can show."""
    steps = [_bounded_step(step) for step in plan.steps[:MAX_STEPS]]
    warnings = [_short(warning) for warning in plan.warnings]
    room = MAX_PLAN_CHARS - 2 * MAX_TEXT_CHARS
    kept_warnings = _first(warnings, list(map(len, warnings)), room // 4)
    kept = _first(steps, list(map(_size, steps)), room - sum(map(len, kept_warnings)))
    has_too_many_inputs = sum(len(step.inputs) for step in kept) > MAX_INPUTS
    if has_too_many_inputs:
        kept = [replace(step, inputs=()) for step in kept]
    estimate = _short(plan.estimate) if plan.estimate is not None else None
    shown = Plan(_short(plan.prefix), tuple(kept), tuple(kept_warnings), estimate)
    return GroupPlan(group, shown, None, len(plan.steps) - len(kept), has_too_many_inputs)


def _first(items: list[T], sizes: list[int], room: int) -> list[T]:
    for index, size in enumerate(sizes):
        room -= size
        if room < 0:
            return items[:index]
    return items


def _bounded_step(step: PlannedStep) -> PlannedStep:
    """Return the step itself unless a text is too long."""
    fields = vars(step)
    long: dict[str, Any] = {
        name: _short(value) for name, value in fields.items() if isinstance(value, str) and len(value) > MAX_TEXT_CHARS
    }
    return replace(step, **long) if long else step


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"


def _size(step: PlannedStep) -> int:
    texts = (value for value in vars(step).values() if isinstance(value, str))
    return sum(map(len, texts)) + sum(map(len, step.inputs)) + sum(map(len, step.changed_inputs))
