"""An Airflow DAG of tasks that wait in the triggerer for a cluster whose connection is in Airflow's database only."""

from airflow.sdk import DAG

from tradewind.operators.ray_job import RayJobOperator
from tradewind.sensors.ray_job import RayJobSensor
from tradewind.sensors.tpu_slices import TpuSliceReadySensor

STORED = {"ray_conn_id": "stored", "deferrable": True}

with DAG("deferred"):
    job = RayJobOperator(task_id="job", entrypoint="true", **STORED)
    RayJobSensor(task_id="ended", submission_id=job.output["submission_id"], **STORED)
    TpuSliceReadySensor(task_id="free", slice_type="v4-8", count=0, **STORED)
