"""Steps through the Airflow scheduler: run once, then reused, run again when a user clears them."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime

import pytest
import requests

from tests.airflow.conftest import House, HouseRun
from tests.support.waiting import until

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def first_run(house: House) -> HouseRun:
    return house.run("hello_world")


def test_a_first_run_makes_every_output(house: House, first_run: HouseRun) -> None:
    assert first_run.state == "success"
    assert set(first_run.states().values()) == {"success"}
    stats = house.output("hello_world/stats")
    assert json.loads((stats / "stats.json").read_text()) == {"count": 100, "sum": 4950}
    assert (stats / ".executor_status").read_text() == "SUCCESS"
    info = json.loads((stats / ".executor_info").read_text())
    assert (info["name"], info["fn_name"]) == ("hello_world/stats", "hello_world.make_stats")
    assert info["dependencies"] == [str(house.output("hello_world/data"))]


def test_the_task_log_tells_what_happened(first_run: HouseRun) -> None:
    plan = first_run.log("plan")
    assert "hello_world/data" in plan and "2 steps: 2 RUN" in plan
    log = first_run.log("hello_world_stats")
    for text in ("submitted as Ray job hello-world-stats-", "{'count': 100, 'sum': 4950}", "is finished: "):
        assert log.count(text) == 1, text
    assert " error " not in log


def test_the_ray_link_leads_to_the_job(house: House, first_run: HouseRun) -> None:
    link = house.api.xcom("hello_world", first_run.run_id, "hello_world_stats", "_link_RayJobLink")
    job = str(link).rpartition("/")[2]
    assert link == f"{house.ray_address}/#/jobs/{job}"
    assert requests.get(f"{house.ray_address}/api/jobs/{job}", timeout=30).json()["status"] == "SUCCEEDED"


def test_a_second_run_reuses_everything(house: House, first_run: HouseRun) -> None:
    second = house.run("hello_world")
    assert second.state == "success"
    assert second.states() == {"plan": "success", "hello_world_data": "skipped", "hello_world_stats": "skipped"}
    assert set(second.decisions().values()) == {"REUSE"}
    assert (house.attempts("hello_world/data"), house.attempts("hello_world/stats")) == (1, 1)


def clear_stats(house: House, run: HouseRun) -> None:
    """Clear the last step as a user does, and wait until the run has ended again."""
    house.api.clear_task("hello_world", run.run_id, "hello_world_stats")
    until(lambda: run.state == "success" and run.states()["hello_world_stats"] == "success", "the cleared step")


def test_clearing_a_reused_step_makes_it_again_and_only_it(house: House, first_run: HouseRun) -> None:
    run = house.run("hello_world")
    clear_stats(house, run)
    assert (house.attempts("hello_world/data"), house.attempts("hello_world/stats")) == (1, 2)
    clear_stats(house, run)
    assert (house.attempts("hello_world/data"), house.attempts("hello_world/stats")) == (1, 3)


def test_dates_that_want_one_step_at_once_share_its_attempt(house: House) -> None:
    runs = [house.begin("dates", date=datetime(2026, 3, day, tzinfo=UTC)) for day in (2, 3, 4)]

    def states() -> list[str | None]:
        return [run.states().get("dates_shared") for run in runs]

    until(lambda: states() == ["deferred"] * 3, "all dates at the shared step", seen=states)
    (house.output("dates/shared") / "all_are_here").touch()
    for run in runs:
        run.wait()
    assert [run.state for run in runs] == ["success"] * 3, [run.states() for run in runs]
    assert house.attempts("dates/shared") == 1
    assert (house.output("dates/shared") / "calls").read_text() == "one for all\n"
    logs = [run.log("dates_shared") for run in runs]
    waited = [log for log in logs if "is in progress in task dates_shared of run" in log]
    assert len(waited) == 2
    assert all("is finished: made by task dates_shared of run" in log for log in waited)
    nights = sorted(path.read_text() for path in house.store.glob("dates/dated-??????/calls"))
    assert nights == ["2026-03-01\n", "2026-03-02\n", "2026-03-03\n"]


def test_marin_file_runs_in_worker_and_as_ray_task(house: House) -> None:
    run = house.run("shared_steps")
    assert run.state == "success"
    assert "value" in json.loads((house.output("worker/step") / ".artifact.json").read_text())
    assert json.loads((house.output("worker/ray_task") / ".artifact.json").read_text())["task"]
    jobs = {job["submission_id"] for job in requests.get(f"{house.ray_address}/api/jobs/", timeout=30).json()}
    assert any(job.startswith("worker-ray-task-") for job in jobs)
    assert not any(job.startswith("worker-step-") for job in jobs)


def test_the_connection_can_be_tested(house: House) -> None:
    done: subprocess.CompletedProcess[str] = house.airflow.cli("connections", "test", "ray_default")
    assert "Connection success!" in done.stdout
    done = house.airflow.cli("connections", "test", "gone")
    assert "does not answer (ConnectionError): start the cluster" in " ".join((done.stdout + done.stderr).split())
