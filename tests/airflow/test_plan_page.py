"""The routes of the tab Plan over a real run: its plan, and a step beside its earlier versions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.airflow.conftest import DagRun, Environment

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def run(env: Environment) -> DagRun:
    return env.run("hello_world")


def token(env: Environment) -> dict[str, str]:
    login = {"username": env.airflow.username, "password": env.airflow.password}
    answer = requests.post(f"{env.airflow.url}/auth/token", json=login, timeout=30)
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def get(env: Environment, path: str, headers: dict[str, str]) -> requests.Response:
    return requests.get(f"{env.airflow.url}/tradewind/{path}", headers=headers, timeout=30)


def steps_of(env: Environment, run: DagRun) -> dict[str, dict[str, Any]]:
    answer = get(env, f"api/plans/hello_world/{quote(run.run_id)}", token(env))
    assert answer.status_code == 200, answer.text
    [group] = answer.json()["plans"]
    assert answer.json()["tasks"] == [{"task_id": "plan", "state": "success", "is_final": True}]
    return {step["name"]: step for step in group["plan"]["steps"]}


def test_plan_of_a_run_names_inputs_and_producers(env: Environment, run: DagRun) -> None:
    steps = steps_of(env, run)
    assert steps["hello_world/stats"]["output_path"] == str(env.output("hello_world/stats"))
    assert steps["hello_world/stats"]["inputs"] == ["hello_world_data"]
    reused = steps_of(env, env.run("hello_world"))["hello_world/data"]
    assert (reused["decision"], reused["producer_dag"]) == ("REUSE", "hello_world")
    assert get(env, "api/plans/hello_world/none", token(env)).json() == {"plans": [], "tasks": []}


def test_step_is_shown_with_its_config_and_run(env: Environment, run: DagRun) -> None:
    path = f"api/step_history/hello_world/hello_world_data/{quote(run.run_id)}"
    history = get(env, path, token(env)).json()
    assert history["run"]["outcome"] == "succeeded" and history["config"]["rows"]
    assert get(env, f"api/step_history/hello_world/plan/{quote(run.run_id)}", token(env)).status_code == 404


def test_invalid_token_and_framework_pages_are_refused(env: Environment) -> None:
    for path in ("api/plans/hello_world/any", "api/plans/no_such_dag/any", "api/step_history/hello_world/task/any"):
        assert get(env, path, {"Authorization": "Bearer nonsense"}).status_code in (401, 403)
    for path in ("docs", "openapi.json", "redoc"):
        assert get(env, path, token(env)).status_code == 404
