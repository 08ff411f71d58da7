"""Ray jobs that nobody waits for any more are stopped, also when the triggerer was down as a person acted."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context, conf

from tradewind.hooks.ray import RayHook
from tradewind.operators.errors import talking_to_cluster
from tradewind.operators.task_key import TaskKey
from tradewind.ray_jobs.details import JobDetails
from tradewind.triggers.step_stop import stop_any_job

OVER = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""States of a task that waits for no job and will not come back to it by itself."""

States = Mapping[str, Mapping[str, str | None]]
"""Run id → task id (with the map index of a mapped task) → state; what Airflow tells a task of other tasks."""


class RayReconcileOperator(BaseOperator):
    """Stops the Ray jobs of this Airflow whose task has ended.

    Airflow tells a trigger when a person marks or clears its task, but not when the triggerer is down at that moment.
    Run this every few minutes. Jobs that other people or other deployments submitted are left alone, and so are those
    of tasks with ``wait_for_completion`` off. Jobs of runs that were deleted are stopped only where
    ``[tradewind] deployment`` is set, because only then it is certain that they are this deployment's.

    XCom: the submission ids of the jobs that were stopped.

    Args:
        ray_conn_ids: Connections of the clusters to look at.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("ray_conn_ids",)

    def __init__(self, *, ray_conn_ids: Sequence[str] = (RayHook.default_conn_name,), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ray_conn_ids = list(ray_conn_ids)

    def execute(self, context: Context) -> list[str]:
        """Look at each cluster once."""
        stopped = []
        for ray_conn_id in self.ray_conn_ids:
            with talking_to_cluster(f"Task {self.task_id!r}"):
                jobs = RayHook(ray_conn_id).get_conn()
                active = [(job, key) for job in jobs.jobs() if not job.has_ended and (key := task_of(job))]
                states = _states_of([key for _, key in active], context)
                for job in orphans(active, states, knows_all=bool(conf.get("tradewind", "deployment", fallback=""))):
                    self.log.info("Nobody waits for Ray job %s any more: stopping it.", job.job)
                    by = {"reconciler": self.task_id}
                    asyncio.run(stop_any_job(jobs.cluster, job, by, self.log.info))
                    stopped.append(job.job)
        return stopped


def task_of(job: JobDetails) -> TaskKey | None:
    """The task of this deployment that waits for ``job``, if it is such a job."""
    return TaskKey.from_metadata(job.metadata)


def orphans(
    jobs: Iterable[tuple[JobDetails, TaskKey]], states: Mapping[str, States], *, knows_all: bool
) -> list[JobDetails]:
    """The jobs whose task waits no more; ``states`` are by DAG.

    A task that is unknown was deleted, or never was this deployment's; ``knows_all`` says that it was.
    """
    return [job for job, key in jobs if _is_over(key, states.get(key.dag, {}), knows_all)]


def _is_over(key: TaskKey, states: States, knows_all: bool) -> bool:
    tasks = states.get(key.run, {})
    name = key.task if key.map_index < 0 else f"{key.task}_{key.map_index}"
    return tasks[name] in OVER if name in tasks else knows_all


def _states_of(keys: Iterable[TaskKey], context: Context) -> dict[str, States]:
    """The states of all these tasks, with one question for each DAG."""
    by_dag: dict[str, list[TaskKey]] = defaultdict(list)
    for key in keys:
        by_dag[key.dag].append(key)
    ti: Any = context["ti"]
    return {
        dag: ti.get_task_states(
            dag_id=dag, task_ids=sorted({key.task for key in ours}), run_ids=sorted({key.run for key in ours})
        )
        for dag, ours in by_dag.items()
    }
