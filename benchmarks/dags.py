"""The DAG of one graph in each of the ways that are compared: as an experiment, and as tasks that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pendulum
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, Context

from benchmarks.graphs import SHAPES, Graph, last_steps, steps_of
from tradewind import experiment_dag

EXPERIMENT = "experiment"
PLAIN = "plain"
PLAIN_BELOW_ONE = "plain+root"
EMPTY = "empty"


class DoNothing(BaseOperator):
    """A task whose process starts, does nothing and ends."""

    def execute(self, context: Context) -> None:
        """Nothing."""


def make_dag(kind: str, shape: str, count: int, prefix: str | None = None) -> DAG:
    """The DAG of ``count`` steps or tasks in this shape."""
    return _MAKERS[kind](dag_id_of(kind, shape, count), SHAPES[shape](count), prefix)


def dag_id_of(kind: str, shape: str, count: int) -> str:
    return f"{kind.replace('+', '_')}_{shape}_{count}"


def _experiment(dag_id: str, graph: Graph, prefix: str | None) -> DAG:
    dag = experiment_dag(dag_id, last_steps(graph, steps_of(graph)), prefix=prefix)
    assert dag is not None, "this is no cluster"
    return dag


def _tasks(operator: type[BaseOperator], with_root: bool = False) -> Callable[[str, Graph, Any], DAG]:
    def make(dag_id: str, graph: Graph, prefix: Any) -> DAG:
        with DAG(dag_id, schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
            root = [operator(task_id="root")] if with_root else []
            tasks: list[BaseOperator] = []
            for index, reads in enumerate(graph):
                task = operator(task_id=f"bench_step_{index:05}")
                tasks.append(task)
                task.set_upstream([*root, *(tasks[read] for read in reads)])
        return dag

    return make


_MAKERS: dict[str, Callable[[str, Graph, Any], DAG]] = {
    EXPERIMENT: _experiment,
    PLAIN: _tasks(DoNothing),
    PLAIN_BELOW_ONE: _tasks(DoNothing, with_root=True),
    EMPTY: _tasks(EmptyOperator),
}
