"""Runs and plans of finished steps: conditions for a valid measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.airflow.dags import EMPTY, EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.airflow.runs import Case, check
from benchmarks.outputs import experiment_of, finished_files, write
from benchmarks.plans.costs import read_bare
from benchmarks.plans.runs import airflows
from tradewind.records.record import RecordState, read_records


def test_outputs_of_a_plan_benchmark_are_finished(tmp_path: Path) -> None:
    experiment = experiment_of("fan", 5, str(tmp_path))
    write(finished_files(experiment))
    records = read_records([step.output_path for step in experiment.steps])
    assert [record.state for record in records.values()] == [RecordState.FINISHED] * 5
    assert read_bare(str(tmp_path), "fan", 5) > 0


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
