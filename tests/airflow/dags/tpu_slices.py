"""Wait for a free slice of the cluster that the maintenance DAG repairs."""

from datetime import timedelta

from airflow.sdk import DAG

from tradewind.sensors.tpu_slices import TpuSliceReadySensor

with DAG("tpu_slices", schedule=None):
    for deferrable in (True, False):
        TpuSliceReadySensor(
            task_id="in_triggerer" if deferrable else "in_worker",
            slice_type="v4-16",
            ray_conn_id="tpu_cluster",
            deferrable=deferrable,
            poke_interval=1.0,
            timeout=timedelta(minutes=5).total_seconds(),
        )
