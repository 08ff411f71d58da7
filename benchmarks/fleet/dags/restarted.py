"""An Airflow DAG of one job on a cluster that is restarted meanwhile."""

from airflow.sdk import DAG

from tradewind.operators.ray_job import RayJobOperator

with DAG("bench_restarted", params={"command": "true"}, max_active_runs=100):
    RayJobOperator(task_id="job", ray_conn_id="bench_restarted", entrypoint="{{ params.command }}")
