"""Runs whose steps are all finished before, in a real Airflow, beside bare skipping and a check in each task.

The bare call is compared where outputs are on this machine's disk, the check where they are in a Cloud Storage: a
process that looks there loads its client first, and it matters whether one process does or each.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.airflow_house import bench_airflow
from benchmarks.plans_dags import EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.plans_store import BUCKET_PREFIX, checked_files, cloud_of, experiment_of, write_files, write_finished
from benchmarks.report import Table, ratio, seconds
from tradewind.rehearsal.airflow_api import AirflowApi, AirflowApiError

ROOT = Path(__file__).parents[1]
DAG_FILE = (
    "from benchmarks.plans_dags import make_dag  # airflow\n\n"
    "dag = make_dag({kind!r}, {shape!r}, {count}, {prefix!r}, {dag_id!r})\n"
)
SHAPE = "fan"
LATENCY_S = 0.02
LOCAL, CLOUD = "local", "gs"
PARSE_TIMEOUT = 120.0


@dataclass(frozen=True)
class Case:
    """A DAG that is run: its kind and size, and where the outputs are."""

    kind: str
    count: int
    store: str = LOCAL

    @property
    def dag_id(self) -> str:
        return f"{re.sub('[^a-z]', '_', self.kind)}_{self.count}_{self.store}"


@dataclass(frozen=True)
class Run:
    """One run: seconds from the trigger to its end, or until it was given up, and how many tasks were done by then."""

    case: Case
    seconds: float
    tasks_done: int
    tasks: int

    @property
    def whole_seconds(self) -> float:
        """What the whole run takes, if it goes on as fast as it went."""
        return self.seconds * self.tasks / max(self.tasks_done, 1)


@dataclass(frozen=True)
class Size:
    """How many steps the comparison with each peer has, how often it is made, and how long the slowest may take."""

    skipped: int
    checked: int
    repeats: int
    budget: float

    def airflows(self) -> list[list[Case]]:
        """The cases of each Airflow, in their order. What goes on after it was given up would slow others, so each of
        those has an Airflow of its own; the two that are nearly alike take turns.
        """
        alike = [Case(EXPERIMENT, self.skipped), Case(ONE_CALL, self.skipped)] * self.repeats
        stored = [Case(kind, self.checked, store) for store in (LOCAL, CLOUD) for kind in (EXPERIMENT, SELF_CHECK)]
        return [[*stored[::2] * self.repeats, *alike], *([case] for case in stored[1::2])]


FULL = Size(1_000, 500, 3, 300.0)
QUICK = Size(20, 20, 1, 120.0)


def measure_runs(size: Size) -> list[Run]:
    """Run all cases."""
    runs: list[Run] = []
    for cases in size.airflows():
        with _airflow(list(dict.fromkeys(cases))) as api:
            runs += [_run(api, case, size.budget) for case in cases]
    return runs


def runs_table(runs: Sequence[Run]) -> Table:
    """A row for each case, with the median of its runs."""
    table = Table(
        "plans: a run whose steps are all finished, in a real Airflow",
        ("DAG", "runs", "trigger → end", "÷ experiment", "tasks done"),
        notes=(
            "Airflow's defaults except what the rehearsal sets: SQLite, LocalExecutor with 8 workers, short pauses.",
            "One step, then all but two side by side, then one. local: outputs on this machine's disk;",
            f"gs: in a Cloud Storage on loopback that answers after {LATENCY_S * 1000:.0f} ms.",
            f"{ONE_CALL}: a first task skips all others and looks at nothing.",
            f"{SELF_CHECK}: every task reads its status and skips itself.",
            "~ means that the run was given up, and that its time is what all tasks take at the speed until then.",
        ),
    )
    medians = medians_of(runs)
    for case, median in medians.items():
        ours = medians.get(replace(case, kind=EXPERIMENT), 0.0)
        mine = [run for run in runs if run.case == case]
        worst = min(mine, key=lambda run: run.tasks_done)
        mark = "" if worst.tasks_done == worst.tasks else "~ "
        table.add(
            f"{case.store} {case.count:,} {case.kind}",
            str(len(mine)),
            mark + seconds(median),
            mark + ratio(median, ours),
            f"{worst.tasks_done} of {worst.tasks}",
        )
    return table


def medians_of(runs: Sequence[Run]) -> dict[Case, float]:
    """The seconds of the median run of each case."""
    cases = dict.fromkeys(run.case for run in runs)
    return {case: statistics.median(run.whole_seconds for run in runs if run.case == case) for case in cases}


def _run(api: AirflowApi, case: Case, budget: float) -> Run:
    """One run. Its end is the one that Airflow writes down, so how often it is asked for does not matter."""
    api.wait_for_dag(case.dag_id, PARSE_TIMEOUT)
    api.unpause(case.dag_id)
    triggered = datetime.now(UTC)
    run_id = api.trigger(case.dag_id)
    try:
        run = api.wait_for_run(case.dag_id, run_id, budget)
    except AirflowApiError as error:
        if error.status is not None:  # a request was refused, which is no slowness
            raise
        run = api.dag_run(case.dag_id, run_id)
    ended = datetime.fromisoformat(run["end_date"]) if run["end_date"] else datetime.now(UTC)
    states = {task["task_id"]: task["state"] for task in api.task_instances(case.dag_id, run_id)}
    _check(case, run["state"], states)
    done = sum(state in ("success", "skipped") for state in states.values())
    return Run(case, (ended - triggered).total_seconds(), done, len(states))


def _check(case: Case, run_state: str, states: Mapping[str, Any]) -> None:
    """A figure counts only if the run did what it is measured for: skip every step."""
    others = {state for task_id, state in states.items() if task_id != "plan"}
    if "failed" in (run_state, *states.values()) or (run_state == "success" and others != {"skipped"}):
        raise RuntimeError(f"{case.dag_id} did not skip all its steps: {run_state}, {states}")


@contextmanager
def _airflow(cases: Sequence[Case]) -> Iterator[AirflowApi]:
    """An Airflow that knows one DAG file for each case, and a Cloud Storage for those whose outputs are there."""
    in_cloud = max((case.count for case in cases if case.store == CLOUD), default=0)
    with (
        cloud_of(SHAPE, in_cloud, LATENCY_S) as cloud,
        bench_airflow(partial(_write_dags, cases), STORAGE_EMULATOR_HOST=cloud.url) as api,
    ):
        yield api


def _write_dags(cases: Sequence[Case], folder: Path, prefix: str) -> None:
    """One file for each DAG, since every task process reads its DAG's file; and outputs that are finished."""
    folder.mkdir(parents=True)
    for case in cases:
        place = prefix if case.store == LOCAL else BUCKET_PREFIX
        text = DAG_FILE.format(kind=case.kind, shape=SHAPE, count=case.count, prefix=place, dag_id=case.dag_id)
        (folder / f"{case.dag_id}.py").write_text(text)
        if case.store == CLOUD:
            continue
        if case.kind == EXPERIMENT:
            write_finished(experiment_of(SHAPE, case.count, prefix))
        elif case.kind == SELF_CHECK:
            write_files(checked_files(case.count, prefix))
