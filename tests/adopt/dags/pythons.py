"""Which Python runs what: an Airflow DAG of a command, and of a function whose connection names a missing Python."""

from airflow.sdk import DAG, task

from tradewind.operators.ray_job import RayJobOperator

with DAG("pythons"):
    RayJobOperator(task_id="command", entrypoint="python -c 'import sys; print(sys.executable)'")

    @task.ray(ray_conn_id="ray_missing_python")
    def nowhere() -> None: ...

    nowhere()
