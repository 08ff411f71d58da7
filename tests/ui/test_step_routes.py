"""Routes of the tab Step over a real database of XComs and a store on disk, with hostile XComs, records and files.

Who may ask is tested with all routes in ``test_access``; here the guards are open.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tradewind.plans.plan import UNPLANNED_KEY, Decision, Plan, PlannedStep
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, write_attempt
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.storage import NO_ROOTS
from tradewind.storage.files import write_text

ROUTES = ("config", "attempts", "metrics", "progress", "evaluation", "versions")
RUN = "manual__2026-11-29T19:00:00+00:00"
NOW = 1_790_000_000.0


@dataclass
class Server:
    """The routes, a session of their database, and the store."""

    client: Any
    session: Any
    store: Path

    def put(self, task_id: str, key: str, value: Any, map_index: int = -1) -> None:
        """Store an XCom."""
        from airflow.models.xcom import XComModel

        number = self.session.query(XComModel).count()
        text = value if isinstance(value, str) else json.dumps(value)
        ids = {"dag_run_id": number, "dag_id": "d", "run_id": RUN, "task_id": task_id, "map_index": map_index}
        self.session.add(XComModel(**ids, key=key, value=text))
        self.session.commit()

    def plan(self, path: str, **fields: Any) -> None:
        """Store a plan with one step."""
        step = PlannedStep("train", "train", "aaaaaa", path, Decision.RUN, "never ran", **fields)
        self.put("plan", "return_value", Plan(str(self.store), (step,)).to_json())

    def get(self, route: str, task_id: str = "train", **query: Any) -> tuple[int, Any]:
        """Ask a route about a task."""
        answer = self.client.get(f"/steps/{route}/d/{task_id}/{RUN}", params=query)
        return answer.status_code, answer.json()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import StaticPool

    steps = importlib.import_module("tradewind_ui.api.steps")
    importlib.import_module("tradewind_ui.api.step_outputs")._kept.clear()
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(tmp_path / "store"))
    import_all_models()  # tables refer to each other
    engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)
    Base.metadata.create_all(engine, tables=[XComModel.__table__, TaskInstance.__table__])
    app = FastAPI()
    app.include_router(steps.router)
    guards = [guard for route in steps.router.routes for guard in route.dependencies if guard not in steps.READS_STORE]
    app.dependency_overrides |= {guard.dependency: lambda: None for guard in guards}
    with Session(engine) as session:
        app.dependency_overrides[_get_session] = lambda: session
        yield Server(TestClient(app, raise_server_exceptions=False), session, tmp_path / "store")


@pytest.fixture
def output(server: Server) -> str:
    """Make a finished step with two attempts, another version, metrics and a plan."""
    path = f"{server.store}/train-aaaaaa"
    by = {"dag": "d", "run": RUN, "task": "train"}
    for number, outcome in ((1, AttemptOutcome.FAILED), (2, AttemptOutcome.SUCCEEDED)):
        error = AttemptError("ValueError", "bad \ud800 value", "trace") if number == 1 else None
        start, end = "2026-09-21T14:13:20+00:00", "2026-09-21T14:14:20+00:00"
        write_attempt(
            path,
            Attempt(number, f"j{number}", "c", by, {}, outcome=outcome, error=error, started_at=start, ended_at=end),
        )
    for name, rate in (("aaaaaa", 0.1), ("bbbbbb", 0.2)):
        other = f"{server.store}/train-{name}"
        lease = Lease("w", NOW, Phase.COMMITTED, attempt=2, by=by, witness="metrics.jsonl")
        write_text(lease_path(other), lease.to_json())
        version = {"name": "train", "config": {"rate": rate}, "dependencies": []}
        info = {"name": "train", "fn_name": "m.f", "config": {"rate": rate, "wandb": None}, "version": version}
        write_text(f"{other}/{INFO_FILE}", json.dumps({**info, "dependencies": []}))
        rows = [{"step": step, "time": NOW + step, "train/loss": rate * step} for step in range(5)]
        write_text(f"{other}/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    server.plan(path)
    return path


def test_step_in_plan_is_told_with_its_state_and_links(server: Server, output: str) -> None:
    server.put("train", "_link_RayJobLink", json.dumps("https://ray.example/#/jobs/j2"))
    status, about = server.get("about")
    assert (status, about["name"], about["state"], about["attempt"], about["decision"]) == (
        200, "train", "finished", 2, "RUN",
    )  # fmt: skip
    assert about["shows"] == ["metrics"] and not about["is_active"] and about["problem"] is None
    assert not about["is_by_other_run"]
    assert about["links"] == [{"name": "Ray job", "url": "https://ray.example/#/jobs/j2"}]


def test_output_of_a_later_run_is_said_to_be_its(server: Server, output: str) -> None:
    by = {"dag": "d", "run": "tomorrow", "task": "train"}
    lease = Lease("w", NOW, Phase.COMMITTED, attempt=3, by=by, witness="metrics.jsonl")
    write_text(lease_path(output), lease.to_json())
    about = server.get("about")[1]
    assert (about["state"], about["is_by_other_run"]) == ("finished", True)
    assert about["made_by"] == {**by, "map_index": -1}
    assert [each["made_by"]["run"] for each in server.get("attempts")[1]["attempts"]] == [RUN, RUN]


def test_each_route_reads_the_output(server: Server, output: str) -> None:
    attempts = server.get("attempts")[1]["attempts"]
    assert [(each["number"], each["outcome"]) for each in attempts] == [(2, "succeeded"), (1, "failed")]
    assert attempts[1]["reason"] == "ValueError: bad ? value"
    config = server.get("config")[1]
    assert [(each["path"], each["is_versioned"]) for each in config["config"]["entries"]] == [
        ("rate", True), ("wandb", False),
    ]  # fmt: skip
    curves = server.get("metrics")[1]
    assert curves["curves"][0]["values"] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert server.get("metrics", version="bbbbbb")[1]["curves"][0]["values"][-1] == pytest.approx(0.8)
    assert server.get("metrics", after=curves["place"])[1]["rows"] == 0
    assert {each["hash"] for each in server.get("versions")[1]["versions"]} == {"aaaaaa", "bbbbbb"}
    changes = server.get("difference", old="bbbbbb", new="aaaaaa")[1]["changes"]
    assert [change["what"] for change in changes] == ["config.rate 0.2 → 0.1"]
    assert server.get("progress") == (200, None)
    status, told = server.get("evaluation")
    assert status == 422 and "There is no" in told["detail"]


@pytest.mark.parametrize("path", ["/etc", "gs://other/x", "nowhere://x", "reference://::http://127.0.0.1/x", ""])
def test_forged_output_path_is_not_read(server: Server, path: str) -> None:
    server.plan(path)
    for route in ROUTES:
        status, told = server.get(route)
        assert status == 403 and "The output path of this step" in told["detail"], route
    status, about = server.get("about")
    assert status == 200 and about["state"] is None and "The output path of this step" in about["problem"]


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "data:text/html,x", "//host/x", "https://me:pw@host/", "ftp://h/x", {"a": 1}, "x" * 5000],
)
def test_forged_link_is_left_out(server: Server, output: str, link: Any) -> None:
    server.put("train", "_link_RayLogLink", json.dumps(link))
    assert server.get("about")[1]["links"] == []


def test_task_without_step_says_why(server: Server) -> None:
    assert "run has no plan, and" in server.get("about")[1]["why_empty"]
    assert server.get("attempts")[0] == 404
    server.plan(f"{server.store}/train-aaaaaa")
    assert "no step of the run's plan" in server.get("about", "other")[1]["why_empty"]
    server.put("mapped", UNPLANNED_KEY, {"name": "m", "hash": "cccccc", "output_path": f"{server.store}/m"}, 3)
    assert server.get("about", "mapped", map_index=3)[1]["name"] == "m"
    assert server.get("about", "mapped", map_index=4)[1]["why_empty"]


@pytest.mark.parametrize("value", ['{"steps": 7}', '{"prefix": "x", "steps": [{}]}', "{not JSON", '{"steps": ' * 9000])
def test_plan_that_is_none_is_told(server: Server, value: str) -> None:
    server.put("plan", "return_value", value)
    for route in ("about", *ROUTES):
        status, told = server.get(route)
        assert status == 422 and told["detail"], route


@pytest.mark.parametrize(
    "query",
    [
        {"version": "../../etc"}, {"version": "AAAAAA"}, {"after": "9" * 31}, {"name": ["a"] * 9},
        {"map_index": 10**12}, {"map_index": -2},
    ],
)  # fmt: skip
def test_odd_query_is_refused(server: Server, output: str, query: dict[str, Any]) -> None:
    assert server.get("metrics", **query)[0] == 422


def test_output_of_other_kinds_of_files_is_told(server: Server, output: str) -> None:
    Path(output, "metrics.jsonl").unlink()
    Path(output, "metrics.jsonl").symlink_to("/etc/hostname")
    assert server.get("metrics")[0] == 422
    Path(output, "record.json").write_text("[]")
    assert server.get("evaluation")[0] == 422
    write_text(lease_path(output), "half a l")
    status, about = server.get("about")
    assert status == 200 and about["state"] == "unreadable lease"
    assert server.get("attempts")[0] == 200


def test_linked_folder_of_an_output_is_not_read(server: Server, output: str, tmp_path: Path) -> None:
    """``hostile/test_linked_folders`` has all readers; each of these routes confines them."""
    attempts = Path(output, ".attempts")
    attempts.rename(tmp_path / "outside")
    attempts.symlink_to(tmp_path / "outside")
    assert server.get("attempts")[1]["attempts"] == []
    attempts.unlink()
    (tmp_path / "outside").rename(server.store / "inside")
    attempts.symlink_to(server.store / "inside")
    assert len(server.get("attempts")[1]["attempts"]) == 2


def test_kept_steps_take_little_memory(server: Server) -> None:
    outputs = importlib.import_module("tradewind_ui.api.step_outputs")
    path = f"{server.store}/{'a' * 100}/" * 20
    server.plan(path, producer="x" * (3 << 20), inputs=("x" * 100,) * 10_000)
    assert len(server.get("about")[1]["producer"]) == outputs.MAX_TEXT
    [(_, kept)] = outputs._kept.values()
    assert len(repr(kept)) * 4 * outputs._MAX_KEPT < 22 << 20
    assert kept.output_path == path


def test_all_plans_of_a_run_share_the_limit_of_a_page(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = importlib.import_module("tradewind_ui.api.plans")
    for group in ("a", "b", "c"):
        step = PlannedStep(f"{group}.train", "train", "aaaaaa", "/o", Decision.RUN, "never ran")
        server.put(f"{group}.plan", "return_value", Plan(str(server.store), (step,)).to_json())
    server.put("b.plan", "return_value", {"steps": "x" * 1000}, map_index=3)
    size = next(iter(plans.plan_tasks("d", RUN, server.session).values()))
    monkeypatch.setattr(plans, "MAX_XCOM_CHARS", 2 * size + 1)
    first, second, third = plans._plans("d", RUN, server.session)
    assert (first.group, second.group, third.group) == ("a", "b", "c")
    assert first.plan and second.plan and third.plan is None and "too long to show all" in third.problem


def test_few_requests_read_stores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import HTTPException

    outputs = importlib.import_module("tradewind_ui.api.step_outputs")
    monkeypatch.setattr(outputs, "_WAIT_S", 0.01)

    async def ask() -> None:
        few_at_once = outputs.FewAtOnce(1)
        first, second = few_at_once(NO_ROOTS), few_at_once(NO_ROOTS)
        await anext(first)
        with pytest.raises(HTTPException) as refused:
            await anext(few_at_once(NO_ROOTS))
        assert refused.value.status_code == 503
        await first.aclose()
        await anext(second)
        await second.aclose()

    asyncio.run(ask())
    # Not until the answer is sent, which a client may read as slowly as it likes.
    assert all(each.scope == "function" for each in outputs.READS_STORE + outputs.READS_PLANS)
    assert all(
        outputs.READS_STORE[0] in route.dependencies
        for route in importlib.import_module("tradewind_ui.api.steps").router.routes
    )
