"""Plain Ray jobs as Airflow tasks."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.reconcile import RayReconcileOperator
from tradewind.operators.stop_ray_job import RayStopJobOperator
from tradewind.sensors.ray_job import RayJobSensor
from tradewind.steps import Cpu

FEW = 0.1
"""CPUs of a small job, because the cluster of the tests is small."""
SECRETS = {"PASSPHRASE": "env:PASSPHRASE_OF_CLUSTER"}


def add(a: int, b: int = 0, *, ds: str = "") -> dict[str, Any]:
    """Return the sum; a function of a DAG file, which runs on a cluster without Airflow."""
    print("adding on", ds)
    return {"sum": a + b, "ds": ds}


def say(dag_id: str, entrypoint: str, **kwargs: Any) -> None:
    """Define a DAG of one job."""
    kwargs.setdefault("num_cpus", FEW)
    with DAG(dag_id):
        RayJobOperator(task_id="job", entrypoint=entrypoint, **kwargs)


with DAG("ray_hello", params={"who": "world"}):
    RayJobOperator(
        task_id="command",
        entrypoint="echo hello {{ params.who }} from $PLACE; echo in $(pwd)",
        runtime_env={"env_vars": {"PLACE": "{{ task.task_id }}"}},
        metadata={"owner": "{{ params.who }}"},
        num_cpus="{{ 0.1 }}",
    )
    RayJobOperator(task_id="function", python_callable=add, op_args=[40], op_kwargs={"b": 2}, runs_on=Cpu(FEW))

    @task.ray(num_cpus=FEW, multiple_outputs=True)
    def decorated(numbers: list[int]) -> dict[str, int]:
        import os

        print("decorated runs with", len(numbers), "numbers", os.getpid() > 0)
        return {"total": sum(numbers), "count": len(numbers)}

    @task.ray(num_cpus=FEW, deferrable=False)
    def in_worker(total: int) -> int:
        return total + 1

    in_worker(decorated([1, 2, 3])["total"])

say("ray_fails", "echo about to fail; echo reason >&2; exit 3")
say("ray_sleeps", "echo started; sleep 300; echo ended")
say("ray_sleeps_in_worker", "echo started; sleep 300; echo ended", deferrable=False)
say("ray_too_long", "echo started; sleep 300", timeout=timedelta(seconds=8))
say("ray_queues", "echo started", num_cpus=None, custom_resources={"nothing_has_this": 1}, queue_timeout=8)
say("ray_waits", "echo started", num_cpus=None, custom_resources={"nothing_has_this": 1})
with DAG("ray_prints", params={"rate": 200, "end": "/nowhere"}):
    RayJobOperator(
        task_id="job",
        entrypoint="python -u -m printer {{ params.rate }} 600 {{ params.end }}",
        runtime_env={"working_dir": "{{ dag.folder }}"},
        num_cpus=FEW,
    )

with DAG("ray_reconcile"):
    RayReconcileOperator(task_id="reconcile")

with DAG("ray_waits_for_other"):
    RayJobSensor(task_id="sensor", metadata={"name": "{{ run_id }}"}, poke_interval=1)
    RayJobSensor(task_id="poking", metadata={"name": "{{ run_id }}"}, poke_interval=1, deferrable=False)
    RayJobOperator(
        task_id="job",
        entrypoint="sleep 3; echo slept",
        metadata={"name": "{{ run_id }}"},
        submission_id="chosen-{{ run_id | replace(':', '-') | replace('+', '-') }}",
        num_cpus=FEW,
    )

with DAG("ray_stops_other"):
    group = {"group": "{{ run_id }}"}
    sleeping = RayJobOperator(
        task_id="sleeping", entrypoint="sleep 300", metadata=group, wait_for_completion=False, num_cpus=FEW
    )
    sleeping >> RayStopJobOperator(task_id="stop", metadata=group)
with DAG("ray_elsewhere", params={"conn": "ray_default", "command": "true"}):
    RayJobOperator(
        task_id="job",
        ray_conn_id="{{ params.conn }}",
        entrypoint="{{ params.command }}",
        secrets=SECRETS,
        num_cpus=FEW,
        connect_timeout=30,
    )
