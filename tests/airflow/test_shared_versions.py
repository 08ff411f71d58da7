"""One result per version, while runs share it, a user clears or stops it, or a process dies; and bad input."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from tests.airflow.conftest import DagRun, Environment
from tests.support.waiting import limit_s, until

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def calls(env: Environment, name: str) -> int:
    """Count the calls of the step's function for all versions."""
    return sum(len(file.read_text().splitlines()) for file in env.store.glob(f"{name}-??????.calls"))


def test_killed_worker_leaves_one_call_of_step_function(env: Environment) -> None:
    outcomes = {
        "before submission": ["lost", "succeeded"],
        "after submission": ["succeeded"],
        "after the note": ["succeeded"],
    }
    with env.idle():
        runs = {moment: env.begin("killed_step", {"at": moment}) for moment in outcomes}
    for moment, run in runs.items():
        run.wait()
        task = run.task("killed_step")
        assert (task["state"], task["try_number"]) == ("success", 2), run.log("killed_step")
        [step] = env.api.xcom(run.dag_id, run.run_id, "plan")["steps"]
        output = Path(step["output_path"])
        assert (output / "calls").read_text() == "called\n"
        files = sorted(output.glob(".attempts/*.json"))
        assert [json.loads(file.read_text())["outcome"] for file in files] == outcomes[moment]
        assert len(run.jobs()) == 1


def test_waiting_dates_inherit_one_failure(env: Environment, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    conf = {"gate": str(gate), "says": "fail", "name": "failure"}
    before = calls(env, "gated/shared")
    with env.idle():
        runs = [env.begin("gated", conf, datetime(2026, 5, day, tzinfo=UTC)) for day in (1, 2, 3)]

    def states() -> list[str | None]:
        return [run.states().get("gated_shared") for run in runs]

    until(lambda: states().count("deferred") == len(runs) - 1, "all dates but one to wait", seen=states)
    gate.touch()
    for run in runs:
        run.wait()
    assert {run.state for run in runs} == {"failed"}
    assert calls(env, "gated/shared") == before + 1
    for run in runs:
        log = run.log("gated_shared")
        assert "failed" in log and "ValueError: told to fail" in log


def test_steps_cleared_downstream_rerun_only_if_inputs_changed(env: Environment) -> None:
    run = env.run("chained")
    assert run.state == "success" and run.jobs() == [], "the worker runs the steps"

    def clear_first() -> None:
        env.api.clear_task("chained", run.run_id, "chained_first", downstream=True)
        until(lambda: run.state == "success" and run.states()["chained_third"] == "success", "the cleared steps")

    clear_first()
    assert [calls(env, f"chained/{step}") for step in ("first", "second", "third")] == [2, 1, 1]
    lease = json.loads((env.output("chained/first") / ".executor_status.lock").read_text())
    assert lease["attempt"] == 2
    env.api.clear_task("chained", run.run_id, "chained_second")
    until(lambda: calls(env, "chained/second") == 2, "the second step, which was cleared itself")


def test_plan_cleared_while_step_runs_waits_for_it(env: Environment, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    run = env.begin("gated", {"gate": str(gate), "name": "planned twice"})
    before = calls(env, "gated/shared")
    until(lambda: run.states().get("gated_shared") == "running", "the step to run")
    env.api.clear_task("gated", run.run_id, "plan")
    until(lambda: run.states()["plan"] == "success", "the second plan")
    assert run.decisions() == {"gated_shared": "WAIT"}
    gate.touch()
    run.wait()
    assert run.state == "success" and calls(env, "gated/shared") == before + 1


def test_edited_code_is_used_but_edited_config_needs_new_plan(env: Environment, tmp_path: Path) -> None:
    file, gate = env.dags / "edited.py", tmp_path / "open"
    run = env.begin("edited", {"gate": str(gate)})
    until(lambda: run.states().get("edited_first") == "running", "the first step to run")
    file.write_text(file.read_text().replace("VALUE = 1", "VALUE = 2").replace('WORD = "old"', 'WORD = "new"'))
    gate.touch()
    run.wait()
    assert run.states()["edited_second"] == "failed"
    assert "but this run was planned with" in run.log("edited_second")
    assert "Clear the plan task too" in run.log("edited_second")
    env.api.clear_task("edited", run.run_id, "plan", downstream=True)
    until(lambda: run.state == "success", "the run, planned anew")
    assert (env.output("edited/second") / "word").read_text() == "new"
    assert run.states()["edited_first"] == "skipped", "code is no part of a version"


def test_consumers_run_after_task_killed_past_its_commit(env: Environment) -> None:
    run = env.run("plain_retries", {"dies": True})
    assert run.states() == {"make": "success", "consume": "success"}, run.log("make")
    assert run.task("make")["try_number"] == 2
    assert env.attempts("plain/retried") == 1


def test_clear_is_detected_after_retries_were_lowered(env: Environment) -> None:
    file = env.dags / "lowered_retries.py"
    run = env.run("lowered_retries", {"dies": False})
    before = run.task("make")
    file.write_text(file.read_text().replace("RETRIES = 2", "RETRIES = 1"))
    until(lambda: env.api.task_retries("lowered_retries", "make") == 1, "the edited DAG")
    env.api.clear_task("lowered_retries", run.run_id, "make", downstream=True, with_latest=True)
    until(lambda: env.attempts("plain/lowered") == 2, "the cleared task")
    run.wait()
    after = run.task("make")
    assert (before["try_number"], after["try_number"]) == (1, 2)
    assert before["max_tries"] == after["max_tries"] == 2, "this alone does not show the Clear"
    assert "cleared 1" in run.log("consume")


# ---- a step's Ray job after a user's action, or after a process under it has died


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
