"""The plans of a run: what runs, what is reused, and why."""

from __future__ import annotations

from dataclasses import dataclass

from airflow.api_fastapi.common.db.common import SessionDep
from fastapi import APIRouter

from tradewind.plans.plan import BadPlanError, Plan
from tradewind_ui.api.security import READS_RUN
from tradewind_ui.api.xcoms import UnreadableXComError, group_of, plan_tasks, read_plan

router = APIRouter(dependencies=READS_RUN)


@dataclass(frozen=True)
class GroupPlan:
    """The plan of one group of steps.

    Attributes:
        group: Name of the task group; empty in a DAG that is one experiment.
        problem: Why there is no plan to show; None if there is one.
    """

    group: str
    plan: Plan | None
    problem: str | None = None


@router.get("/plans/{dag_id}/{run_id:path}")
def plans_of_run(dag_id: str, run_id: str, session: SessionDep) -> list[GroupPlan]:
    """Return the plans of a run; none if it has not planned yet."""
    found: list[GroupPlan] = []
    for plan_task in plan_tasks(dag_id, run_id, session):
        group = group_of(plan_task).removesuffix(".")
        try:
            plan = read_plan(dag_id, run_id, plan_task, session)
        except (BadPlanError, UnreadableXComError) as error:
            found.append(GroupPlan(group, None, str(error)))
            continue
        if plan is not None:
            found.append(GroupPlan(group, plan))
    return found
