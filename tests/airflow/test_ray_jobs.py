"""Plain Ray jobs through a real Airflow: what users see, and one job per task despite restarts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from tests.airflow.conftest import House, HouseRun
from tests.airflow.ray_side import active, jobs_of, statuses
from tests.support.waiting import until

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def started(house: House, dag_id: str, conf: dict | None = None) -> HouseRun:
    """Start a run; return it when the task's log shows the job's first line."""
    run = house.begin(dag_id, conf)
    until_followed(run)
    return run


def until_followed(run: HouseRun) -> None:
    """Wait for the job's first line in the log of the task's current try."""
    until(lambda: re.search(r" started$", run.log("job"), re.MULTILINE), "the job's first line")


def test_commands_and_functions_run_as_jobs_and_return_results(house: House) -> None:
    run = house.run("ray_hello", {"who": "everybody"})
    assert run.states() == dict.fromkeys(["command", "function", "decorated", "in_worker"], "success")
    assert run.log("command").count("hello everybody from command") == 1
    assert run.log("function").count("adding on") == 1
    results = {task: house.api.xcom("ray_hello", run.run_id, task) for task in run.states()}
    assert results["function"]["sum"] == 42
    assert results["decorated"] == {"total": 6, "count": 3}
    assert results["in_worker"] == 7
    ids = {task: house.api.xcom("ray_hello", run.run_id, task, "submission_id") for task in run.states()}
    assert results["command"] == ids["command"]
    assert sorted(ids.values()) == sorted(job["submission_id"] for job in jobs_of(house.ray_address, run.run_id))
    assert {house.api.xcom("ray_hello", run.run_id, task, "status") for task in run.states()} == {"SUCCEEDED"}
    [command] = [job for job in jobs_of(house.ray_address, run.run_id) if job["submission_id"] == ids["command"]]
    assert command["metadata"]["owner"] == "everybody"


def test_the_links_are_there_while_the_job_runs(house: House) -> None:
    run = started(house, "ray_sleeps")
    [job] = jobs_of(house.ray_address, run.run_id)
    links = house.api.links("ray_sleeps", run.run_id, "job")
    assert links["Ray job"] == f"{house.ray_address}/#/jobs/{job['submission_id']}"
    assert links["Ray log"] == f"{house.ray_address}/api/jobs/{job['submission_id']}/logs"
    house.api.mark_task("ray_sleeps", run.run_id, "job", "success")
    until(lambda: active(house.ray_address, run.run_id) == 0, "the job to stop")


def test_failed_command_fails_task_at_once_with_last_log_lines(house: House) -> None:
    run = house.run("ray_fails")
    assert run.states() == {"job": "failed"}
    assert len(jobs_of(house.ray_address, run.run_id)) == 1
    log = run.log("job")
    assert re.search(r"RayJobFailedError: Ray job '\S+' failed with exit code 3", log)
    assert log.rindex("reason") > log.index("Last 4 lines of the job")


@pytest.mark.parametrize(("dag_id", "state"), [("ray_sleeps", "failed"), ("ray_sleeps_in_worker", "success")])
def test_a_person_who_marks_the_task_stops_its_job(house: House, dag_id: str, state: str) -> None:
    run = started(house, dag_id)
    house.api.mark_task(dag_id, run.run_id, "job", state)
    until(lambda: statuses(house.ray_address, run.run_id) == ["STOPPED"], "the job to stop")
    assert run.states() == {"job": state}


@pytest.mark.parametrize("dag_id", ["ray_sleeps", "ray_sleeps_in_worker"])
def test_a_cleared_task_runs_again_when_its_job_has_ended(house: House, dag_id: str) -> None:
    run = started(house, dag_id)
    most = 0

    def second_runs() -> bool:
        nonlocal most
        found = statuses(house.ray_address, run.run_id)
        most = max(most, len([one for one in found if one == "RUNNING"]))
        return found == ["STOPPED", "RUNNING"]

    house.api.clear_task(dag_id, run.run_id, "job")
    until(second_runs, "the second job")
    assert most == 1
    until_followed(run)
    house.api.mark_task(dag_id, run.run_id, "job", "failed")
    until(lambda: active(house.ray_address, run.run_id) == 0, "the second job to stop")


def test_pending_job_leaves_queue_when_task_is_marked(house: House) -> None:
    run = house.begin("ray_waits")
    until(lambda: statuses(house.ray_address, run.run_id) == ["PENDING"], "the job to wait")
    until(lambda: re.search(r" trigger .* starting$", run.log("job"), re.MULTILINE), "the trigger to follow it")
    house.api.mark_task("ray_waits", run.run_id, "job", "failed")
    until(lambda: active(house.ray_address, run.run_id) == 0, "the job to end")


def test_time_limits_stop_the_job_and_fail_the_task(house: House) -> None:
    long, queued = house.begin("ray_too_long"), house.begin("ray_queues")
    for run in (long, queued):
        run.wait()
        assert run.states() == {"job": "failed"}
        assert active(house.ray_address, run.run_id) == 0
    assert "ran longer than its timeout" in long.log("job")
    assert "was not started within 8 s" in queued.log("job")


def test_a_worker_that_is_killed_leaves_one_job(house: House, tmp_path: Path) -> None:
    for moment in ("before submission", "after submission", "after deferral is due", "after success is noted"):
        file = tmp_path / moment.replace(" ", "_")
        run = house.begin("killed_worker", {"at": moment, "file": str(file), "steps": 600})
        until(partial(was_deferred, house, run), f"the deferral of the task that dies {moment}")
        Path(f"{file}.go").touch()
        run.wait()
        assert run.states() == {"job": "success"}, moment
        [task] = house.api.task_instances("killed_worker", run.run_id)
        assert task["try_number"] == 2, f"{moment}:\n{run.log('job', 2)}"
        assert statuses(house.ray_address, run.run_id) == ["SUCCEEDED"], moment
        assert file.read_text() == "ran\n", moment


def was_deferred(house: House, run: HouseRun) -> bool:
    """Return whether the task is deferred and Airflow's scheduler knows that its worker has ended.

    If the job ended earlier, the scheduler of Airflow 3.3 could mistake the worker's end for that of the next worker.
    """
    if run.states().get("job") != "deferred":
        return False
    log = (house.airflow.stack.logs / "airflow-scheduler.log").read_text(errors="replace")
    events = [line for line in log.splitlines() if "Received executor event with state success" in line]
    return any(run.run_id in line for line in events)


def test_a_finished_task_that_is_cleared_runs_again(house: House, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    run = house.run("killed_worker", {"file": str(file)})
    house.api.clear_task("killed_worker", run.run_id, "job")
    until(lambda: statuses(house.ray_address, run.run_id) == ["SUCCEEDED", "SUCCEEDED"], "the second job")
    run.wait()
    assert file.read_text() == "ran\n" * 2


def test_two_runs_at_once_have_a_job_each(house: House, tmp_path: Path) -> None:
    runs = [house.begin("killed_worker", {"file": str(tmp_path / name)}) for name in ("one", "two")]
    for run in runs:
        run.wait()
        assert statuses(house.ray_address, run.run_id) == ["SUCCEEDED"]
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["ran\n", "ran\n"]


def test_jobs_of_others_are_waited_for_and_stopped(house: House) -> None:
    waited = house.run("ray_waits_for_other")
    assert set(waited.states().values()) == {"success"}
    [job] = jobs_of(house.ray_address, waited.run_id)
    for sensor in ("sensor", "poking"):
        assert house.api.xcom("ray_waits_for_other", waited.run_id, sensor) == job["submission_id"]
    stopped = house.run("ray_stops_other")
    assert set(stopped.states().values()) == {"success"}
    assert statuses(house.ray_address, stopped.run_id) == ["STOPPED"]


def test_reconciler_stops_job_of_task_marked_without_triggerer(house: House) -> None:
    kept, left = started(house, "ray_sleeps"), started(house, "ray_sleeps")
    until(lambda: {**kept.states(), **left.states()} == {"job": "deferred"}, "both tasks to be deferred")
    house.airflow.kill_component("triggerer")
    try:
        house.api.mark_task("ray_sleeps", left.run_id, "job", "failed")
        reconciled = house.run("ray_reconcile")
        [job] = jobs_of(house.ray_address, left.run_id)
        assert job["submission_id"] in house.api.xcom("ray_reconcile", reconciled.run_id, "reconcile")
        assert statuses(house.ray_address, left.run_id) == ["STOPPED"]
        assert statuses(house.ray_address, kept.run_id) == ["RUNNING"]
    finally:
        house.airflow.start_component("triggerer")
    house.api.mark_task("ray_sleeps", kept.run_id, "job", "failed")
    house.run("ray_reconcile")  # the new triggerer may not have started the task's trigger yet
    until(lambda: statuses(house.ray_address, kept.run_id) == ["STOPPED"], "the kept job to stop")
