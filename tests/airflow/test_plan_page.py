"""The plugin's tab on a run: shown only to users who may read the run."""

from __future__ import annotations

import html
import importlib
from urllib.parse import quote

import pytest
import requests

from tests.airflow.conftest import House, HouseRun
from tradewind.plans.plan import Decision, Plan, PlannedStep

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def run(house: House) -> HouseRun:
    return house.run("hello_world")


def token(house: House) -> dict[str, str]:
    login = {"username": house.airflow.username, "password": house.airflow.password}
    answer = requests.post(f"{house.airflow.url}/auth/token", json=login, timeout=30)
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def get(house: House, path: str, headers: dict[str, str]) -> requests.Response:
    return requests.get(f"{house.airflow.url}/tradewind/{path}", headers=headers, timeout=30)


def test_the_plan_of_a_run_is_shown(house: House, run: HouseRun) -> None:
    page = get(house, f"plan/hello_world/{quote(run.run_id)}", token(house))
    assert page.status_code == 200
    for text in ("hello_world/data", "hello_world/stats"):
        assert f">{text}</a></td>" in page.text
    output = house.output("hello_world/stats")
    assert f'<td class=path title="{output}">{output.relative_to(house.store)}</td>' in page.text


def test_a_step_that_a_run_skipped_is_told_of_by_its_plan(house: House, run: HouseRun) -> None:
    reused = house.run("hello_world")
    assert reused.states()["hello_world_data"] == "skipped"
    page = get(house, f"step/hello_world/hello_world_data/{quote(reused.run_id)}", token(house))
    assert page.status_code == 200
    for text in ("REUSE", " of hello_world, attempt ", str(house.output("hello_world/data"))):
        assert text in html.unescape(page.text)
    assert "no step of the plan" in get(house, f"step/hello_world/plan/{quote(run.run_id)}", token(house)).text


def test_a_task_without_a_plan_tells_which_step_it_makes(house: House) -> None:
    run = house.run("plain_versions", {"n": 21})
    page = get(house, f"step/plain_versions/plain/{quote(run.run_id)}?map_index={{MAP_INDEX}}", token(house))
    assert page.status_code == 200
    output = house.api.xcom("plain_versions", run.run_id, "plain")
    for text in ("<td>plain/version</td>", f"<td>{output[-6:]}</td>", f"<td>{output}</td>"):
        assert text in page.text
    page = get(house, f"step/plain_versions/plain/{quote(run.run_id)}?map_index=3", token(house))
    assert "has not said which step it makes" in page.text
    assert get(house, f"step/plain_versions/plain/x?map_index={10**30}", token(house)).status_code == 200


def test_a_run_without_a_plan_says_so(house: House) -> None:
    page = get(house, "plan/hello_world/no_such_run", token(house))
    assert page.status_code == 200
    assert "This run has no plan yet." in page.text


@pytest.mark.parametrize("path", ["plan/hello_world/any", "plan/no_such_dag/any", "step/hello_world/task/any"])
def test_a_stranger_is_turned_away(house: House, path: str) -> None:
    assert get(house, path, {}).status_code == 401
    assert get(house, path, {"Authorization": "Bearer nonsense"}).status_code in (401, 403)


@pytest.mark.parametrize("path", ["docs", "openapi.json", "redoc"])
def test_no_page_of_the_framework_is_served(house: House, path: str) -> None:
    assert get(house, path, token(house)).status_code == 404


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
