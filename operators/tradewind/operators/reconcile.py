"""Stop Ray jobs whose task no longer waits for them, also after a user acted while the triggerer was down."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, Context, conf

from tradewind.attempts.cancellation import stop_any_job
from tradewind.deployment.fleet import current_operation
from tradewind.deployment.ray_connection import RayHook
from tradewind.deployment.task_instances import TaskAddress
from tradewind.ray_jobs.details import JobDetails
from tradewind.tasks.address import TaskKey
from tradewind.tasks.errors import ClusterRefusedError, ClusterUnreachableError, translated_cluster_errors
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster

FINISHED_STATES = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""States of a task that waits for no job and will not resume by itself."""
STOP_TIMEOUT_S: Final = 60.0
"""How long the jobs of one cluster may take to end; the next run finds the remaining ones."""

States = Mapping[TaskAddress, str | None]
"""Airflow's states of tasks; unknown tasks are missing."""
_INDEX = re.compile(r"_\d+$")


class RayReconcileOperator(BaseOperator):
    """Stops the Ray jobs of this Airflow whose task has ended.

    Airflow informs a trigger when a user marks or clears its task, but not if the triggerer is down at that moment. Run
    this every few minutes. It does not touch jobs of users or other deployments, nor those of tasks with
    ``wait_for_completion`` off. It stops jobs of deleted runs only where ``[tradewind] deployment`` is set, because
    only then they are certainly this deployment's.

    It skips a fleet cluster under a start, stop, restart or apply. A cluster that does not answer, or refuses the
    token, fails the task after all others were checked.

    XCom: the submission ids of the jobs that were stopped, or would be in a dry run.

    Args:
        ray_conn_ids: Connections of the clusters to check.
        dry_run: Only report which jobs would be stopped.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("ray_conn_ids",)

    def __init__(
        self, *, ray_conn_ids: Sequence[str] = (RayHook.default_conn_name,), dry_run: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ray_conn_ids = list(ray_conn_ids)
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> list[str]:
        """Check each cluster once."""
        stopped: list[str] = []
        problems: list[ClusterUnreachableError | ClusterRefusedError] = []
        for ray_conn_id in dict.fromkeys(self.ray_conn_ids):
            if sentence := current_operation(ray_conn_id):
                self.log.info("%s This run skips the cluster.", sentence)
                continue
            try:
                with translated_cluster_errors(f"Task {self.task_id!r}"):
                    self._reconcile(ray_conn_id, stopped, context)
            except (ClusterUnreachableError, ClusterRefusedError) as error:
                self.log.warning("%s", error)
                problems.append(error)
            except Exception as error:  # an invalid answer of one cluster must not stop the check of the others
                self.log.warning("Connection %r:", ray_conn_id, exc_info=True)
                problems.append(ClusterUnreachableError(f"Task {self.task_id!r}: {ray_conn_id!r}: {error!r}."))
        if problems:
            context["ti"].xcom_push(key="return_value", value=stopped)  # a task that fails returns nothing
            is_retried = any(isinstance(problem, ClusterUnreachableError) for problem in problems)
            error_type = ClusterUnreachableError if is_retried else ClusterRefusedError  # a refusal persists
            raise error_type(" ".join(map(str, problems)))
        return stopped

    def _reconcile(self, ray_conn_id: str, stopped: list[str], context: Context) -> None:
        """Stop the orphans of one cluster; add each to ``stopped`` once it has ended."""
        jobs = RayHook(ray_conn_id).get_conn()
        active = jobs_with_tasks(jobs.jobs())
        states = _states_of([key for _, key in active], context)
        unwanted = orphans(active, states, knows_all=bool(conf.get("tradewind", "deployment", fallback="")))
        action = "Dry run: it continues" if self.is_dry_run else "Stopping it"
        for job in unwanted:
            self.log.info("No task waits for Ray job %s any more. %s.", job.job, action)
        if self.is_dry_run:
            stopped += [job.job for job in unwanted]
            return
        try:
            asyncio.run(self._stop(jobs.cluster, unwanted, stopped))
        except TimeoutError:
            names = ", ".join(job.job for job in unwanted if job.job not in stopped)
            raise ClusterUnreachableError(
                f"Task {self.task_id!r}: jobs {names} on {jobs.cluster} have not ended within {STOP_TIMEOUT_S:.0f} s "
                "after the request to stop. The next run checks them again."
            ) from None

    async def _stop(self, cluster: RayCluster, jobs: Sequence[JobDetails], stopped: list[str]) -> None:
        by = {"reconciler": self.task_id}

        async def stop(job: JobDetails) -> None:
            if await stop_any_job(cluster, job, by, self.log.info):
                stopped.append(job.job)

        async with within(STOP_TIMEOUT_S):
            outcomes = await asyncio.gather(*(stop(job) for job in jobs), return_exceptions=True)
        for error in outcomes:  # one failed stop does not spare the other jobs
            if error is not None:
                raise error


def jobs_with_tasks(jobs: Iterable[JobDetails]) -> list[tuple[JobDetails, TaskKey]]:
    """Return the unfinished jobs that a task of this deployment waits for, without duplicates."""
    active = {job.job: (job, key) for job in jobs if not job.has_ended and (key := TaskKey.from_metadata(job.metadata))}
    return list(active.values())


def orphans(jobs: Iterable[tuple[JobDetails, TaskKey]], states: States, *, knows_all: bool) -> list[JobDetails]:
    """Return the jobs whose task no longer waits.

    An unknown task was deleted, or never was this deployment's; ``knows_all`` means that it was.
    """
    return [
        job for job, key in jobs if (states[key.address] in FINISHED_STATES if key.address in states else knows_all)
    ]


def _states_of(keys: Iterable[TaskKey], context: Context) -> dict[TaskAddress, str | None]:
    """Return the states of all these tasks, in the fewest unambiguous queries."""
    by_dag: dict[str, set[TaskAddress]] = defaultdict(set)
    for key in keys:
        by_dag[key.dag].add(key.address)
    ti: Any = context["ti"]
    states: dict[TaskAddress, str | None] = {}
    for dag, tasks in by_dag.items():
        run_ids = sorted({task.run_id for task in tasks})
        for task_ids in _queries({task.task_id for task in tasks}):
            answer = ti.get_task_states(dag_id=dag, task_ids=task_ids, run_ids=run_ids)
            for task in tasks:
                of_run = answer.get(task.run_id, {})
                if task.task_id in task_ids and task.name in of_run:
                    states[task] = of_run[task.name]
    return states


def _queries(task_ids: set[str]) -> Iterator[list[str]]:
    """Group the task ids by query.

    Airflow's answer names a mapped task by id and map index: index 1 of ``train`` looks like a plain task ``train_1``.
    So an id that may be another's with an index gets its own query.
    """
    ambiguous = {task_id for task_id in task_ids if _INDEX.sub("", task_id) in task_ids - {task_id}}
    if rest := sorted(task_ids - ambiguous):
        yield rest
    yield from ([task_id] for task_id in sorted(ambiguous))
