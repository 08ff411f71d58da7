"""Tradewind's operator, and its trigger with the operator's arguments."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG

from benchmarks.jobs.dags.from_trigger import follow_dag
from benchmarks.jobs.ids import HEAD_CPUS, RUNNING, batches, follow_dag_id, job_ids, sizes_of_environment
from tradewind.operators.ray_job import RayJobOperator
from tradewind.ray_jobs.demand import Demand
from tradewind.ray_jobs.follow.outcomes import FollowRequest
from tradewind.ray_jobs.request import JobRequest

with DAG("one_job", schedule=None, start_date=pendulum.datetime(2026, 1, 1)):
    operator = RayJobOperator(
        task_id="job", entrypoint="{{ dag_run.conf['entrypoint'] }}", ray_conn_id="ray_default", deferrable=True
    )


def trigger_kwargs(job: str) -> dict[str, Any]:
    """Return the operator's arguments of its trigger for ``job``."""
    waits = job not in job_ids("ours", RUNNING)
    request = JobRequest(submission_id=job, entrypoint="", num_cpus=HEAD_CPUS if waits else None)
    return {
        "ray_conn_id": "ray_default",
        "watch": FollowRequest(job, Demand.of(request)).to_json(),
        "log_bytes": operator.log_bytes,
        "full_log": "",
        # The jobs are shared with the other providers.
        "owns_job": False,
        "payload": {},
    }


for first, size in batches(sizes_of_environment()):
    jobs = job_ids("ours", size)[first:]
    follow_dag(follow_dag_id(size), jobs, "tradewind.triggers.ray_job.RayJobTrigger", trigger_kwargs)
