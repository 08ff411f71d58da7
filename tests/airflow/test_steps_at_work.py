"""State of a step's Ray job after a user's action, or after a process under it has died."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.airflow.conftest import House, HouseRun
from tests.airflow.ray_side import active, jobs_of, statuses
from tests.support.waiting import until

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

TASK = "slow_step"


def enough(house: House, name: str) -> Path:
    """Return the file whose creation ends the function of the step."""
    return house.store / f"enough-{name}"


def begin(house: House, name: str) -> HouseRun:
    """Start a run; return it when its step runs and the triggerer follows it."""
    run = house.begin("slow_step", {"name": name, "until": str(enough(house, name))})
    until(lambda: "RUNNING" in statuses(house.ray_address, run.run_id), "the step's job")
    until(lambda: run.states()[TASK] == "deferred", "the task to follow it")
    until(lambda: "working" in run.log(TASK), "the step's first line")
    return run


def output(house: House, run: HouseRun) -> Path:
    plan = house.api.xcom(run.dag_id, run.run_id, "plan")
    [step] = plan["steps"]
    return Path(step["output_path"])


def attempts(house: House, run: HouseRun) -> list[dict[str, Any]]:
    files = sorted(output(house, run).glob(".attempts/*.json"))
    return [json.loads(file.read_text()) for file in files]


def test_a_marked_step_is_stopped_and_its_attempt_says_so(house: House) -> None:
    run = begin(house, "marked")
    house.api.mark_task(run.dag_id, run.run_id, TASK, "failed")
    until(lambda: statuses(house.ray_address, run.run_id) == ["STOPPED"], "the job to stop")
    until(lambda: [one["outcome"] for one in attempts(house, run)] == ["stopped"], "the attempt's end")


def test_a_step_cleared_at_work_is_stopped_and_made_again(house: House) -> None:
    run = begin(house, "cleared")
    house.api.clear_task(run.dag_id, run.run_id, TASK)
    until(lambda: statuses(house.ray_address, run.run_id)[:1] == ["STOPPED"], "the first job to stop")
    until(lambda: len(jobs_of(house.ray_address, run.run_id)) == 2, "the second job")
    enough(house, "cleared").touch()
    run.wait()
    assert run.states()[TASK] == "success"
    assert statuses(house.ray_address, run.run_id) == ["STOPPED", "SUCCEEDED"]
    assert [one["outcome"] for one in attempts(house, run)] == ["stopped", "succeeded"]


@pytest.mark.long
def test_reconciler_stops_step_marked_without_triggerer(house: House) -> None:
    run = begin(house, "unseen")
    house.airflow.stop_component("triggerer")
    try:
        house.api.mark_task(run.dag_id, run.run_id, TASK, "failed")
        done = house.airflow.cli("tradewind", "reconcile")
        assert done.returncode == 0, done.stderr
    finally:
        house.airflow.start_component("triggerer")
    assert statuses(house.ray_address, run.run_id) == ["STOPPED"]
    assert [one["outcome"] for one in attempts(house, run)] == ["stopped"]


def test_waiting_run_executes_step_when_user_stops_owner(house: House) -> None:
    first = begin(house, "shared")
    second = house.begin("slow_step", {"name": "shared"})
    until(lambda: second.states().get(TASK) == "deferred", "the second run to wait")
    assert second.decisions() == {TASK: "WAIT"}
    house.api.mark_task(first.dag_id, first.run_id, TASK, "success")
    second.wait()
    assert second.states()[TASK] == "success"
    assert [one["outcome"] for one in attempts(house, second)] == ["stopped", "succeeded"]
    assert statuses(house.ray_address, first.run_id) == ["STOPPED"]
    assert first.states()[TASK] == "success", "as the person said"


def test_the_whole_log_of_an_attempt_lies_beside_the_output(house: House) -> None:
    run = house.run("slow_step", {"name": "logged"})
    log = output(house, run) / ".attempts" / "1" / "driver.log"
    assert log.read_text().splitlines()[-2:] == ["working", "worked"]
    assert f"full log at {log}" not in run.log(TASK), "the task's log holds it all"


def test_a_driver_that_is_killed_costs_an_attempt_and_no_retry(house: House) -> None:
    run = begin(house, "killed")
    [job] = jobs_of(house.ray_address, run.run_id)
    file = f"{output(house, run)}/.attempts/1.json"
    drivers = [one for one in house.airflow.stack.processes() if _is_driver_of(one, file)]
    assert drivers
    for driver in drivers:
        driver.kill()
    enough(house, "killed").touch()
    run.wait()
    [task] = [ti for ti in house.api.task_instances(run.dag_id, run.run_id) if ti["task_id"] == TASK]
    assert (task["state"], task["try_number"]) == ("success", 1)
    assert [one["outcome"] for one in attempts(house, run)] == ["lost", "succeeded"]
    assert active(house.ray_address, run.run_id) == 0
    assert job["submission_id"] == attempts(house, run)[0]["job"]


def _is_driver_of(process: psutil.Process, file: str) -> bool:
    try:
        return "tradewind.runtime.run_step" in process.cmdline() and file in process.cmdline()
    except psutil.Error:
        return False
