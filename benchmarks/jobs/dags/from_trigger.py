"""A DAG whose tasks start in the triggerer, so that hundreds of followers need no worker processes.

The scheduler passes the unchanged trigger, as after a task has deferred itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pendulum
from airflow.sdk import DAG, BaseOperator, Context
from airflow.triggers.base import StartTriggerArgs


class Follow(BaseOperator):
    """A task that consists of its trigger."""

    start_from_trigger = True

    def __init__(self, *, trigger_cls: str, trigger_kwargs: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=trigger_cls, trigger_kwargs=trigger_kwargs, next_method="execute_complete", timeout=None
        )

    def execute(self, context: Context) -> None:
        """Never called: the scheduler defers the task."""

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Succeed: the job has ended."""


def follow_dag(
    dag_id: str, jobs: Sequence[str], trigger_cls: str, trigger_kwargs: Callable[[str], dict[str, Any]]
) -> DAG:
    """A DAG with one follower for each of ``jobs``."""
    with DAG(dag_id, schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
        for job in jobs:
            Follow(task_id=job, trigger_cls=trigger_cls, trigger_kwargs=trigger_kwargs(job))
    return dag
