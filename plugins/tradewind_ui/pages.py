"""The pages of the plugin. Each asks for a user who may read what it shows, and escapes whatever it shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.xcom import XComModel
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from tradewind.plans.phrases import count_text
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.unplanned import UNPLANNED_KEY, UnplannedStep
from tradewind_ui import URL_PREFIX
from tradewind_ui.timelines import timeline_of

PLAN_TASK_ID = "plan"
STYLE = """
body { font: 14px system-ui, sans-serif; margin: 1.5rem; color-scheme: light dark }
table { border-collapse: collapse } th, td { text-align: left; padding: .35rem .8rem; border-bottom: 1px solid #8884 }
td { vertical-align: top } a { color: inherit } .warning { color: #b45309 }
h2 { font-size: 1rem; margin: 1.5rem 0 .5rem }
td.version, td.path { font-family: ui-monospace, monospace; font-size: 12px } .RUN { color: #c2410c }
.REUSE { color: #15803d } .WAIT { color: #1d4ed8 } .BLOCKED { color: #b91c1c } .PRUNED { color: #6b7280 }
/* Airflow shows the page beside the graph, in a third of the window: there each step is a block of lines. */
@media (max-width: 60rem) {
  table.plan, .plan tbody, .plan tr, .plan td { display: block } .plan thead, .plan td:empty { display: none }
  .plan tr { padding: .6rem 0; border-bottom: 1px solid #8884 } .plan td { border: 0; padding: .05rem 0 }
  .plan td:first-child, .plan td:nth-child(2), .plan td.version { display: inline; padding-right: .6rem }
  .plan td.producer { display: none } .plan td.path { overflow-wrap: anywhere; opacity: .7 }
}
"""
# Airflow shows the page in a frame whose links may not leave it, so the page around it is asked to follow them.
SCRIPT = """
document.addEventListener("click", event => {
  const link = event.target.closest("a");
  if (link === null || window.parent === window) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  outer.click();
});
"""
TITLES = ("Decision", "Step", "Version", "Reason", "Producer", "Estimate", "Output path")
NO_PLAN = "<p>This run has no plan yet.</p>"
NO_STEP = "<p>This run has no plan yet, and this task has not said which step it makes.</p>"
NO_STEP_OF_PLAN = "<p>This task is no step of the plan.</p>"
LINKED = (Decision.RUN, Decision.REUSE)
_MAP_INDEX = re.compile(r"[0-9]{1,9}")

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.get(
    "/plan/{dag_id}/{run_id:path}",
    response_class=HTMLResponse,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))],
)
def plan_page(dag_id: str, run_id: str, request: Request, session: SessionDep) -> str:
    """The plan of one run: what runs, what is reused, and why."""
    airflow = request.scope.get("root_path", "").removesuffix(URL_PREFIX)
    run = f"{airflow}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    plan = _plan_of(dag_id, run_id, session)
    body = NO_PLAN if plan is None else _body(plan, lambda task_id: f"{run}/tasks/{quote(task_id, safe='')}")
    return _page("Plan", body)


@app.get(
    "/step/{dag_id}/{task_id}/{run_id:path}",
    response_class=HTMLResponse,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))],
)
def step_page(dag_id: str, task_id: str, run_id: str, session: SessionDep, map_index: str = "") -> str:
    """What the plan of a run knows of one step, which of a skipped one nothing else does, or else what its task says.

    ``map_index`` is what Airflow makes of its placeholder, which stays as it is for a task that is not mapped.
    """
    plan = _plan_of(dag_id, run_id, session)
    step = plan.of_task(task_id) if plan is not None else None
    if step is not None:
        return _page("Step", _facts(step) + timeline_of(step.output_path))
    index = int(map_index) if _MAP_INDEX.fullmatch(map_index) else -1
    unplanned = UnplannedStep.from_json(_xcom(dag_id, run_id, task_id, UNPLANNED_KEY, session, index))
    if unplanned is None:
        return _page("Step", NO_STEP if plan is None else NO_STEP_OF_PLAN)
    facts = {"Step": unplanned.name, "Version": unplanned.hash, "Output path": unplanned.output_path}
    return _page("Step", _table(facts) + timeline_of(unplanned.output_path))


def _plan_of(dag_id: str, run_id: str, session: SessionDep) -> Plan | None:
    plan = _xcom(dag_id, run_id, PLAN_TASK_ID, "return_value", session)
    return Plan.from_json(plan) if isinstance(plan, dict) and "steps" in plan else None


def _xcom(dag_id: str, run_id: str, task_id: str, key: str, session: SessionDep, map_index: int = -1) -> Any:
    """What a task has left under that key; None if nothing."""
    stored = session.scalars(
        select(XComModel).where(
            XComModel.dag_id == dag_id,
            XComModel.run_id == run_id,
            XComModel.task_id == task_id,
            XComModel.map_index == map_index,
            XComModel.key == key,
        )
    ).first()
    return None if stored is None else XComModel.deserialize_value(stored)


def _page(title: str, body: str) -> str:
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>{body}"
        f"<script>{SCRIPT}</script>"
    )


def _facts(step: PlannedStep) -> str:
    """One step as its plan knows it."""
    facts = {
        "Step": step.name,
        "Version": step.hash,
        "Decision": step.decision.value,
        "Reason": step.reason,
        "Producer": step.producer,
        "Newest attempt": step.attempt or None,
        "Estimate": step.estimate,
        "Output path": step.output_path,
    }
    return _table(facts)


def _table(facts: Mapping[str, Any]) -> str:
    """What is known of a step, a line each."""
    rows = (f"<tr><th>{name}</th><td>{escape(str(fact))}</td></tr>" for name, fact in facts.items() if fact is not None)
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _body(plan: Plan, task_page: Callable[[str], str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in TITLES)
    rows = "".join(_row(step, plan.prefix, task_page(step.task_id)) for step in plan.steps)
    counts = ", ".join(f"{len(found)} {each.value}" for each in Decision if (found := plan.decided(each)))
    estimate = f"; {escape(plan.estimate)}" if plan.estimate else ""
    summary = f"<p>{count_text(len(plan.steps), 'step')}: {counts}{estimate}</p>"
    warnings = "".join(f"<p class=warning>{escape(warning)}</p>" for warning in plan.warnings)
    return f"{summary}{warnings}<table class=plan><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(step: PlannedStep, prefix: str, task_page: str) -> str:
    name = escape(step.name)
    below = step.output_path.removeprefix(f"{prefix.rstrip('/')}/")
    if step.decision in LINKED:
        name = f'<a href="{escape(task_page)}">{name}</a>'
    return (
        f"<tr><td class={step.decision.value}>{step.decision.value}</td><td>{name}</td>"
        f"<td class=version>{escape(step.hash)}</td><td>{escape(step.reason)}</td>"
        f"<td class=producer>{escape(step.producer or '')}</td><td>{escape(step.estimate or '')}</td>"
        f'<td class=path title="{escape(step.output_path)}">{escape(below)}</td></tr>'
    )
