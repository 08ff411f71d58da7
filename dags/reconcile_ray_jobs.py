"""An Airflow DAG that stops the Ray jobs whose task has ended, for when no triggerer was up to be told.

Unpause it where tasks follow Ray jobs, and name all your clusters. It stops only jobs that this Airflow's tasks
submitted; where several Airflows share a cluster, set ``[tradewind] deployment`` in each of them.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from tradewind.operators.reconcile import RayReconcileOperator

EVERY = timedelta(minutes=5)

with DAG(
    "reconcile_ray_jobs",
    schedule=EVERY,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["tradewind", "maintenance"],
):
    RayReconcileOperator(
        task_id="reconcile",
        ray_conn_ids=["ray_default"],
        execution_timeout=EVERY,  # a cluster that does not answer must not keep the next run waiting for long
    )
