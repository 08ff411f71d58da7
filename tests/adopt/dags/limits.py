"""Jobs that take longer than they may: an Airflow DAG, deferred and not, and one for the shell."""

from datetime import timedelta

from airflow.sdk import DAG

from tradewind.operators.ray_job import RayJobOperator

with DAG("limits", default_args={"execution_timeout": timedelta(seconds=20), "retries": 0}):
    RayJobOperator(task_id="deferred", entrypoint="sleep 600")
    RayJobOperator(task_id="held", entrypoint="sleep 600", deferrable=False)

with DAG("sleeper"):
    RayJobOperator(task_id="sleep", entrypoint="echo asleep; sleep 600")
