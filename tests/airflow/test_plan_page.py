"""The plugin's tab on a run: shown only to users who may read the run."""

from __future__ import annotations

import html
import importlib
from urllib.parse import quote

import pytest
import requests

from tests.airflow.conftest import DagRun, Environment
from tradewind.plans.plan import Decision, Plan, PlannedStep

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


def test_plan_of_run_is_shown(env: Environment, run: DagRun) -> None:
    page = get(env, f"plan/hello_world/{quote(run.run_id)}", token(env))
    assert page.status_code == 200
    for text in ("hello_world/data", "hello_world/stats"):
        assert f">{text}</a></td>" in page.text
    output = env.output("hello_world/stats")
    assert f'<td class=path title="{output}">{output.relative_to(env.store)}</td>' in page.text


def test_page_of_skipped_step_shows_plan_decision(env: Environment, run: DagRun) -> None:
    reused = env.run("hello_world")
    assert reused.states()["hello_world_data"] == "skipped"
    page = get(env, f"step/hello_world/hello_world_data/{quote(reused.run_id)}", token(env))
    assert page.status_code == 200
    for text in ("REUSE", " of hello_world, attempt ", str(env.output("hello_world/data"))):
        assert text in html.unescape(page.text)
    assert "no step of the plan" in get(env, f"step/hello_world/plan/{quote(run.run_id)}", token(env)).text


def test_page_of_task_without_plan_names_its_step(env: Environment) -> None:
    run = env.run("plain_versions", {"n": 21})
    page = get(env, f"step/plain_versions/plain/{quote(run.run_id)}?map_index={{MAP_INDEX}}", token(env))
    assert page.status_code == 200
    output = env.api.xcom("plain_versions", run.run_id, "plain")
    for text in ("<td>plain/version</td>", f"<td>{output[-6:]}</td>", f"<td>{output}</td>"):
        assert text in page.text
    page = get(env, f"step/plain_versions/plain/{quote(run.run_id)}?map_index=3", token(env))
    assert "has not reported its step" in page.text
    assert get(env, f"step/plain_versions/plain/x?map_index={10**30}", token(env)).status_code == 200


def test_invalid_token_and_framework_pages_are_refused(env: Environment) -> None:
    for path in ("plan/hello_world/any", "plan/no_such_dag/any", "step/hello_world/task/any"):
        assert get(env, path, {"Authorization": "Bearer nonsense"}).status_code in (401, 403)
    for path in ("docs", "openapi.json", "redoc"):
        assert get(env, path, token(env)).status_code == 404


def test_plan_is_escaped_and_only_executed_steps_have_links() -> None:
    pages = importlib.import_module("tradewind_ui.pages")
    evil = "<b>\"&'"
    steps = [PlannedStep("t/1", evil, evil, evil, each, evil, producer=evil, estimate=evil) for each in Decision]
    page = pages._body(Plan(evil, tuple(steps), (evil,), evil), lambda task_id: f'/x"{task_id}')
    assert "<b>" not in page + pages._facts(steps[0])
    assert page.count("&lt;b&gt;&quot;&amp;&#x27;") == 2 + 7 * len(steps)
    assert page.count('<a href="/x&quot;t/1">') == 2
    for each in Decision:
        assert f"<td class={each.value}>{each.value}</td>" in page
