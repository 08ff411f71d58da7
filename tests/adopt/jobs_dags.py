"""Airflow DAGs of jobs: in which Python they run, how long they may, who waits for them, and what they hold."""

from datetime import timedelta

from airflow.sdk import DAG, task

from tradewind.operators.ray_job import RayJobOperator
from tradewind.sensors.ray_job import RayJobSensor

with DAG("pythons"):
    RayJobOperator(task_id="command", entrypoint="python -c 'import sys; print(sys.executable)'")

    @task.ray(ray_conn_id="ray_missing_python")
    def nowhere() -> None: ...

    nowhere()

with DAG("limits", default_args={"execution_timeout": timedelta(seconds=20), "retries": 0}):
    RayJobOperator(task_id="deferred", entrypoint="sleep 600")
    RayJobOperator(task_id="held", entrypoint="sleep 600", deferrable=False)

with DAG("seen"):
    job = RayJobOperator(task_id="job", entrypoint="echo seen", metadata={"is": "seen"})
    job >> RayJobSensor(task_id="sensor", metadata={"is": "seen"})

with DAG("sleeper"):
    RayJobOperator(task_id="sleep", entrypoint="echo asleep; sleep 600")

with DAG("full"):

    @task.ray(num_cpus=2)
    def wait_for_itself(number: int) -> int:
        import ray

        return ray.get(ray.remote(num_cpus=1)(lambda: number).remote())

    wait_for_itself.expand(number=[1, 2])
