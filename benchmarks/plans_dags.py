"""The DAGs that a reused experiment is compared with: one call that skips all, and tasks that skip themselves."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

from benchmarks.dags import DoNothing
from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.plans_store import checked_output
from tradewind import experiment_dag
from tradewind.records.status import Status, read_status

EXPERIMENT = "experiment"
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


def make_dag(kind: str, shape: str, count: int, prefix: str, dag_id: str) -> DAG:
    """The DAG of ``count`` steps in this shape, whose outputs are below ``prefix``."""
    graph = SHAPES[shape](count)
    if kind == EXPERIMENT:
        dag = experiment_dag(dag_id, last_steps(graph, steps_of(graph)), prefix=prefix)
        assert dag is not None, "this is no cluster"
        return dag
    with DAG(dag_id, schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
        root: list[BaseOperator] = [SkipAll(task_id="plan")] if kind == ONE_CALL else []
        tasks: list[BaseOperator] = []
        for index, reads in enumerate(graph):
            tasks.append(_task(kind, index, prefix))
            tasks[-1].set_upstream([*root, *(tasks[read] for read in reads)])
    return dag


def _task(kind: str, index: int, prefix: str) -> BaseOperator:
    arguments: dict[str, Any] = {"task_id": f"bench_step_{index:05}", "trigger_rule": "none_failed"}
    if kind == ONE_CALL:
        return DoNothing(**arguments)
    return SelfCheck(output_path=checked_output(index, prefix), **arguments)
