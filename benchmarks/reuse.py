"""A run in which every step is finished before, in a real Airflow, beside tasks that do nothing with the same edges.

The outputs are declared finished beforehand, so no step function and no Ray is involved. Peers: ``plain``, whose tasks
each get a worker process that does nothing, and ``empty``, Airflow's ``EmptyOperator``, which only the scheduler sees.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.airflow_house import bench_airflow
from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.plans_store import write_finished
from benchmarks.report import Table, ratio, seconds
from tradewind.rehearsal.airflow_api import AirflowApi, AirflowApiError
from tradewind.steps import resolve

ROOT = Path(__file__).parents[1]
DAG_FILE = (
    "from benchmarks.dags import make_dag  # airflow\n\ndag = make_dag({kind!r}, {shape!r}, {count}, {prefix!r})\n"
)
PARSE_TIMEOUT = 120.0


@dataclass(frozen=True)
class Case:
    """One DAG: how it is made, how often it is run, and how many seconds one run may take."""

    kind: str
    shape: str
    count: int
    repeats: int
    budget: float

    @property
    def dag_id(self) -> str:
        return f"{self.kind}_{self.shape}_{self.count}"


@dataclass(frozen=True)
class Measured:
    """One run: from the trigger to its end, from its start to its end, and how many tasks were done by then."""

    wall: float
    run: float
    tasks_done: int
    tasks: int

    @property
    def is_whole(self) -> bool:
        """Whether the run ended within its budget; if not, the times are lower bounds."""
        return self.tasks_done == self.tasks


def bench_reuse(quick: bool = False) -> list[Table]:
    """Run each DAG and compare the medians."""
    groups = [_group("chain", 20, 1 if quick else 3, 120.0)]
    if not quick:
        groups.append(_group("fan", 500, 1, 300.0))
    table = Table(
        "reuse: a run whose steps are all finished, beside tasks that do nothing, in a real Airflow",
        ("DAG", "runs", "trigger → end", "÷ experiment", "start → end", "tasks done"),
        notes=(
            "Airflow's defaults except what the rehearsal sets: SQLite, LocalExecutor with 8 workers, short pauses.",
            "chain: each task after the one before; fan: one, then all but two side by side, then one.",
            "> means that the run was given up then: a lower bound.",
        ),
    )
    every = [case for group in groups for case in group]
    with bench_airflow(partial(_write_dags, every)) as api:
        for group in groups:
            _add_group(table, api, group)
    return [table]


def _group(shape: str, count: int, repeats: int, budget: float) -> list[Case]:
    """The experiment first; the slowest last, because what it leaves behind when it is given up would slow others."""
    experiment = Case("experiment", shape, count, max(repeats, 3) if repeats > 1 or count > 20 else 1, budget)
    return [experiment, replace(experiment, kind="empty"), replace(experiment, kind="plain", repeats=repeats)]


def _add_group(table: Table, api: AirflowApi, cases: Sequence[Case]) -> None:
    ours = 0.0
    for case in cases:
        measured = _run_case(api, case)
        wall = statistics.median(one.wall for one in measured)
        ours = ours or wall
        worst = min(measured, key=lambda one: one.tasks_done)
        mark = "" if worst.is_whole else "> "
        table.add(
            f"{case.shape} {case.count} {case.kind}",
            str(len(measured)),
            mark + seconds(wall),
            mark + ratio(wall, ours),
            mark + seconds(statistics.median(one.run for one in measured)),
            f"{worst.tasks_done} of {worst.tasks}",
        )


def _run_case(api: AirflowApi, case: Case) -> list[Measured]:
    api.wait_for_dag(case.dag_id, PARSE_TIMEOUT)
    api.unpause(case.dag_id)
    measured: list[Measured] = []
    while len(measured) < case.repeats and all(one.is_whole for one in measured):
        measured.append(_run_once(api, case))
    return measured


def _run_once(api: AirflowApi, case: Case) -> Measured:
    """One run. Its end is the one that Airflow writes down, so how often it is asked for does not matter."""
    triggered = datetime.now(UTC)
    run_id = api.trigger(case.dag_id)
    try:
        run = api.wait_for_run(case.dag_id, run_id, case.budget)
    except AirflowApiError as error:
        if error.status is not None:  # a request was refused, which is no slowness
            raise
        run = api.dag_run(case.dag_id, run_id)
    tasks = api.task_instances(case.dag_id, run_id)
    _check(case, run["state"], tasks)
    end = _moment(run["end_date"])
    done = sum(task["state"] in ("success", "skipped") for task in tasks)
    return Measured(
        wall=(end - triggered).total_seconds(),
        run=(end - _moment(run["start_date"])).total_seconds(),
        tasks_done=done,
        tasks=len(tasks),
    )


def _moment(text: str | None) -> datetime:
    """A moment as the API gives it; now, if it has not come yet."""
    return datetime.fromisoformat(text) if text else datetime.now(UTC)


def _check(case: Case, run_state: str, tasks: Sequence[dict[str, Any]]) -> None:
    """A figure counts only if the run did what it is measured for."""
    states = {task["task_id"]: task["state"] for task in tasks}
    if run_state == "failed" or "failed" in states.values():
        raise RuntimeError(f"A run of {case.dag_id} failed: {states}")
    if (
        case.kind == "experiment"
        and run_state == "success"
        and (states.pop("plan"), *set(states.values()))
        != (
            "success",
            "skipped",
        )
    ):
        raise RuntimeError(f"{case.dag_id} did not reuse all its steps: {states}")


def _write_dags(cases: Sequence[Case], folder: Path, prefix: str) -> None:
    """One file for each DAG, since every task process reads its DAG's file; and outputs that are finished."""
    folder.mkdir(parents=True)
    for case in cases:
        text = DAG_FILE.format(kind=case.kind, shape=case.shape, count=case.count, prefix=prefix)
        (folder / f"{case.dag_id}.py").write_text(text)
        if case.kind == "experiment":
            graph = SHAPES[case.shape](case.count)
            write_finished(resolve(last_steps(graph, steps_of(graph)), prefix))
