"""DAGs of one graph in each compared way: as an experiment, and as plain tasks with its edges.

The module imports only what an experiment's DAG file imports of Tradewind, because these imports are measured.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

from benchmarks.graphs import SHAPES, checked_output, last_steps, steps_of
from tradewind import experiment_dag

EXPERIMENT = "experiment"
PLAIN = "plain"
PLAIN_BELOW_ONE = "plain+root"
EMPTY = "empty"
ONE_CALL = "one call"
SELF_CHECK = "self-check"
SKIPPED = (EXPERIMENT, ONE_CALL, SELF_CHECK)
"""Kinds whose steps are all skipped; the tasks of the others succeed."""
FIRST = "plan"


class DoNothing(BaseOperator):
    """A task that does nothing."""

    def execute(self, context: Context) -> None:
        """Do nothing."""


class SkipAll(BaseOperator):
    """A task that skips all others without any check: the cost of Airflow itself."""

    def execute(self, context: Context) -> None:
        """Call Airflow once."""
        raise DownstreamTasksSkipped(tasks=[task_id for task_id in context["dag"].task_ids if task_id != self.task_id])


class SelfCheck(BaseOperator):
    """Skips itself when its output is finished."""

    def __init__(self, *, output_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.output_path = output_path

    def execute(self, context: Context) -> None:
        """Read one file, and skip this task."""
        from tradewind.records.record import Status, read_status

        if read_status(self.output_path) is Status.SUCCESS:
            raise AirflowSkipException(f"{self.output_path} is finished.")
        raise RuntimeError(f"{self.output_path} is not finished.")


def make_dag(kind: str, shape: str, count: int, prefix: str | None = None, dag_id: str = "bench") -> DAG:
    """Return the DAG of ``count`` steps or tasks in this shape; outputs are below ``prefix``."""
    graph = SHAPES[shape](count)
    if kind == EXPERIMENT:
        dag = experiment_dag(dag_id, last_steps(graph, steps_of(graph)), prefix=prefix)
        assert dag is not None, "this is no cluster"
        return dag
    first = {PLAIN_BELOW_ONE: DoNothing, ONE_CALL: SkipAll}.get(kind)
    with DAG(dag_id, schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
        root: list[BaseOperator] = [first(task_id=FIRST)] if first else []
        tasks: list[BaseOperator] = []
        for index, reads in enumerate(graph):
            tasks.append(_task(kind, index, prefix or ""))
            tasks[-1].set_upstream([tasks[read] for read in reads] or root)
    return dag


def _task(kind: str, index: int, prefix: str) -> BaseOperator:
    arguments: dict[str, Any] = {"task_id": f"bench_step_{index:05}"}
    if kind == SELF_CHECK:
        return SelfCheck(output_path=checked_output(index, prefix), trigger_rule="none_failed", **arguments)
    if kind == ONE_CALL:
        return DoNothing(trigger_rule="none_failed", **arguments)
    return EmptyOperator(**arguments) if kind == EMPTY else DoNothing(**arguments)
