"""Google's provider. Its operator waits in the worker and logs the job's lines when the job has ended."""

from __future__ import annotations

import os

import pendulum
from airflow.providers.google.cloud.operators.ray import RaySubmitJobOperator
from airflow.sdk import DAG

from benchmarks.jobs.ids import HEAD_CPUS, RUNNING, batches, follow_dag_id, sizes_of_environment

FOLLOW = {"cluster_address": os.environ["BENCH_ADDRESS"], "wait_for_job_done": True, "get_job_logs": True}
START = pendulum.datetime(2026, 1, 1)

with DAG("one_job", schedule=None, start_date=START):
    RaySubmitJobOperator(task_id="job", entrypoint="{{ dag_run.conf['entrypoint'] }}", **FOLLOW)

for first, size in batches(sizes_of_environment()):
    with DAG(follow_dag_id(size), schedule=None, start_date=START, max_active_tasks=size):
        for number in range(first, size):
            RaySubmitJobOperator(
                task_id=f"job-{number}",
                entrypoint=os.environ["BENCH_RUNNING_ENTRYPOINT"],
                submission_id=f"google-running-{number}",
                entrypoint_num_cpus=None if number < RUNNING else HEAD_CPUS,
                **FOLLOW,
            )
