"""Pages of the plugin. Each requires a user with access to its data, and escapes the data.

XComs are parsed as plain JSON, never as the objects that they may name. An invalid plan gives a page with the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_authenticated
from airflow.models.xcom import XComModel
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import Text, cast, func, or_, select

from tradewind.plans.plan import UNPLANNED_KEY, BadPlanError, Decision, Plan, PlannedStep, UnplannedStep
from tradewind.text import pluralize
from tradewind_ui import URL_PREFIX
from tradewind_ui.headers import with_headers
from tradewind_ui.timelines import escaped, timeline_of

PLAN_TASK_ID = "plan"
ASSETS: Final = {"pages.css": "text/css", "links.js": "text/javascript"}
TITLES = ("Decision", "Step", "Version", "Reason", "Producer", "Estimate", "Output path")
NO_PLAN = "<p>This run has no plan yet.</p>"
NO_STEP = "<p>This run has no plan yet, and this task has not reported its step.</p>"
NO_STEP_OF_PLAN = "<p>This task is no step of the plan.</p>"
LINKED = (Decision.RUN, Decision.REUSE)
BAD_IDS = "No run, DAG or task has this id."
MAX_ROWS: Final = 10_000
MAX_HTML_CHARS: Final = 4_000_000
"""Of the rows of a page, and of its warnings. A normal row has about 500."""
MAX_XCOM_CHARS: Final = 16 << 20
_MAP_INDEX = re.compile(r"[0-9]{1,9}")

pages = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
app = with_headers(pages)


class UnreadableXComError(ValueError):
    """An XCom is no readable JSON, or too large. The page shows the text."""


def plain_ids(request: Request) -> None:
    """Refuse ids that no database accepts, before a query."""
    if not all(str(part).isprintable() for part in request.path_params.values()):
        raise HTTPException(404, BAD_IDS)


READABLE: Final = [Depends(plain_ids), Depends(requires_access_dag("GET", DagAccessEntity.XCOM))]


@pages.get("/assets/{name}", dependencies=[Depends(requires_authenticated())])
def asset(name: str) -> Response:
    """Serve the style sheet and the script of the pages."""
    if name not in ASSETS:
        raise HTTPException(404)
    return Response((Path(__file__).parent / "assets" / name).read_text(), media_type=ASSETS[name])


@pages.get("/plan/{dag_id}/{run_id:path}", response_class=HTMLResponse, dependencies=READABLE)
def plan_page(dag_id: str, run_id: str, request: Request, session: SessionDep) -> str:
    """Show the plan of one run: what runs, what is reused, and why."""
    airflow = request.scope.get("root_path", "").removesuffix(URL_PREFIX)
    run = f"{airflow}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    bodies: list[str] = []
    for plan_task in _plan_tasks(dag_id, run_id, session):
        try:
            plan = _plan_of(dag_id, run_id, plan_task, session)
        except (BadPlanError, UnreadableXComError) as error:
            bodies.append(_heading(plan_task) + _unreadable("The plan of this run", error))
            continue
        if plan is not None:
            body = _body(plan, lambda task_id: f"{run}/tasks/{quote(task_id, safe='')}", plan_task)
            bodies.append(_heading(plan_task) + body)
    return _page("Plan", "".join(bodies) or NO_PLAN, request)


@pages.get("/step/{dag_id}/{task_id}/{run_id:path}", response_class=HTMLResponse, dependencies=READABLE)
def step_page(
    dag_id: str, task_id: str, run_id: str, request: Request, session: SessionDep, map_index: str = ""
) -> str:
    """Show one step from the run's plan, or else from its task's XCom. A skipped step is only in the plan.

    ``map_index`` is Airflow's value for the placeholder; for a task that is not mapped it is the placeholder itself.
    """
    index = int(map_index) if _MAP_INDEX.fullmatch(map_index) else -1
    try:
        body = _step_body(dag_id, task_id, run_id, session, index)
    except (BadPlanError, UnreadableXComError) as error:
        body = _unreadable("The step of this run", error)
    return _page("Step", body, request)


def _step_body(dag_id: str, task_id: str, run_id: str, session: SessionDep, map_index: int) -> str:
    groups = [each for each in _plan_tasks(dag_id, run_id, session) if task_id.startswith(_group(each))]
    plans = [plan for each in groups if (plan := _plan_of(dag_id, run_id, each, session))]
    step = next((step for plan in plans if (step := plan.of_task(task_id))), None)
    if step is not None:
        return _facts(step) + timeline_of(step.output_path)
    unplanned = UnplannedStep.from_json(_xcom(dag_id, run_id, task_id, UNPLANNED_KEY, session, map_index))
    if unplanned is None:
        return NO_STEP_OF_PLAN if plans else NO_STEP
    facts = {"Step": unplanned.name, "Version": unplanned.hash, "Output path": unplanned.output_path}
    return _table(facts) + timeline_of(unplanned.output_path)


def _plan_tasks(dag_id: str, run_id: str, session: SessionDep) -> Sequence[str]:
    """Return the tasks that may have left a plan: one, or one for each group of steps in a user's DAG."""
    is_plan = or_(XComModel.task_id == PLAN_TASK_ID, XComModel.task_id.endswith(f".{PLAN_TASK_ID}"))
    of_run = (XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == "return_value")
    return session.scalars(select(XComModel.task_id).where(*of_run, is_plan).order_by(XComModel.task_id)).all()


def _plan_of(dag_id: str, run_id: str, plan_task: str, session: SessionDep) -> Plan | None:
    plan = _xcom(dag_id, run_id, plan_task, "return_value", session)
    return Plan.from_json(plan) if isinstance(plan, dict) and "steps" in plan else None


def _group(plan_task: str) -> str:
    """Return what the task ids of the plan's group begin with; empty in a DAG that is one experiment."""
    return plan_task.removesuffix(PLAN_TASK_ID)


def _heading(plan_task: str) -> str:
    group = _group(plan_task).removesuffix(".")
    return f"<h2>{escaped(group)}</h2>" if group else ""


def _xcom(dag_id: str, run_id: str, task_id: str, key: str, session: SessionDep, map_index: int = -1) -> Any:
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
    try:
        value = session.scalars(select(XComModel.value).where(*row)).first()
        return json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value
    except (ValueError, RecursionError):
        raise UnreadableXComError(f"XCom {key!r} of task {task_id!r} is no readable JSON") from None


def _unreadable(what: str, error: ValueError) -> str:
    return f"<p class=warning>{what} cannot be shown: {escaped(str(error))}. Clear the task that wrote it.</p>"


def _page(title: str, body: str, request: Request) -> str:
    assets = escaped(f"{request.scope.get('root_path', '')}/assets")
    page = (
        f'<!doctype html><meta charset=utf-8><title>{title}</title><link rel=stylesheet href="{assets}/pages.css">'
        f'{body}<script src="{assets}/links.js"></script>'
    )
    return page.encode(errors="replace").decode()  # UTF-8 cannot encode half a surrogate pair


def _facts(step: PlannedStep) -> str:
    """Show one step as in its plan."""
    facts = {
        "Step": step.name,
        "Version": step.hash,
        "Decision": step.decision.value,
        "Reason": step.reason,
        "Producer": step.producer,
        "Newest attempt": step.attempt or None,
        "Estimate": step.estimate,
        "Runs on": step.place,
        "Output path": step.output_path,
    }
    return f"<p>The step in the plan of this run:</p>{_table(facts)}"


def _table(facts: Mapping[str, Any]) -> str:
    """Show the facts of a step as a table, one row each."""
    rows = (
        f"<tr><th>{name}</th><td>{escaped(str(fact))}</td></tr>" for name, fact in facts.items() if fact is not None
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _body(plan: Plan, task_page: Callable[[str], str], plan_task: str = PLAN_TASK_ID) -> str:
    head = "".join(f"<th>{title}</th>" for title in TITLES)
    rows = _first(_row(step, plan.prefix, task_page(step.task_id)) for step in plan.steps)
    counts = ", ".join(f"{len(steps)} {each.value}" for each in Decision if (steps := plan.decided(each)))
    estimate = f"; {escaped(plan.estimate)}" if plan.estimate else ""
    summary = f"<p>{pluralize(len(plan.steps), 'step')}: {counts}{estimate}</p>"
    warnings = _first(f"<p class=warning>{escaped(warning)}</p>" for warning in plan.warnings)
    if len(rows) < len(plan.steps):
        shown = f"Only the first {len(rows)} of {len(plan.steps)} steps are shown"
        warnings.append(f"<p class=warning>{shown}; all are in the log of the task '{escaped(plan_task)}'.</p>")
    table = f"<table class=plan><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"{summary}{''.join(warnings)}{table}"


def _first(parts: Iterable[str]) -> list[str]:
    """Return the first parts, as many as a browser can show."""
    sizes = 0
    shown: list[str] = []
    for part in islice(parts, MAX_ROWS):
        sizes += len(part)
        if sizes > MAX_HTML_CHARS:
            break
        shown.append(part)
    return shown


def _row(step: PlannedStep, prefix: str, task_page: str) -> str:
    name = escaped(step.name)
    relative = step.output_path.removeprefix(f"{prefix.rstrip('/')}/")
    if step.decision in LINKED:
        name = f'<a href="{escaped(task_page)}">{name}</a>'
    return (
        f"<tr><td class={step.decision.value}>{step.decision.value}</td><td>{name}</td>"
        f"<td class=version>{escaped(step.hash)}</td><td>{escaped(step.reason)}</td>"
        f"<td class=producer>{escaped(step.producer or '')}</td><td>{escaped(step.estimate or '')}</td>"
        f'<td class=path title="{escaped(step.output_path)}">{escaped(relative)}</td></tr>'
    )
