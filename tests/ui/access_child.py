"""Request every route of the plugin from an in-process API server, as users of several roles.

It reads one JSON object from stdin: the DAGs to ask about, and hostile addresses. It prints the responses as JSON:
route, guards, DAG, user, status, headers, and the beginning of the text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from airflow.api_fastapi.app import create_app, get_auth_manager
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from tradewind_ui.api import security
from tradewind_ui.api.app import pages

GUARDS: Final = {
    "run": security.READS_RUN,
    "logs": security.READS_LOGS,
    "data": security.READS_DATA,
    "clusters": security.READS_CLUSTERS,
    "home": security.ASKS_FOR_CLUSTERS,
}
FAB_ROLES: Final = {"admin": "Admin", "op": "Op", "runner": "User", "viewer": "Viewer", "public": "Public"}
SIMPLE_ROLES: Final = {"admin": "ADMIN", "op": "OP", "runner": "USER", "viewer": "VIEWER", "public": None}
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")


def guards_of(route: APIRoute) -> list[str]:
    """Return the guards that the route has in whole."""
    return [name for name, guard in GUARDS.items() if all(each in route.dependencies for each in guard)]


def path_of(route: APIRoute, dag_id: str) -> str:
    """Return a path of the route: each parameter is 0, which is a number and a text."""
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda match: dag_id if match[1] == "dag_id" else "0", route.path)


def simple_tokens(manager: Any) -> dict[str, str]:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return {
        name: manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role))
        for name, role in SIMPLE_ROLES.items()
    }


def fab_tokens(manager: Any) -> dict[str, str]:
    """Create the users: ``reader_of_one`` reads DAG ``one`` only; a command lets ``data_reader`` read data."""
    with manager.flask_app.app_context():
        roles = manager.security_manager
        roles.sync_roles()
        one = roles.add_role("ReaderOfOne")
        for action, resource in [("can_read", "DAG:one"), ("can_read", "XComs"), ("can_read", "DAG Runs")]:
            roles.add_permission_to_role(one, roles.create_permission(action, resource))
    airflow("roles", "create", "DataReader")
    airflow("roles", "add-perms", "DataReader", "-r", security.DATA_RESOURCE, "-a", "can_read")
    with manager.flask_app.app_context():
        tokens = {}
        for name, role in {**FAB_ROLES, "reader_of_one": "ReaderOfOne", "data_reader": "DataReader"}.items():
            user = roles.add_user(name, name, name, f"{name}@example.org", roles.find_role(role), password="x")
            tokens[name] = manager.generate_jwt(user)
    return tokens


def airflow(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *command], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def answers(client: TestClient, tokens: dict[str, str], dag_ids: list[str]) -> Iterator[dict[str, Any]]:
    for route in pages.routes:
        if not isinstance(route, APIRoute):
            continue
        guards = guards_of(route)
        for dag_id in dag_ids if "{dag_id}" in route.path else [""]:
            for user in ("stranger", *tokens):
                headers = {"Authorization": f"Bearer {tokens[user]}"} if user in tokens else {}
                answer = client.get(f"/tradewind{path_of(route, dag_id)}", headers=headers)
                yield {"path": route.path, "methods": sorted(route.methods), "guards": guards, "dag_id": dag_id,
                       "user": user, "status": answer.status_code, "headers": dict(answer.headers),
                       "text": answer.text[:500]}  # fmt: skip


def hostile_answers(client: TestClient, tokens: dict[str, str], addresses: list[str]) -> Iterator[dict[str, Any]]:
    for address in addresses:
        for user in ("stranger", *tokens):
            headers = {"Authorization": f"Bearer {tokens[user]}"} if user in tokens else {}
            answer = client.get(f"/tradewind{address}", headers=headers)
            yield {"address": address, "user": user, "status": answer.status_code, "text": answer.text[:2000]}


def other_methods(client: TestClient, token: str) -> list[int]:
    """Return the statuses of requests that would change something."""
    paths = [path_of(route, "one") for route in pages.routes if isinstance(route, APIRoute)]
    headers = {"Authorization": f"Bearer {token}"}
    return [
        client.request(method, f"/tradewind{path}", headers=headers).status_code for path in paths for method in METHODS
    ]


def main() -> None:
    given = json.load(sys.stdin)
    app = create_app("core")
    manager = get_auth_manager()
    with TestClient(app, raise_server_exceptions=False) as client:
        client.get("/tradewind/static/main.js")  # the first request declares the permission
        tokens = fab_tokens(manager) if "Fab" in type(manager).__name__ else simple_tokens(manager)
        found = {
            "answers": [*answers(client, tokens, given["dag_ids"])],
            "others": other_methods(client, tokens["admin"]),
            "hostile": [*hostile_answers(client, tokens, given["hostile"])],
        }
    print("ANSWERS" + json.dumps(found))


if __name__ == "__main__":
    main()
