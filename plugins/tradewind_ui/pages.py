"""The pages of the plugin. Each asks for a user who may read what it shows, and escapes whatever it shows."""

from __future__ import annotations

from html import escape
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.xcom import XComModel
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from tradewind.plans.plan import Plan

PLAN_TASK_ID = "plan"
STYLE = """
body { font: 14px system-ui, sans-serif; margin: 1.5rem; color-scheme: light dark }
table { border-collapse: collapse } th, td { text-align: left; padding: .35rem .8rem; border-bottom: 1px solid #8884 }
td.version, td.path { font-family: ui-monospace, monospace; font-size: 12px } .RUN { color: #c2410c }
.REUSE { color: #15803d } .PRUNED { color: #6b7280 }
"""

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.get(
    "/plan/{dag_id}/{run_id:path}",
    response_class=HTMLResponse,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))],
)
def plan_page(dag_id: str, run_id: str, session: SessionDep) -> str:
    """The plan of one run: what runs, what is reused, and why."""
    stored = session.scalars(
        select(XComModel).where(
            XComModel.dag_id == dag_id,
            XComModel.run_id == run_id,
            XComModel.task_id == PLAN_TASK_ID,
            XComModel.key == "return_value",
        )
    ).first()
    return _page(None if stored is None else XComModel.deserialize_value(stored))


def _page(plan: Any) -> str:
    body = "<p>This run has no plan yet.</p>"
    if isinstance(plan, dict) and "steps" in plan:
        body = _table(Plan.from_json(plan))
    return f"<!doctype html><meta charset=utf-8><title>Plan</title><style>{STYLE}</style>{body}"


def _table(plan: Plan) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("Step", "Version", "Decision", "Reason", "Output path"))
    rows = "".join(
        f"<tr><td>{escape(step.name)}</td><td class=version>{escape(step.hash)}</td>"
        f"<td class={step.decision.value}>{step.decision.value}</td><td>{escape(step.reason)}</td>"
        f"<td class=path>{escape(step.output_path)}</td></tr>"
        for step in plan.steps
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
