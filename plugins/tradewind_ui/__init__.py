"""Airflow UI plugin of Tradewind: pages about plans, steps, data, experiments and clusters.

Every Airflow process loads this module, so the API server imports the application only at the first request.
"""

from __future__ import annotations

from typing import Any, Final

from airflow.plugins_manager import AirflowPlugin

URL_PREFIX: Final = "/tradewind"
_BUNDLE: Final = f"{URL_PREFIX.removeprefix('/')}/static/main.js"
"""Relative, so that it is found behind any path of Airflow's own address."""

_OURS: Final = {"dag_tags": ["tradewind"]}
"""Airflow 3.3 ignores it, and shows a tab everywhere."""


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """Serve the plugin's application, as an ASGI application."""
    from tradewind_ui.api.app import app
    from tradewind_ui.api.security import declare_data_permission

    declare_data_permission()
    await app(scope, receive, send)


def _page(name: str, destination: str, route: str, **more: Any) -> dict[str, Any]:
    """Describe a page of the bundle, which registers itself under the same name."""
    return {"name": name, "bundle_url": _BUNDLE, "destination": destination, "url_route": route, **more}


class TradewindPlugin(AirflowPlugin):
    """Registers the application with the API server, and its pages with the UI."""

    name = "tradewind"
    fastapi_apps = [{"app": pages, "url_prefix": URL_PREFIX, "name": "Tradewind"}]
    react_apps = [
        _page("Plan", "dag_run", "tradewind_plan", applies_to=_OURS),
        _page("Step", "task_instance", "tradewind_step", applies_to=_OURS),
        _page("Data", "nav", "tradewind_data"),
        _page("Experiments", "nav", "tradewind_experiments"),
        _page("Fleet", "nav", "tradewind_fleet"),
        _page("Fleet health", "dashboard", "tradewind_fleet_health"),
    ]
