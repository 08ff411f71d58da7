"""The plugin's pages under Airflow's own API server: access, malformed plans, and headers.

The tests use Airflow's simple auth manager; long tests also use FAB's, on SQLite and on PostgreSQL. They need no
scheduler and no cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.chaos.runs.postgres import LocalPostgres
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack

pytestmark = pytest.mark.airflow

HERE = Path(__file__).parent
SIMPLE = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
LINE = PlannedStep("train", "train/x", "abc123", "/store/train/x-abc123", Decision.RUN, "not made yet").to_json()
GOOD: dict[str, Any] = Plan("/store", (PlannedStep("t", "train/x", "abc123", "/s/x", Decision.RUN, "new"),)).to_json()
DEEP = "[" * 20_000 + "]" * 20_000
CLASS = {"__classname__": "subprocess.Popen", "__version__": 1, "__data__": {"args": ["touch", "/tmp/x"]}}
MALFORMED = {
    "steps are a text": {**GOOD, "steps": "x"},
    "steps are a number": {**GOOD, "steps": 7},
    "steps are nothing": {**GOOD, "steps": None},
    "steps are an object": {**GOOD, "steps": {"a": LINE}},
    "a step is a text": {**GOOD, "steps": ["x"]},
    "a step is a list": {**GOOD, "steps": [[LINE]]},
    "a step is nothing": {**GOOD, "steps": [None]},
    "a step is empty": {**GOOD, "steps": [{}]},
    "no prefix": {"steps": [LINE]},
    "prefix is a number": {**GOOD, "prefix": 7},
    "prefix is nothing": {**GOOD, "prefix": None},
    "no such decision": {**GOOD, "steps": [{**LINE, "decision": "ERASE"}]},
    "decision is a list": {**GOOD, "steps": [{**LINE, "decision": ["RUN"]}]},
    "decision is nothing": {**GOOD, "steps": [{**LINE, "decision": None}]},
    "name is a list": {**GOOD, "steps": [{**LINE, "name": ["a"]}]},
    "name is missing": {**GOOD, "steps": [{key: value for key, value in LINE.items() if key != "name"}]},
    "hash is a number": {**GOOD, "steps": [{**LINE, "hash": 7}]},
    "path is an object": {**GOOD, "steps": [{**LINE, "output_path": {"a": 1}}]},
    "path is nothing": {**GOOD, "steps": [{**LINE, "output_path": None}]},
    "reason is a number": {**GOOD, "steps": [{**LINE, "reason": 1.5}]},
    "attempt is a text": {**GOOD, "steps": [{**LINE, "attempt": "many"}]},
    "warnings are a number": {**GOOD, "warnings": 7},
    "a warning is a list": {**GOOD, "warnings": [["x"]]},
    "estimate is a list": {**GOOD, "estimate": ["x"]},
}
"""XComs that look like plans but are invalid."""
HARMLESS = {
    "nothing": None,
    "a text": "plan",
    "a list": [1, 2],
    "a number": 1,
    "an empty object": {},
    "a class": CLASS,
    "classes in lists": [[CLASS]],
    "a text of JSON": json.dumps(CLASS),
}
"""XComs that do not resemble a plan."""


@dataclass
class Responses:
    """Responses of one API server, by user and path."""

    manager: str
    by_request: dict[tuple[str, str], tuple[int, dict[str, str], str]]

    def status(self, user: str, path: str) -> int:
        return self.by_request[user, path][0]


def requests_to_send() -> list[tuple[str, str]]:
    paths = ["plan/one/good", "plan/two/good", "step/one/t/good", "step/two/t/good", "plan/one/none"]
    users = ["admin", "viewer", "runner", "public", "reader_of_one", "stranger"]
    bad = [f"plan/one/{quote(name)}" for name in (*MALFORMED, *HARMLESS, "deep", "no JSON")]
    bad += [f"step/one/t/{quote(name)}" for name in (*MALFORMED, *HARMLESS, "deep", "no JSON")]
    unusual = ["plan/one/%00", "plan/%00/x", "step/one/%00/x", "plan/one/%ED%A0%80", "plan/one/%0A", "step/one/t/x%00y",
           "step/one/t/good?map_index=99999999999999999999", "step/one/t/good?map_index=NaN", "plan/~/good", "plan/-/x",
           f"plan/one/{'x' * 5000}", "assets/pages.css", "assets/links.js", "assets/..%2Fpages.py", "assets/%00",
           "nothing/here"]  # fmt: skip
    return [(user, path) for user in users for path in paths] + [
        (user, path) for user in ("admin", "stranger") for path in (*bad, *unusual)
    ]


def xcoms(is_sqlite: bool) -> list[dict[str, Any]]:
    values = {"good": json.dumps(GOOD)}
    values |= {name: json.dumps(value) for name, value in (MALFORMED | HARMLESS).items()}
    if is_sqlite:  # PostgreSQL validates the JSON that it stores
        values |= {"deep": f'{{"steps": {DEEP}}}', "no JSON": "{steps"}
    rows = [{"dag_id": "one", "run_id": run, "value": value} for run, value in values.items()]
    rows.append({"dag_id": "two", "run_id": "good", "value": values["good"]})
    return [{**row, "task_id": "plan", "key": "return_value"} for row in rows]


def send_requests(home: Path, manager: str, database: str) -> Responses:
    requests = requests_to_send()
    env = dict(
        os.environ,
        AIRFLOW_HOME=str(home),
        AIRFLOW__CORE__AUTH_MANAGER=manager,
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=database,
        AIRFLOW__API_AUTH__JWT_SECRET="only-for-this-test-" * 4,
        AIRFLOW__API__SECRET_KEY="only-for-this-test",
        AIRFLOW__FAB__SESSION_BACKEND="securecookie",
        PYTHONPATH=str(HERE.parents[1]),
    )
    if manager == FAB:  # FAB has tables of its own
        migrated = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"], env=env, capture_output=True, text=True, check=False
        )
        assert migrated.returncode == 0, migrated.stderr[-3000:]
    given = json.dumps({"xcoms": xcoms(database.startswith("sqlite")), "requests": requests})
    done = subprocess.run(
        [sys.executable, "-m", "tests.airflow.pages_child"], env=env, input=given, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, done.stderr[-3000:]
    answers = json.loads(lines[0].removeprefix("ANSWERS"))
    return Responses(manager, {key: tuple(answer) for key, answer in zip(requests, answers, strict=True)})


FAB_SERVERS = [pytest.param((FAB, database), marks=pytest.mark.long) for database in ("sqlite", "postgres")]


@pytest.fixture(scope="module", params=[(SIMPLE, "sqlite"), *FAB_SERVERS], ids=lambda one: one[1])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Responses]:
    manager, database = request.param
    home = tmp_path_factory.mktemp("airflow")
    if database == "sqlite":
        airflow = LocalAirflow(LocalStack(home), dags_folder=home, connections={}, settings={})
        airflow.prepare()  # copies the empty database that the first Airflow of the test run created
        yield send_requests(home, manager, f"sqlite:///{airflow.home}/airflow.db")
        return
    stack = LocalStack(home)
    postgres = LocalPostgres(stack)
    try:
        postgres.start()
        yield send_requests(home, manager, postgres.url)
    finally:
        stack.stop()
        postgres.remove()


def test_pages_require_read_access_to_dag_and_xcoms(server: Responses) -> None:
    is_fab = server.manager == FAB
    for path, dag in [("plan/one/good", "one"), ("plan/two/good", "two"), ("step/one/t/good", "one"),
                      ("step/two/t/good", "two"), ("plan/one/none", "one")]:  # fmt: skip
        for user in ("admin", "viewer", "runner"):
            assert server.status(user, path) == 200, (user, path)
        assert server.status("stranger", path) == 401
        assert server.status("public", path) == 403
        if is_fab:
            assert server.status("reader_of_one", path) == (200 if dag == "one" else 403)
    assert "train/x" in server.by_request["viewer", "plan/one/good"][2]
    assert "This run has no plan yet." in server.by_request["viewer", "plan/one/none"][2]


def test_no_response_fails_or_lacks_headers_or_has_code(server: Responses) -> None:
    for request, (status, headers, text) in server.by_request.items():
        assert status < 500, (request, text)
        policy = headers.get("content-security-policy", "")
        assert "default-src 'none'" in policy and "frame-ancestors 'self'" in policy, (request, status)
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "<style" not in text and "<script>" not in text and " onclick" not in text


@pytest.mark.parametrize("kind", ["plan/one", "step/one/t"])
def test_malformed_plan_is_reported_on_the_page(server: Responses, kind: str) -> None:
    for name in MALFORMED:
        status, _, text = server.by_request["admin", f"{kind}/{quote(name)}"]
        assert (status, "cannot be shown: " in text) == (200, True), (name, text[-300:])
    for name in HARMLESS:
        status, _, text = server.by_request["admin", f"{kind}/{quote(name)}"]
        assert (status, "This run has no plan yet" in text) == (200, True), (name, text[-300:])


def test_only_assets_are_served_and_only_to_users(server: Responses) -> None:
    assert server.by_request["admin", "assets/pages.css"][:1] == (200,)
    assert server.by_request["admin", "assets/links.js"][1]["content-type"].startswith("text/javascript")
    assert server.status("stranger", "assets/pages.css") == 401
    assert {server.status("admin", path) for path in ("assets/..%2Fpages.py", "assets/%00", "nothing/here")} == {404}
