"""Tasks of an experiment's step and of a plain Ray job, with the parts of Airflow's context that they read."""

from __future__ import annotations

import posixpath
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.execution_time.context import OutletEventAccessors

from tradewind import ExecutorStep
from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.step import StepOperator
from tradewind.tasks.context import ExperimentSettings

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
MADE = ExecutorStep("made", posixpath.join, {})


class Notes(dict[str, Any]):
    """Entries of a task in Airflow's task state store."""

    set = dict.__setitem__


def run_at_midnight() -> SimpleNamespace:
    """Return a DAG run without a data interval."""
    return SimpleNamespace(
        data_interval_start=None, data_interval_end=None, partition_key=None, run_after=MIDNIGHT, clear_number=0
    )


def context_of(dag: DAG, task_id: str = "t") -> Any:
    """Return the context of the first try of a task of ``dag``, in a run without a plan."""
    names: dict[str, Any] = {"dag_id": dag.dag_id, "run_id": "r", "task_id": task_id, "map_index": -1}
    ti = SimpleNamespace(**names, try_number=1, max_tries=3)
    ti.xcom_push = ti.xcom_pull = lambda **_: None
    return {
        "ti": ti,
        "dag": dag,
        "task": dag.get_task(task_id),
        "dag_run": run_at_midnight(),
        "params": {},
        "task_state_store": Notes(),
        "outlet_events": OutletEventAccessors(),
    }


def step_task(
    prefix: Path | str, *, step: ExecutorStep = MADE, cluster: str = "head", deferrable: bool = False
) -> tuple[StepOperator, Any]:
    """Return the task of ``step`` in a DAG without a plan, and its context."""
    settings = ExperimentSettings(prefix=str(prefix), cluster=cluster)
    with DAG("d") as dag:
        task = StepOperator(task_id="t", step=step, settings=settings, plan_task_id="", deferrable=deferrable)
    return task, context_of(dag)


def job_task(**options: Any) -> tuple[RayJobOperator, Any]:
    """Return a task with a plain Ray job that its worker follows, and its context."""
    fields = {"entrypoint": "true", "ray_conn_id": "head", "deferrable": False, **options}
    with DAG("d") as dag:
        task = RayJobOperator(task_id="t", **fields)
    return task, context_of(dag)
