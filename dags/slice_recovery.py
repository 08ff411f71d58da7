"""An Airflow DAG that brings dead TPU slices back: those that were preempted, lost a host, or were left behind.

Set the Airflow variable ``tradewind_slice_recovery`` to a list with one entry for each cluster, which holds the
arguments of a ``TpuSliceRecoverySensor``, and unpause the DAG:

    [{"ray_conn_id": "ray_default", "zone": "us-central2-b", "labels": {"ray-cluster-name": "research"}}]
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Variable, task

from tradewind.sensors.tpu_slices import TpuSliceRecoverySensor

EVERY = timedelta(minutes=5)
DEFAULTS = {"deferrable": True, "poke_interval": 15.0, "timeout": 3600.0}

with DAG(
    "slice_recovery",
    schedule=EVERY,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["tradewind", "maintenance"],
):

    @task
    def clusters() -> list[dict[str, Any]]:
        """What the variable says now; without it there is nothing to do."""
        listed = Variable.get("tradewind_slice_recovery", default=[], deserialize_json=True)
        return [DEFAULTS | cluster for cluster in listed]

    TpuSliceRecoverySensor.partial(
        task_id="recover", map_index_template="{{ task.ray_conn_id }} {{ task.zone }}"
    ).expand_kwargs(clusters())
