"""Airflow DAG that maintains every cluster of the fleet file, every ten minutes.

It replaces dead slices, stops Ray jobs whose task has ended, and clears leftovers of killed jobs from idle hosts. Its
task ``stalls`` notifies users of steps without progress: give it notifiers, or set ``[tradewind] announce_notifiers``.
The last task fails when a user must act: give it an ``on_failure_callback`` that notifies you. Set ``[tradewind]
fleet_file``, give each cluster its Airflow connection, and unpause the DAG. With ``dry_run`` in the trigger form, it
only reports what it would do.
"""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, Variable, task
from airflow.sdk.exceptions import AirflowFailException

from tradewind import on_head_node
from tradewind.operators.fleet import FleetClustersOperator, FleetReportOperator, StallAlertOperator
from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.reconcile import RayReconcileOperator
from tradewind.runtime.host_sweep import sweep_hosts
from tradewind.sensors.tpu_slices import TpuSliceRecoverySensor

EVERY = timedelta(minutes=10)
CLUSTER = "{{ task.ray_conn_id }}"


def repair(cluster: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cluster.items() if key != "name"}


def stop_jobs(cluster: dict[str, Any]) -> dict[str, Any]:
    return {"ray_conn_ids": [cluster["ray_conn_id"]], "dry_run": cluster["dry_run"]}


def sweep(cluster: dict[str, Any]) -> dict[str, Any]:
    return {"ray_conn_id": cluster["ray_conn_id"], "op_kwargs": {"dry_run": cluster["dry_run"]}}


with DAG(
    "fleet_maintenance",
    schedule=EVERY,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "dry_run": Param(False, "Only say what would be done.", type="boolean"),
        "clusters": Param([], "Names of clusters; all of the fleet file without any.", type="array"),
    },
    render_template_as_native_obj=True,
    tags=["tradewind", "maintenance"],
):
    clusters = FleetClustersOperator(task_id="clusters", clusters="{{ params.clusters }}")
    slices = TpuSliceRecoverySensor.partial(
        task_id="repair_slices", map_index_template=CLUSTER, once=True, poke_interval=15.0, timeout=1800.0
    ).expand_kwargs(clusters.output.map(repair))
    jobs = RayReconcileOperator.partial(
        task_id="stop_jobs", map_index_template="{{ task.ray_conn_ids[0] }}", execution_timeout=EVERY
    ).expand_kwargs(clusters.output.map(stop_jobs))
    hosts = RayJobOperator.partial(
        task_id="sweep_hosts",
        map_index_template=CLUSTER,
        python_callable=sweep_hosts,
        runs_on=on_head_node(),
        timeout=EVERY,
    ).expand_kwargs(clusters.output.map(sweep))
    StallAlertOperator(task_id="stalls", clusters=clusters.output, no_step_s=15 * 60, no_shard_s=45 * 60)
    report = FleetReportOperator(
        task_id="report",
        clusters=clusters.output,
        slices=slices.task_id,
        jobs=jobs.task_id,
        hosts=hosts.task_id,
        markers=clusters.output["markers"],
        outlets=[Asset("tradewind_fleet_maintenance")],
        trigger_rule="all_done",
    )

    @task
    def call_a_person(report: dict[str, Any]) -> None:
        """Fail if there are problems that this DAG cannot fix."""
        if wanted := report["for_a_person"] + report["unseen"]:
            raise AirflowFailException("; ".join(wanted))

    [slices, jobs, hosts] >> report
    call_a_person(report.output)

    # The variable of the former DAG ``slice_recovery``: read for one more release.
    @task
    def from_variable() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = Variable.get("tradewind_slice_recovery", default=[], deserialize_json=True)
        if listed:
            logging.getLogger(__name__).warning(
                "The Airflow variable tradewind_slice_recovery will not be read any more after this release: describe "
                "these clusters in the fleet file and delete it."
            )
        return [{"once": True, "poke_interval": 15.0, "timeout": 1800.0} | cluster for cluster in listed]

    TpuSliceRecoverySensor.partial(task_id="repair_listed", map_index_template=CLUSTER).expand_kwargs(from_variable())
