"""Runs and plans of finished steps: conditions for a valid measurement, its report, and the goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.airflow.dags import EMPTY, EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.airflow.runs import Case, Run, check, runs_table
from benchmarks.outputs import experiment_of, finished_files, write
from benchmarks.plans.costs import CLOUD, LOCAL, Planned, plan_goals, read_bare
from benchmarks.plans.runs import airflows, run_goals
from tradewind.records.record import RecordState, read_records


def test_outputs_of_a_plan_benchmark_are_finished(tmp_path: Path) -> None:
    experiment = experiment_of("fan", 5, str(tmp_path))
    write(finished_files(experiment))
    records = read_records([step.output_path for step in experiment.steps])
    assert [record.state for record in records.values()] == [RecordState.FINISHED] * 5
    assert read_bare(str(tmp_path), "fan", 5) > 0


def planned(store: str, steps: int, time: float, **requests: int) -> Planned:
    return Planned(store, steps, 0.0, time, 0.0, time, time / 2, 600.0, 100.0, 1.0, requests)


def runs_of(kind: str, count: int, *times: float, done: int | None = None) -> list[Run]:
    case = Case(kind, "fan", count)
    return [Run(case, time, time - 1, count if done is None else done, count) for time in times]


ABORTED = [*runs_of(EXPERIMENT, 500, 2.0), *runs_of(SELF_CHECK, 500, 30.0, done=100)]


def test_plan_goals_use_time_listings_memory_and_both_peers() -> None:
    in_cloud = [planned(CLOUD, 1_000, 2.5, read=1000, list=30), planned(CLOUD, 100, 1, list=22)]
    plans = [planned(LOCAL, 1_000, 9.0), *in_cloud]
    runs = [*runs_of(EXPERIMENT, 1_000, 4.0, 3.0, 9.0), *runs_of(ONE_CALL, 1_000, 2.0), *ABORTED]
    memory = ("<= 500 MB", "600 MB", False)
    assert [(goal.wanted, goal.here, goal.is_reached) for goal in [*plan_goals(plans), *run_goals(runs)]] == [
        *(memory, ("<= 2.00 s", "2.50 s", False), ("<= 30", "30", True)),
        *(memory, ("<= 21", "22", False)),
        *(memory, ("<= 1.50 times", "2.00 times", False), (">= 50 times faster", "75.0 times", True)),
    ]


def test_aborted_run_is_marked_and_extrapolated_from_its_speed() -> None:
    rows = runs_table("", ABORTED).rows
    assert list(rows[0]) == ["fan 500 experiment, local", "1", "2.00 s", "1.00", "1.00 s", "500 of 500"]
    assert list(rows[1]) == ["fan 500 self-check, local", "1", "~ 150.00 s", "~ 75", "~ 145.00 s", "100 of 500"]


def test_run_without_the_measured_behaviour_is_rejected() -> None:
    skipped = {"plan": "success", "step": "skipped"}
    check(Case(EXPERIMENT, "fan", 1), "success", skipped)
    check(Case(EMPTY, "fan", 1), "success", {"step": "success"})
    check(Case(SELF_CHECK, "fan", 2), "running", {"one": "skipped", "two": None})
    for kind, states in ((EXPERIMENT, {**skipped, "step": "success"}), (EMPTY, {"step": "skipped"})):
        with pytest.raises(RuntimeError, match="were to be"):
            check(Case(kind, "fan", 1), "success", states)
    with pytest.raises(RuntimeError, match="it was running"):
        check(Case(SELF_CHECK, "fan", 2), "running", {"one": "failed", "two": None})


def test_case_that_outlives_its_timeout_gets_its_own_airflow() -> None:
    first, *others = airflows(1_000, 500, 2)
    assert [case.kind for case in first] == [EXPERIMENT] * 4 + [EXPERIMENT, ONE_CALL] * 2
    assert [case.count for case in first] == [500] * 4 + [1_000] * 4
    assert [[(case.kind, case.count) for case in cases] for cases in others] == [[(SELF_CHECK, 500)]] * 2
    every = sum(others, first)
    assert len({case.dag_id for case in every}) == len(set(every)) == 6
