"""Which role may ask which route, under Airflow's own API server: with the simple auth manager, and with FAB.

The routes are those of the application, so a new one without a guard fails. No scheduler and no cluster is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.hostile import page_requests
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack
from tradewind_ui.headers import HEADERS

pytestmark = pytest.mark.airflow

SIMPLE = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
SECRET = "hunter2hunter2-not-for-any-page"
REPOSITORY = Path(__file__).parents[2]
RUN_READERS = {"admin", "op", "runner", "viewer"}
SHOWS_ERRORS = ("/api/steps/progress/", "/api/steps/attempts/", "/api/steps/result/")
ALL = RUN_READERS | {"public", "reader_of_one", "data_reader"}
READERS = {
    SIMPLE: {"run": RUN_READERS, "data": RUN_READERS, "clusters": {"admin", "op"}, "home": ALL},
    FAB: {"run": RUN_READERS, "data": {"admin", "data_reader"}, "clusters": {"admin", "op"}, "home": ALL},
}
"""Auth manager → guard → users who pass. ``reader_of_one`` may read runs and XComs of DAG ``one``, but no logs."""


@dataclass(frozen=True)
class Server:
    """What an API server with this auth manager answered."""

    manager: str
    answers: list[dict[str, Any]]
    others: list[int]
    hostile: list[dict[str, Any]]


def hostile_addresses(store: Path) -> list[str]:
    """Return a part of the requests of ``hostile/test_page_requests``, and write the file that none may show."""
    outside = store.parent / "outside"
    for folder in (store, outside):
        folder.mkdir()
    (outside / "secret").write_text(SECRET)
    (store / "folder").symlink_to(outside)
    (store / "link").symlink_to(outside / "secret")
    paths = page_requests.paths_outside(str(store), str(outside), "127.0.0.1:9")[::3]
    return [
        *(f"/api/data/text?path={quote(path, safe='')}" for path in paths),
        *(f"/api/plans/{each}/x" for each in page_requests.IDS[::2]),
        *(f"/api/fleet?{query}" for query in page_requests.QUERIES[::4]),
    ]


@pytest.fixture(scope="module", params=[SIMPLE, pytest.param(FAB, marks=pytest.mark.long)], ids=["simple", "fab"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    home = tmp_path_factory.mktemp("airflow")
    airflow = LocalAirflow(LocalStack(home), dags_folder=home, connections={}, settings={})
    airflow.prepare()  # copies the empty database that the first Airflow of the test run created
    env = dict(
        os.environ,
        AIRFLOW_HOME=str(home),
        AIRFLOW__CORE__AUTH_MANAGER=request.param,
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{airflow.home}/airflow.db",
        AIRFLOW__API_AUTH__JWT_SECRET="only-for-this-test-" * 4,
        AIRFLOW__API__SECRET_KEY="only-for-this-test",
        AIRFLOW__FAB__SESSION_BACKEND="securecookie",
        AIRFLOW__TRADEWIND__ALLOWED_ROOTS=str(home / "store"),
        PYTHONPATH=str(REPOSITORY),
    )
    if request.param == FAB:  # FAB has tables of its own
        migrated = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"], env=env, capture_output=True, text=True, check=False
        )
        assert migrated.returncode == 0, migrated.stderr[-3000:]
    given = {"dag_ids": ["one", "two"], "hostile": hostile_addresses(home / "store")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ui.access_child"], env=env, input=json.dumps(given),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, done.stderr[-3000:]
    return Server(request.param, **json.loads(lines[0].removeprefix("ANSWERS")))


def test_each_route_has_one_guard_and_only_reads(server: Server) -> None:
    assert server.answers
    for answer in server.answers:
        assert answer["path"].startswith("/api/")
        assert len({*answer["guards"]} - {"logs"}) == 1, f"{answer['path']} has the guards {answer['guards']}"
        assert ("logs" in answer["guards"]) == answer["path"].startswith(SHOWS_ERRORS), answer["path"]
        assert ("run" in answer["guards"]) == ("{dag_id}" in answer["path"]), answer["path"]
        assert answer["methods"] == ["GET"], answer["path"]
    assert set(server.others) == {405}


def test_only_readers_pass_a_guard(server: Server) -> None:
    for answer in server.answers:
        user, [guard] = answer["user"], {*answer["guards"]} - {"logs"}
        readers = READERS[server.manager][guard] | (
            {"reader_of_one"} if answer["guards"] == ["run"] and answer["dag_id"] == "one" else set()
        )
        case = (answer["path"], answer["dag_id"], user, answer["status"], answer["text"])
        if user == "stranger":
            assert answer["status"] == 401, case
        elif user in readers:
            assert answer["status"] not in (401, 403), case
        else:
            assert answer["status"] == 403, case
        if guard == "home" and user != "stranger":
            assert json.loads(answer["text"])["is_visible"] == (user in READERS[server.manager]["clusters"]), case
        if answer["status"] == 403 and user == "reader_of_one" and answer["dag_id"] == "one":
            assert "may not read task logs" in answer["text"], case
        if answer["status"] == 403 and guard == "data":
            assert "no permission to read 'Tradewind Data'. An administrator can give it." in answer["text"], case


def test_hostile_requests_are_refused_as_each_role(server: Server) -> None:
    assert len(server.hostile) > 300
    for answer in server.hostile:
        case = tuple(answer.values())
        assert SECRET not in answer["text"], case
        if answer["address"].startswith("/api/data/"):
            readers = READERS[server.manager]["data"]
            assert 400 <= answer["status"] < 500, case
            assert (answer["status"] == 401) == (answer["user"] == "stranger"), case
            assert answer["user"] in readers or answer["status"] in (401, 403), case
        else:
            assert answer["status"] < 500, case


def test_every_answer_has_the_headers(server: Server) -> None:
    for answer in server.answers:
        assert answer["status"] < 500, answer
        assert {name: answer["headers"].get(name.lower()) for name in HEADERS} == HEADERS, answer["path"]
