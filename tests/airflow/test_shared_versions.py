"""One result per version, while several runs need it, a user clears them or a worker is killed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.airflow.conftest import Environment
from tests.support.waiting import until

pytestmark = pytest.mark.airflow


def calls(env: Environment, name: str) -> int:
    """Count the calls of the step's function for all versions."""
    return sum(len(file.read_text().splitlines()) for file in env.store.glob(f"{name}-??????.calls"))


@pytest.mark.ray
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
