"""Runs of DAGs with finished steps in a real Airflow: time from the trigger, and from the start, to the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.airflow.dags import EMPTY, EXPERIMENT, FIRST, ONE_CALL, PLAIN, SELF_CHECK, SKIPPED
from benchmarks.airflow.environment import bench_airflow
from benchmarks.harness import median
from benchmarks.outputs import BUCKET_PREFIX, LATENCY_S, checked_files, cloud_of, experiment_of, finished_files, write
from benchmarks.report import Table, ratio, seconds
from tradewind.rehearsal.local.airflow_api import AirflowApi, AirflowApiError

DAG_FILE = (
    "from benchmarks.airflow.dags import make_dag  # airflow\n\n"
    "dag = make_dag({kind!r}, {shape!r}, {count}, {prefix!r}, {dag_id!r})\n"
)
LOCAL, CLOUD = "local", "gs"
PARSE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Case:
    """A DAG to run: its kind, shape and size, and the store of its outputs."""

    kind: str
    shape: str
    count: int
    store: str = LOCAL

    @property
    def dag_id(self) -> str:
        return re.sub(r"\W", "_", f"{self.kind}_{self.shape}_{self.count}_{self.store}")


@dataclass(frozen=True)
class Run:
    """One run: seconds to its end or its timeout, and how many tasks were done by then."""

    case: Case
    since_trigger: float
    since_start: float
    tasks_done: int
    tasks: int

    @property
    def scale(self) -> float:
        """Factor from the time so far to that of the whole run at the same speed."""
        return self.tasks / max(self.tasks_done, 1)


def bench_reuse(quick: bool) -> Iterator[Table]:
    """Compare an experiment with empty tasks of the same edges, in worker processes or in the scheduler only."""
    repeats = 1 if quick else 3
    airflows = [[Case(kind, "chain", 20) for kind in (EXPERIMENT, EMPTY, PLAIN)] * repeats]
    if not quick:
        airflows += [[Case(kind, "fan", 500) for kind in (EXPERIMENT, EMPTY)] * repeats, [Case(PLAIN, "fan", 500)]]
    # Declared finished beforehand: no step function and no Ray is involved.
    runs = measure_runs(airflows, 120.0 if quick else 300.0)
    yield runs_table("reuse: a run whose steps are all finished, beside tasks that do nothing, in a real Airflow", runs)


def measure_runs(airflows: Sequence[Sequence[Case]], budget_s: float) -> list[Run]:
    """Run the cases of each Airflow in their order.

    A run that continues after its timeout ``budget_s`` would slow others, so a case that may time out has its own
    Airflow.
    """
    runs: list[Run] = []
    for cases in airflows:
        in_cloud = max((case.count for case in cases if case.store == CLOUD), default=0)
        with (
            cloud_of(cases[0].shape, in_cloud) as cloud,
            bench_airflow(partial(_write_dags, cases), {"STORAGE_EMULATOR_HOST": cloud.url}) as (_, api),
        ):
            runs += [_run(api, case, budget_s) for case in cases]
    return runs


def medians_of(runs: Sequence[Run]) -> dict[Case, float]:
    """Return the seconds from the trigger to the end of the median run of each case."""
    cases = dict.fromkeys(run.case for run in runs)
    return {case: median(run.since_trigger * run.scale for run in runs if run.case == case) or 0.0 for case in cases}


def runs_table(title: str, runs: Sequence[Run]) -> Table:
    """Return a row for each case, with the median of its runs."""
    table = Table(
        title,
        ("DAG", "runs", "trigger → end", "÷ experiment", "start → end", "tasks done"),
        notes=(
            "Airflow's defaults except what the rehearsal sets: SQLite, LocalExecutor with 8 workers, short pauses.",
            "chain: each task after the one before; fan: one, then all but two side by side, then one.",
            "local: outputs on this machine's disk;",
            f"gs: in a Cloud Storage on loopback that answers after {LATENCY_S * 1000:.0f} ms.",
            f"{ONE_CALL}: a first task skips all others and looks at nothing.",
            f"{SELF_CHECK}: every task reads its status and skips itself.",
            "~: the run timed out, and its time is extrapolated to all tasks.",
        ),
    )
    medians = medians_of(runs)
    for case, wall in medians.items():
        of_case = [run for run in runs if run.case == case]
        worst = min(of_case, key=lambda run: run.tasks_done)
        mark = "" if worst.tasks_done == worst.tasks else "~ "
        table.add(
            f"{case.shape} {case.count:,} {case.kind}, {case.store}",
            str(len(of_case)),
            mark + seconds(wall),
            mark + ratio(wall, medians.get(replace(case, kind=EXPERIMENT), 0.0)),
            mark + seconds(median(run.since_start * run.scale for run in of_case) or 0.0),
            f"{worst.tasks_done} of {worst.tasks}",
        )
    return table


def _run(api: AirflowApi, case: Case, budget_s: float) -> Run:
    """Run the case once. Airflow records the end, so the poll interval does not matter."""
    api.wait_for_dag(case.dag_id, PARSE_TIMEOUT_S)
    api.unpause(case.dag_id)
    triggered = datetime.now(UTC)
    run_id = api.trigger(case.dag_id)
    try:
        run = api.wait_for_run(case.dag_id, run_id, budget_s)
    except AirflowApiError as error:
        if error.status is not None:  # a request was refused, which is no slowness
            raise
        run = api.dag_run(case.dag_id, run_id)
    started, ended = _moment(run["start_date"], triggered), _moment(run["end_date"], datetime.now(UTC))
    states = {task["task_id"]: task["state"] for task in api.task_instances(case.dag_id, run_id)}
    check(case, run["state"], states)
    done = sum(state in ("success", "skipped") for state in states.values())
    return Run(case, (ended - triggered).total_seconds(), (ended - started).total_seconds(), done, len(states))


def _moment(text: str | None, otherwise: datetime) -> datetime:
    """Parse a time of the API."""
    return datetime.fromisoformat(text) if text else otherwise


def check(case: Case, run_state: str, states: dict[str, Any]) -> None:
    """Raise unless the run showed the measured behaviour: every step skipped, or every task empty."""
    wanted = "skipped" if case.kind in SKIPPED else "success"
    steps = {state for task_id, state in states.items() if task_id != FIRST}
    if "failed" in (run_state, *states.values()) or (run_state == "success" and steps != {wanted}):
        raise RuntimeError(f"The steps of {case.dag_id} were to be {wanted}; it was {run_state}: {states}")


def _write_dags(cases: Sequence[Case], folder: Path, prefix: str) -> None:
    """Write a file for each DAG, since every task process reads its DAG's file; and the finished outputs."""
    for case in dict.fromkeys(cases):
        place = prefix if case.store == LOCAL else BUCKET_PREFIX
        text = DAG_FILE.format(kind=case.kind, shape=case.shape, count=case.count, prefix=place, dag_id=case.dag_id)
        (folder / f"{case.dag_id}.py").write_text(text)
        if case.store == LOCAL and case.kind == EXPERIMENT:
            write(finished_files(experiment_of(case.shape, case.count, prefix)))
        elif case.store == LOCAL and case.kind == SELF_CHECK:
            write(checked_files(case.count, prefix))
