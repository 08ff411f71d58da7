"""One version, one result, however many runs want it and whatever a person does to them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import House, HouseRun, until
from tests.airflow.ray_side import jobs_of
from tradewind.plans.plan import Plan

pytestmark = pytest.mark.airflow

DATES = 12


def calls(house: House, name: str) -> int:
    """How often the function of the step ran, all versions together."""
    return sum(len(file.read_text().splitlines()) for file in house.store.glob(f"{name}-??????.calls"))


def reasons(house: House, run: HouseRun) -> dict[str, str]:
    plan = Plan.from_json(house.api.xcom(run.dag_id, run.run_id, "plan"))
    return {step.task_id: step.reason for step in plan.steps}


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


def until_all_but_one_wait(runs: list[HouseRun]) -> None:
    until(
        lambda: [run.states().get("gated_shared") for run in runs].count("deferred") == len(runs) - 1,
        "all dates but one to wait",
        seconds=400,
    )


def dated_runs(house: House, first: datetime, count: int, conf: dict[str, Any]) -> list[HouseRun]:
    """A run for each of so many nights, all begun before the first of them gets to work, as a backfill has them."""
    with house.idle():
        return [house.begin("gated", conf, first + timedelta(days=day)) for day in range(count)]


def test_twelve_dates_make_what_they_share_once(house: House, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    before = calls(house, "gated/shared")
    runs = dated_runs(house, datetime(2026, 3, 1, tzinfo=UTC), DATES, {"gate": str(gate), "name": "twelve"})
    until_all_but_one_wait(runs)
    gate.touch()
    for run in runs:
        run.wait()
    assert {run.state for run in runs} == {"success"}
    assert calls(house, "gated/shared") == before + 1
    logs = [run.log("gated_shared") for run in runs]
    waited = [log for log in logs if "is in progress in task gated_shared of run" in log]
    assert len(waited) == DATES - 1
    assert all("is finished: made by task gated_shared of run" in log for log in waited)


def test_dates_that_wait_adopt_one_failure(house: House, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    conf = {"gate": str(gate), "says": "fail", "name": "failure"}
    before = calls(house, "gated/shared")
    runs = dated_runs(house, datetime(2026, 5, 1, tzinfo=UTC), 4, conf)
    until_all_but_one_wait(runs)
    gate.touch()
    for run in runs:
        run.wait()
    assert {run.state for run in runs} == {"failed"}
    assert calls(house, "gated/shared") == before + 1
    assert all(
        "failed" in log and "ValueError: told to fail" in log for log in (run.log("gated_shared") for run in runs)
    )


def test_a_failed_step_is_blocked_where_failures_are_not_tried_again(house: House) -> None:
    first = house.run("selected", {"says": "fail"})
    assert first.states()["selected_third"] == "upstream_failed"
    second = house.run("selected", {"force_run_failed": False})
    assert set(second.decisions().values()) == {"BLOCKED"}
    assert second.states()["selected_first"] == "failed"
    assert "ValueError: told to fail" in second.log("selected_first")
    assert calls(house, "selected/first") == 1


def test_a_run_can_be_only_a_part_only_a_plan_or_again(house: House) -> None:
    planned = house.run("selected", {"dry_run": True})
    assert planned.state == "success"
    assert set(planned.decisions().values()) == {"RUN"}
    assert {state for task, state in planned.states().items() if task != "plan"} == {"skipped"}
    part = house.run("selected", {"run_only": ["second"]})
    assert part.decisions() == {"selected_first": "RUN", "selected_second": "RUN", "selected_third": "PRUNED"}
    assert reasons(house, part)["selected_third"] == "not asked for"
    assert house.run("selected").decisions()["selected_third"] == "RUN"
    before = calls(house, "selected/first"), calls(house, "selected/second"), calls(house, "selected/third")
    again = house.run("selected", {"force": ["/second$"], "force_downstream": True})
    assert again.decisions() == {"selected_first": "REUSE", "selected_second": "RUN", "selected_third": "RUN"}
    after = calls(house, "selected/first"), calls(house, "selected/second"), calls(house, "selected/third")
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 1]


def test_steps_cleared_along_are_made_again_only_if_what_they_read_has_changed(house: House) -> None:
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


def test_an_output_that_is_gone_is_made_again(house: House) -> None:
    house.run("chained")
    (house.output("chained/third") / "text").unlink()
    before = calls(house, "chained/third")
    again = house.run("chained")
    assert again.decisions() == {"chained_first": "REUSE", "chained_second": "REUSE", "chained_third": "RUN"}
    assert reasons(house, again)["chained_third"].startswith("ran, output gone")
    assert calls(house, "chained/third") == before + 1


def test_an_output_that_is_damaged_is_made_again_by_a_run_that_looks_for_damage(house: House) -> None:
    house.run("chained")
    text = house.output("chained/third") / "text"
    text.write_text("the sane")
    before, attempt = calls(house, "chained/third"), lease(house, "chained/third")["attempt"]
    again = house.run("chained", {"verify": True})
    assert again.decisions() == {"chained_first": "REUSE", "chained_second": "REUSE", "chained_third": "RUN"}
    assert (calls(house, "chained/third"), lease(house, "chained/third")["attempt"]) == (before + 1, attempt + 1)
    assert text.read_text() == "the same"
    assert set(house.run("chained", {"verify": True}).decisions().values()) == {"REUSE"}


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


def test_edited_code_goes_with_the_next_attempt_and_an_edited_config_asks_for_a_new_plan(
    house: House, tmp_path: Path
) -> None:
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


def test_a_made_output_wakes_its_consumers_and_a_reused_one_says_that_it_is(house: House) -> None:
    house.api.unpause("consumer")
    house.run("told")
    assert house.api.queued_assets("consumer") == ["told/third"], "the scheduler, which plans nothing here, would begin"
    [made] = house.api.asset_events("told/third")
    assert made["extra"]["path"] == str(house.output("told/third"))
    assert made["extra"]["version"] == house.output("told/third").relative_to(house.store).as_posix()
    assert "cached" not in made["extra"]
    house.run("told")
    events = house.api.asset_events("told/third")
    assert [event["extra"].get("cached", False) for event in events] == [False, True]


def test_partitions_have_versions_of_their_own_without_a_logical_date(house: House) -> None:
    house.api.wait_for_dag("parted", 60)
    house.api.unpause("parted")
    for key in ("2026-03-01T00:00:00", "2026-03-02T00:00:00", "2026-03-01T00:00:00"):
        run_id = house.api.trigger("parted", partition_key=key)
        HouseRun(house, "parted", run_id).wait()
        assert house.api.dag_run("parted", run_id)["logical_date"] is None
    assert calls(house, "parted/step") == 2


def test_a_plain_task_makes_each_version_once(house: House) -> None:
    first = house.run("plain_versions", {"n": 7})
    output = Path(house.api.xcom("plain_versions", first.run_id, "plain"))
    assert (output / ".executor_status").read_text() == "SUCCESS"
    second = house.run("plain_versions", {"n": 7})
    assert (first.states(), second.states()) == ({"plain": "success"}, {"plain": "skipped"})
    assert "is finished: made by task plain of run" in second.log("plain")
    assert house.run("plain_versions", {"n": 8}).states() == {"plain": "success"}


def the_task(house: House, run: HouseRun, task_id: str) -> dict[str, Any]:
    [found] = [one for one in house.api.task_instances(run.dag_id, run.run_id) if one["task_id"] == task_id]
    return found


def test_the_consumers_of_a_plain_task_that_was_killed_after_its_commit_run(house: House) -> None:
    run = house.run("plain_retries", {"dies": True})
    assert run.states() == {"make": "success", "consume": "success"}, run.log("make")
    assert the_task(house, run, "make")["try_number"] == 2
    assert house.attempts("plain/retried") == 1


def test_a_clear_after_the_retries_were_lowered_is_seen_by_the_clears_of_the_run(house: House) -> None:
    run = house.run("plain_retries", {"dies": False})
    before, made = the_task(house, run, "make"), house.attempts("plain/retried")
    file = house.dags / "plain_retries.py"
    file.write_text(file.read_text().replace("RETRIES = 2", "RETRIES = 1"))
    until(lambda: house.api.task_retries("plain_retries", "make") == 1, "the edited DAG")
    house.api.clear_task("plain_retries", run.run_id, "make", downstream=True, with_latest=True)
    until(lambda: house.attempts("plain/retried") == made + 1, "the cleared task")
    run.wait()
    after = the_task(house, run, "make")
    assert (before["try_number"], after["try_number"]) == (1, 2)
    assert before["max_tries"] == after["max_tries"] == 2, "this alone says nothing of the Clear"
    assert "cleared 1" in run.log("consume")


def test_dags_test_runs_the_same_steps(house: House) -> None:
    before = calls(house, "chained/first")
    done = house.airflow.cli("dags", "test", "chained", "2026-05-01")
    assert "state=success" in done.stdout + done.stderr
    assert calls(house, "chained/first") == before, "all of it is there already"
