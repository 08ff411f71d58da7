"""Airflow UI plugin of Tradewind: tabs that show the plan of a run, and one step of it.

Every Airflow process loads this module, so the API server imports the pages only at the first request.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/tradewind"


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """Serve the plugin's pages, as an ASGI application."""
    from tradewind_ui.pages import app

    await app(scope, receive, send)


class TradewindPlugin(AirflowPlugin):
    """Registers the pages with the API server, and their tabs with the UI."""

    name = "tradewind"
    fastapi_apps = [{"app": pages, "url_prefix": URL_PREFIX, "name": "Tradewind"}]
    external_views = [
        {
            "name": "Plan",
            "href": f"{URL_PREFIX}/plan/{{DAG_ID}}/{{RUN_ID}}",
            "url_route": "tradewind_plan",
            "destination": "dag_run",
        },
        {
            "name": "Step",
            "href": f"{URL_PREFIX}/step/{{DAG_ID}}/{{TASK_ID}}/{{RUN_ID}}?map_index={{MAP_INDEX}}",
            "url_route": "tradewind_step",
            "destination": "task_instance",
        },
    ]
