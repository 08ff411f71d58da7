"""Which Python runs what: an Airflow DAG with a function and a command."""

import sys

from airflow.sdk import DAG, task

from tradewind.operators.ray_job import RayJobOperator

with DAG("pythons"):

    @task.ray
    def function() -> str:
        return sys.executable

    RayJobOperator(task_id="command", entrypoint="python -c 'import sys; print(sys.executable)'")

with DAG("missing_python"):

    @task.ray(ray_conn_id="ray_missing_python")
    def nowhere() -> str:
        return sys.executable
