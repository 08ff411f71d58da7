"""Astronomer's provider, with its default poll interval and with its shortest one."""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG
from ray_provider.operators import SubmitRayJob

from benchmarks.jobs.dags.from_trigger import follow_dag
from benchmarks.jobs.ids import batches, follow_dag_id, job_ids, sizes_of_environment

ENTRYPOINT = "{{ dag_run.conf['entrypoint'] }}"
START = pendulum.datetime(2026, 1, 1)

with DAG("one_job", schedule=None, start_date=START):
    SubmitRayJob(task_id="job", conn_id="ray_default", entrypoint=ENTRYPOINT, runtime_env={})

with DAG("one_job_poll_1s", schedule=None, start_date=START):
    SubmitRayJob(task_id="job", conn_id="ray_default", entrypoint=ENTRYPOINT, runtime_env={}, poll_interval=1)

for first, size in batches(sizes_of_environment()):
    follow_dag(
        follow_dag_id(size),
        job_ids("astro", size)[first:],
        "ray_provider.triggers.RayJobTrigger",
        lambda job: {
            "job_id": job,
            "conn_id": "ray_default",
            "xcom_dashboard_url": None,
            "ray_cluster_yaml": None,
            "gpu_device_plugin_yaml": "",
            "poll_interval": 60,
        },
    )
