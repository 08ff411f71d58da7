"""State of a step's Ray job after a user's action, or after a process under it has died; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.airflow.conftest import DagRun, Environment
from tests.support.waiting import limit_s, until

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

TASK = "slow_step"


def enough(env: Environment, name: str) -> Path:
    """Return the file whose creation ends the function of the step."""
    return env.store / f"enough-{name}"


def begin(env: Environment, name: str) -> DagRun:
    """Start a run; return it when its step runs and the triggerer follows it."""
    run = env.begin("slow_step", {"name": name, "until": str(enough(env, name))})
    until(lambda: "RUNNING" in run.job_statuses(), "the step's job")
    until(lambda: run.states()[TASK] == "deferred", "the task to follow it")
    until(lambda: "working" in run.log(TASK), "the step's first line")
    return run


def output(env: Environment, run: DagRun) -> Path:
    [step] = env.api.xcom(run.dag_id, run.run_id, "plan")["steps"]
    return Path(step["output_path"])


def outcomes(env: Environment, run: DagRun) -> list[str]:
    """Return the outcome of each attempt."""
    return [json.loads(file.read_text())["outcome"] for file in sorted(output(env, run).glob(".attempts/*.json"))]


def test_step_cleared_while_running_is_stopped_and_rerun(env: Environment) -> None:
    run = begin(env, "cleared")
    env.api.clear_task(run.dag_id, run.run_id, TASK)
    until(lambda: run.job_statuses()[:1] == ["STOPPED"], "the first job to stop")
    until(lambda: len(run.jobs()) == 2, "the second job")
    enough(env, "cleared").touch()
    run.wait()
    assert run.states()[TASK] == "success"
    assert run.job_statuses() == ["STOPPED", "SUCCEEDED"]
    assert outcomes(env, run) == ["stopped", "succeeded"]


@pytest.mark.long
def test_reconciler_stops_step_marked_without_triggerer(env: Environment) -> None:
    run = begin(env, "unseen")
    env.airflow.stop_component("triggerer")
    try:
        env.api.mark_task(run.dag_id, run.run_id, TASK, "failed")
        done = env.airflow.cli("tradewind", "reconcile")
        assert done.returncode == 0, done.stderr
    finally:
        env.airflow.start_component("triggerer")
    assert run.job_statuses() == ["STOPPED"]
    assert outcomes(env, run) == ["stopped"]


def test_waiting_run_executes_step_when_user_stops_owner(env: Environment) -> None:
    first = begin(env, "shared")
    second = env.begin("slow_step", {"name": "shared"})
    until(lambda: second.states().get(TASK) == "deferred", "the second run to wait")
    assert second.decisions() == {TASK: "WAIT"}
    env.api.mark_task(first.dag_id, first.run_id, TASK, "success")
    second.wait()
    assert second.states()[TASK] == "success"
    assert outcomes(env, second) == ["stopped", "succeeded"]
    assert first.job_statuses() == ["STOPPED"]
    assert first.states()[TASK] == "success", "as the user marked it"


def test_whole_log_of_attempt_is_stored_beside_output(env: Environment) -> None:
    run = env.run("slow_step", {"name": "logged"})
    log = output(env, run) / ".attempts" / "1" / "driver.log"
    assert log.read_text().splitlines()[-2:] == ["working", "worked"]
    assert f"full log at {log}" not in run.log(TASK), "the task's log holds it all"


def test_killed_driver_costs_attempt_but_no_retry(env: Environment) -> None:
    run = begin(env, "killed")
    [job] = run.jobs()
    file = f"{output(env, run)}/.attempts/1.json"
    drivers = [one for one in env.airflow.stack.processes() if _is_driver_of(one, file)]
    assert drivers
    for driver in drivers:
        driver.kill()
    enough(env, "killed").touch()
    run.wait()
    task = run.task(TASK)
    assert (task["state"], task["try_number"]) == ("success", 1)
    assert outcomes(env, run) == ["lost", "succeeded"]
    assert run.active_jobs() == 0
    assert job["submission_id"] == json.loads((output(env, run) / ".attempts" / "1.json").read_text())["job"]


def _is_driver_of(process: psutil.Process, file: str) -> bool:
    try:
        return "tradewind.runtime.run_step" in process.cmdline() and file in process.cmdline()
    except psutil.Error:
        return False


# ---- bad input that only a cluster, command or DAG processor finds


def test_command_line_names_function_missing_on_cluster(env: Environment) -> None:
    env.api.wait_for_dag("not_on_cluster", limit_s())
    env.api.pause("not_on_cluster")  # otherwise the scheduler starts the tasks of the same run
    file = env.dags / "not_on_cluster.py"
    done = env.airflow.cli("dags", "test", "not_on_cluster", "--dagfile-path", str(file))
    sentence = "Step 'bad/not_on_cluster': 'work_elsewhere' of module 'only_in_airflow' cannot be imported on"
    assert sentence in done.stdout + done.stderr


def test_step_error_fails_task_at_once_with_traceback(env: Environment) -> None:
    run: DagRun = env.run("failing")
    assert run.state == "failed"
    log = run.log("bad_failing")
    assert "about to fail" in log
    assert "raise KeyError(config[" in log
    assert "StepFailedError: Step 'bad/failing' failed with KeyError: 'the value'" in log
    assert env.attempts("bad/failing") == 1  # Airflow's retries are not used for a failure of the function
    assert env.run("failing").state == "failed"
    assert env.attempts("bad/failing") == 2


def test_file_without_valid_experiment_is_import_error(env: Environment) -> None:
    [error] = until(
        lambda: [error for error in env.api.import_errors() if error["filename"].endswith("unknown_param.py")],
        "the file to be read",
    )
    assert (
        "UnknownRunValueError: Step 'train': config.learning_rate: run_param('lr') is not a param of this DAG, "
        "which has rate."
    ) in error["stack_trace"]
