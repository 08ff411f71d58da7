"""The DAGs that a reused experiment is compared with: one call that skips all, and tasks that skip themselves."""

from __future__ import annotations

import posixpath
from typing import Any

import pendulum
from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

from benchmarks import dags
from benchmarks.graphs import SHAPES
from tradewind.records.status import Status, read_status

EXPERIMENT = dags.EXPERIMENT
ONE_CALL = "one call"
SELF_CHECK = "self-check"


class SkipAll(BaseOperator):
    """Skips all other tasks without a look at anything: what Airflow itself needs for that."""

    def execute(self, context: Context) -> None:
        """One call to Airflow."""
        raise DownstreamTasksSkipped(tasks=[task_id for task_id in context["dag"].task_ids if task_id != self.task_id])


class SelfCheck(BaseOperator):
    """Skips itself when its output is finished."""

    def __init__(self, *, output_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.output_path = output_path

    def execute(self, context: Context) -> None:
        """Read one file, and be skipped."""
        if read_status(self.output_path) is Status.SUCCESS:
            raise AirflowSkipException(f"{self.output_path} is finished.")
        raise RuntimeError(f"{self.output_path} was to be finished.")


def make_dag(kind: str, shape: str, count: int, prefix: str) -> DAG:
    """The DAG of ``count`` steps in this shape, whose outputs are below ``prefix``."""
    if kind == EXPERIMENT:
        return dags.make_dag(kind, shape, count, prefix)
    with DAG(dag_id_of(kind, shape, count), schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
        root: list[BaseOperator] = [SkipAll(task_id="plan")] if kind == ONE_CALL else []
        make = _idle_task if kind == ONE_CALL else _checking_task
        tasks: list[BaseOperator] = []
        for index, reads in enumerate(SHAPES[shape](count)):
            tasks.append(make(f"bench_step_{index:05}", prefix))
            tasks[-1].set_upstream([*root, *(tasks[read] for read in reads)])
    return dag


def dag_id_of(kind: str, shape: str, count: int) -> str:
    return dags.dag_id_of(kind.replace(" ", "_").replace("-", "_"), shape, count)


def output_path_of(task_id: str, prefix: str) -> str:
    """Where a task that checks for itself looks."""
    return posixpath.join(prefix, "checked", task_id)


def _idle_task(task_id: str, prefix: str) -> BaseOperator:
    return dags.DoNothing(task_id=task_id, trigger_rule="none_failed")


def _checking_task(task_id: str, prefix: str) -> BaseOperator:
    return SelfCheck(task_id=task_id, output_path=output_path_of(task_id, prefix), trigger_rule="none_failed")
