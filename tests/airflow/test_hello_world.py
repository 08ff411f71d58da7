"""Steps through the Airflow scheduler: run once, then reused, run again when a user clears them."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
import requests

from tests.airflow.conftest import DagRun, Environment
from tests.airflow.test_plan_page import get, token
from tests.support.waiting import until

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def first_run(env: Environment) -> DagRun:
    return env.run("hello_world")


def test_first_run_makes_every_output_and_explains_it(env: Environment, first_run: DagRun) -> None:
    assert first_run.state == "success"
    assert set(first_run.states().values()) == {"success"}
    stats = env.output("hello_world/stats")
    assert json.loads((stats / "stats.json").read_text()) == {"count": 100, "sum": 4950}
    assert (stats / ".executor_status").read_text() == "SUCCESS"
    info = json.loads((stats / ".executor_info").read_text())
    assert (info["name"], info["fn_name"]) == ("hello_world/stats", "hello_world.make_stats")
    assert info["dependencies"] == [str(env.output("hello_world/data"))]
    plan = first_run.log("plan")
    assert "hello_world/data" in plan and "2 steps: 2 RUN" in plan
    log = first_run.log("hello_world_stats")
    for text in ("submitted as Ray job hello-world-stats-", "{'count': 100, 'sum': 4950}", "is finished: "):
        assert log.count(text) == 1, text
    assert " error " not in log
    link = env.api.xcom("hello_world", first_run.run_id, "hello_world_stats", "_link_RayJobLink")
    job = str(link).rpartition("/")[2]
    assert link == f"{env.ray_address}/#/jobs/{job}"
    assert requests.get(f"{env.ray_address}/api/jobs/{job}", timeout=30).json()["status"] == "SUCCEEDED"


def test_second_run_reuses_every_output(env: Environment, first_run: DagRun) -> None:
    second = env.run("hello_world")
    assert second.state == "success"
    assert second.states() == {"plan": "success", "hello_world_data": "skipped", "hello_world_stats": "skipped"}
    assert set(second.decisions().values()) == {"REUSE"}
    assert (env.attempts("hello_world/data"), env.attempts("hello_world/stats")) == (1, 1)


def test_cleared_reused_step_reruns_alone(env: Environment, first_run: DagRun) -> None:
    run = env.run("hello_world")
    for attempts in (2, 3):
        env.api.clear_task("hello_world", run.run_id, "hello_world_stats")
        until(lambda: run.state == "success" and run.states()["hello_world_stats"] == "success", "the cleared step")
        assert (env.attempts("hello_world/data"), env.attempts("hello_world/stats")) == (1, attempts)


def test_group_runs_between_tasks_of_own_dag_also_if_reused(env: Environment) -> None:
    runs = [env.run("ingest_train_publish") for _ in range(2)]
    model = env.output("publish/model")
    for run, of_steps in zip(runs, ("success", "skipped"), strict=True):
        of_tasks = dict.fromkeys(("ingest", "train.plan", "train.outputs", "publish"), "success")
        assert run.states() == {**of_tasks, "train.publish_selected": of_steps, "train.publish_model": of_steps}
        assert f"{model}: {{'mean': 49.5}}" in run.log("publish")
        [shown] = get(env, f"api/plans/ingest_train_publish/{quote(run.run_id)}", token(env)).json()["plans"]
        decisions = [step["decision"] for step in shown["plan"]["steps"]]
        assert shown["group"] == "train" and decisions.count("RUN") == (2 if of_steps == "success" else 0)
    path = f"api/steps/about/ingest_train_publish/train.publish_model/{quote(runs[1].run_id)}"
    about = get(env, path, token(env)).json()
    assert (about["decision"], about["output_path"]) == ("REUSE", str(model))
    env.api.clear_task("ingest_train_publish", runs[1].run_id, "train.publish_model")
    until(lambda: runs[1].states()["train.publish_model"] == "success", "the cleared step")
    assert (env.attempts("publish/selected"), env.attempts("publish/model")) == (1, 2)


def test_concurrent_dates_share_attempt_of_one_step(env: Environment) -> None:
    runs = [env.begin("dates", date=datetime(2026, 3, day, tzinfo=UTC)) for day in (2, 3, 4)]

    def states() -> list[str | None]:
        return [run.states().get("dates_shared") for run in runs]

    until(lambda: states() == ["deferred"] * 3, "all dates at the shared step", seen=states)
    (env.output("dates/shared") / "all_dates_wait").touch()
    for run in runs:
        run.wait()
    assert [run.state for run in runs] == ["success"] * 3, [run.states() for run in runs]
    assert env.attempts("dates/shared") == 1
    assert (env.output("dates/shared") / "calls").read_text() == "one for all\n"
    logs = [run.log("dates_shared") for run in runs]
    waited = [log for log in logs if "is in progress in task dates_shared of run" in log]
    assert len(waited) == 2
    assert all("is finished: made by task dates_shared of run" in log for log in waited)
    dates = sorted(path.read_text() for path in env.store.glob("dates/dated-??????/calls"))
    assert dates == ["2026-03-01\n", "2026-03-02\n", "2026-03-03\n"]


def test_connection_can_be_tested(env: Environment) -> None:
    done: subprocess.CompletedProcess[str] = env.airflow.cli("connections", "test", "ray_default")
    assert "Connection success!" in done.stdout
    done = env.airflow.cli("connections", "test", "gone")
    assert "does not answer (ConnectionError): start the cluster" in " ".join((done.stdout + done.stderr).split())
