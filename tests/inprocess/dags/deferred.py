"""Airflow DAGs of tasks that wait in the triggerer for a cluster whose connection is in Airflow's database only."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG
from small_work import Text, write

from tradewind import ExecutorStep, on_airflow_worker, this_output_path
from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.step import StepOperator
from tradewind.operators.tpu_pod_train import TpuPodTrainOperator
from tradewind.sensors.ray_job import RayJobSensor
from tradewind.sensors.tpu_slices import TpuSliceReadySensor, TpuSliceRecoverySensor
from tradewind.tasks.context import ExperimentSettings

STORED = {"ray_conn_id": "stored", "deferrable": True}


def step(name: str, cluster: str, resources: Any = None, **options: Any) -> StepOperator:
    made = ExecutorStep(name, write, Text(this_output_path(), says="wait"), resources=resources)
    return StepOperator(
        task_id="step", step=made, settings=ExperimentSettings(cluster=cluster), plan_task_id="", **options
    )


with DAG("deferred"):
    job = RayJobOperator(task_id="job", entrypoint="true", **STORED)
    RayJobSensor(task_id="ended", submission_id=job.output["submission_id"], **STORED)
    TpuSliceReadySensor(task_id="free", slice_type="v4-8", count=0, **STORED)
    TpuSliceRecoverySensor(task_id="repaired", zone="us-central2-b", gcp_conn_id="cloud", labels={"a": "b"}, **STORED)
    TpuPodTrainOperator(task_id="train", name="deferred/train", config={}, slice_type="v4-8", **STORED)
    step("deferred/step", "stored", deferrable=True)

HELD = {"ray_conn_id": "held"}

with DAG("held_job"):
    RayJobOperator(task_id="job", entrypoint="true", **HELD)
with DAG("held_ended"):
    RayJobSensor(task_id="ended", submission_id="theirs", **HELD)
with DAG("held_free"):
    TpuSliceReadySensor(task_id="free", slice_type="v4-8", **HELD)
with DAG("held_step"):
    step("held/step", "held")
with DAG("limited", default_args={"retries": 1, "retry_delay": timedelta(0)}):
    step("limited/step", "ray_default", resources=on_airflow_worker(), execution_timeout=timedelta(seconds=6))
