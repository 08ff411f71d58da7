"""One result per version, while several runs need it, a user clears them or a worker is killed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import House, HouseRun
from tests.airflow.ray_side import jobs_of
from tests.support.waiting import until

pytestmark = pytest.mark.airflow


def calls(house: House, name: str) -> int:
    """Count the calls of the step's function for all versions."""
    return sum(len(file.read_text().splitlines()) for file in house.store.glob(f"{name}-??????.calls"))


def lease(house: House, name: str) -> dict[str, Any]:
    return dict(json.loads((house.output(name) / ".executor_status.lock").read_text()))


@pytest.mark.ray
def test_a_worker_that_is_killed_leaves_one_call_of_the_function(house: House) -> None:
    outcomes = {
        "before submission": ["lost", "succeeded"],
        "after submission": ["succeeded"],
        "after the note": ["succeeded"],
    }
    with house.idle():
        runs = {moment: house.begin("killed_step", {"at": moment}) for moment in outcomes}
    for moment, run in runs.items():
        run.wait()
        leaves_one_call(house, run, outcomes[moment])


def leaves_one_call(house: House, run: HouseRun, outcomes: list[str]) -> None:
    [task] = [one for one in house.api.task_instances(run.dag_id, run.run_id) if one["task_id"] == "killed_step"]
    assert (task["state"], task["try_number"]) == ("success", 2), run.log("killed_step")
    [step] = house.api.xcom(run.dag_id, run.run_id, "plan")["steps"]
    output = Path(step["output_path"])
    assert (output / "calls").read_text() == "called\n"
    files = sorted(output.glob(".attempts/*.json"))
    assert [json.loads(file.read_text())["outcome"] for file in files] == outcomes
    assert len(jobs_of(house.ray_address, run.run_id)) == 1


def test_dates_that_wait_adopt_one_failure(house: House, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    conf = {"gate": str(gate), "says": "fail", "name": "failure"}
    before = calls(house, "gated/shared")
    with house.idle():
        runs = [house.begin("gated", conf, datetime(2026, 5, day, tzinfo=UTC)) for day in (1, 2, 3)]

    def states() -> list[str | None]:
        return [run.states().get("gated_shared") for run in runs]

    until(lambda: states().count("deferred") == len(runs) - 1, "all dates but one to wait", seen=states)
    gate.touch()
    for run in runs:
        run.wait()
    assert {run.state for run in runs} == {"failed"}
    assert calls(house, "gated/shared") == before + 1
    assert all(
        "failed" in log and "ValueError: told to fail" in log for log in (run.log("gated_shared") for run in runs)
    )


def test_steps_cleared_downstream_rerun_only_if_inputs_changed(house: House) -> None:
    run = house.run("chained")
    assert run.state == "success"

    def clear_first() -> None:
        house.api.clear_task("chained", run.run_id, "chained_first", downstream=True)
        until(lambda: run.state == "success" and run.states()["chained_third"] == "success", "the cleared steps")

    clear_first()
    assert [calls(house, f"chained/{step}") for step in ("first", "second", "third")] == [2, 1, 1]
    assert lease(house, "chained/first")["attempt"] == 2
    house.api.clear_task("chained", run.run_id, "chained_second")
    until(lambda: calls(house, "chained/second") == 2, "the second step, which was cleared itself")


def test_a_plan_cleared_while_steps_run_leaves_them_alone(house: House, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    run = house.begin("gated", {"gate": str(gate), "name": "planned twice"})
    before = calls(house, "gated/shared")
    until(lambda: run.states().get("gated_shared") == "running", "the step to run")
    house.api.clear_task("gated", run.run_id, "plan")
    until(lambda: run.states()["plan"] == "success", "the second plan")
    assert run.decisions() == {"gated_shared": "WAIT"}
    gate.touch()
    run.wait()
    assert run.state == "success" and calls(house, "gated/shared") == before + 1


def test_edited_code_is_used_but_edited_config_needs_new_plan(house: House, tmp_path: Path) -> None:
    file, gate = house.dags / "edited.py", tmp_path / "open"
    run = house.begin("edited", {"gate": str(gate)})
    until(lambda: run.states().get("edited_first") == "running", "the first step to run")
    file.write_text(file.read_text().replace("VALUE = 1", "VALUE = 2").replace('WORD = "old"', 'WORD = "new"'))
    gate.touch()
    run.wait()
    assert run.states()["edited_second"] == "failed"
    assert "but this run was planned with" in run.log("edited_second")
    assert "Clear the plan task too" in run.log("edited_second")
    house.api.clear_task("edited", run.run_id, "plan", downstream=True)
    until(lambda: run.state == "success", "the run, planned anew")
    assert (house.output("edited/second") / "word").read_text() == "new"
    assert run.states()["edited_first"] == "skipped", "code is no part of a version"


def the_task(house: House, run: HouseRun, task_id: str) -> dict[str, Any]:
    [found] = [one for one in house.api.task_instances(run.dag_id, run.run_id) if one["task_id"] == task_id]
    return found


def test_consumers_run_after_task_killed_past_its_commit(house: House) -> None:
    run = house.run("plain_retries", {"dies": True})
    assert run.states() == {"make": "success", "consume": "success"}, run.log("make")
    assert the_task(house, run, "make")["try_number"] == 2
    assert house.attempts("plain/retried") == 1


def test_clear_is_detected_after_retries_were_lowered(house: House) -> None:
    # The file exists from the start: Airflow stores changes of a DAG at least 30 s apart.
    file = house.dags / "lowered_retries.py"
    run = house.run("lowered_retries", {"dies": False})
    before = the_task(house, run, "make")
    file.write_text(file.read_text().replace("RETRIES = 2", "RETRIES = 1"))
    until(lambda: house.api.task_retries("lowered_retries", "make") == 1, "the edited DAG")
    house.api.clear_task("lowered_retries", run.run_id, "make", downstream=True, with_latest=True)
    until(lambda: house.attempts("plain/lowered") == 2, "the cleared task")
    run.wait()
    after = the_task(house, run, "make")
    assert (before["try_number"], after["try_number"]) == (1, 2)
    assert before["max_tries"] == after["max_tries"] == 2, "this alone says nothing of the Clear"
    assert "cleared 1" in run.log("consume")
