"""``tradewind reconcile``: stop orphaned jobs, as the operator does, without a DAG or a scheduler.

It runs where Airflow's own commands run, and reads the states of tasks from Airflow's database.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tradewind.cli.interrupts import Interrupts
from tradewind.cli.jobs.clusters import connected_cluster, explain_error
from tradewind.cli.output import CommandError, UsageError, say, write_lines
from tradewind.ray_jobs.errors import RayJobsError

if TYPE_CHECKING:
    from tradewind.deployment.task_instances import TaskAddress
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.ray_jobs.details import JobDetails
    from tradewind.tasks.address import TaskKey

DEFAULT_CLUSTER = "ray_default"


def reconcile(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Check each cluster once, stop the jobs that no task waits for, and print their ids.

    Raises:
        UsageError: Airflow is not installed.
        CommandError: A cluster could not be checked; the others were.
    """
    try:
        import airflow  # noqa: F401
    except ImportError:
        raise UsageError("reconcile compares Ray with Airflow, and Airflow is not installed here.") from None
    from tradewind.deployment.fleet import current_operation

    problems = []
    for conn_id in dict.fromkeys(arguments.clusters or [DEFAULT_CLUSTER]):
        if sentence := current_operation(conn_id):
            say(f"{sentence} Skipped this cluster.")
            continue
        try:
            _reconcile_one(connected_cluster(conn_id), arguments.dry_run, interrupts)
        except RayJobsError as error:
            problems.append(explain_error(error))
    if problems:
        raise CommandError(" ".join(problems))
    return 0


def _reconcile_one(cluster: RayCluster, dry_run: bool, interrupts: Interrupts) -> None:
    from tradewind.attempts.cancellation import stop_any_job

    for job in _orphans(cluster):
        if dry_run:
            say(f"No task waits for Ray job {job.job} any more.")
        else:
            say(f"No task waits for Ray job {job.job} any more: stopping it.")
            interrupts.run(stop_any_job(cluster, job, {"reconciler": "tradewind reconcile"}, say))
        write_lines([job.job])


def _orphans(cluster: RayCluster) -> list[JobDetails]:
    from airflow.sdk import conf

    from tradewind.operators.reconcile import jobs_with_tasks, orphans
    from tradewind.ray_jobs.client import RayJobs

    # List jobs before tasks: a task that starts in between has no job in the list yet.
    active = jobs_with_tasks(RayJobs(cluster).jobs())
    knows_all = bool(conf.get("tradewind", "deployment", fallback=""))
    return orphans(active, task_states(key for _, key in active), knows_all=knows_all)


def task_states(keys: Iterable[TaskKey]) -> dict[TaskAddress, str | None]:
    """Read the states of the tasks of these runs from Airflow's database."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from tradewind.deployment.task_instances import TaskAddress

    found: dict[TaskAddress, str | None] = {}
    columns = (TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state)
    with create_session() as session:
        for dag, run in {(key.dag, key.run) for key in keys}:
            of_run = select(*columns).where(TaskInstance.dag_id == dag, TaskInstance.run_id == run)
            for task, map_index, state in session.execute(of_run):
                found[TaskAddress(dag, run, task, map_index)] = state
    return found
