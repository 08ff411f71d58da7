"""Request pages from an in-process Airflow API server with the plugin, as users of several roles.

It reads one JSON object from stdin: XComs to store, and requests as ``[user, path]``. It prints the responses as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow import settings
from airflow.api_fastapi.app import create_app, get_auth_manager
from fastapi.testclient import TestClient
from sqlalchemy import text

ROLES = {"admin": "Admin", "viewer": "Viewer", "public": "Public", "reader_of_one": "ReaderOfOne", "runner": "User"}


def insert(xcoms: list[dict[str, Any]]) -> None:
    """Insert rows into the XCom table without the runs that they belong to."""
    is_sqlite = settings.engine.dialect.name == "sqlite"
    row = (
        "INSERT INTO xcom (dag_run_id, dag_id, run_id, task_id, map_index, key, value, timestamp) VALUES "
        f"(:number, :dag_id, :run_id, :task_id, -1, :key, {':value' if is_sqlite else 'CAST(:value AS jsonb)'}, "
        "CURRENT_TIMESTAMP)"
    )
    with settings.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("PRAGMA foreign_keys=OFF" if is_sqlite else "SET session_replication_role = replica"))
        for number, xcom in enumerate(xcoms):
            connection.execute(text(row), {"number": number, **xcom})


def simple_tokens(manager: Any) -> dict[str, str]:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    users = {"admin": "ADMIN", "viewer": "VIEWER", "runner": "USER", "public": None}
    return {name: manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role)) for name, role in users.items()}


def fab_tokens(manager: Any) -> dict[str, str]:
    with manager.flask_app.app_context():
        security = manager.security_manager
        security.sync_roles()
        one = security.add_role("ReaderOfOne")
        for action, resource in [("can_read", "DAG:one"), ("can_read", "XComs"), ("can_read", "DAG Runs")]:
            security.add_permission_to_role(one, security.create_permission(action, resource))
        tokens = {}
        for name, role in ROLES.items():
            user = security.add_user(name, name, name, f"{name}@example.org", security.find_role(role), password="x")
            tokens[name] = manager.generate_jwt(user)
        return tokens


def main() -> None:
    given = json.load(sys.stdin)
    app = create_app("core")
    manager = get_auth_manager()
    insert(given["xcoms"])
    tokens = fab_tokens(manager) if "Fab" in type(manager).__name__ else simple_tokens(manager)
    answers = []
    with TestClient(app, raise_server_exceptions=False) as client:
        for user, path in given["requests"]:
            headers = {"Authorization": f"Bearer {tokens[user]}"} if user in tokens else {}
            answer = client.get(f"/tradewind/{path}", headers=headers)
            answers.append([answer.status_code, dict(answer.headers), answer.text])
    print("ANSWERS" + json.dumps(answers))


if __name__ == "__main__":
    main()
