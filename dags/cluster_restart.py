"""Airflow DAG that restarts a cluster of the fleet; if other users have jobs there, with approval.

Trigger it with the cluster's name and a reason. If jobs of other users run there, the task ``approve`` waits until a
user approves or rejects it in the UI. The restart restores their jobs; Airflow's tasks resume theirs by themselves. Set
``[tradewind] fleet_file``, and see the documentation for what the workers need.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from tradewind.operators.restart_cluster import RayClusterPeopleOperator, RayClusterRestartOperator

with DAG(
    "cluster_restart",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "cluster": Param("", "Its name in the fleet file.", type="string", minLength=1),
        "preserve": Param(True, "Restore the unmanaged jobs afterwards.", type="boolean"),
        "abandon_kept_jobs": Param(
            False,
            "Continue an interrupted restart without the jobs that it saved on another machine; they stay there.",
            type="boolean",
        ),
        "reason": Param("", "The reason, which is announced.", type="string", minLength=1),
    },
    tags=["tradewind", "maintenance"],
):
    people = RayClusterPeopleOperator(task_id="people", cluster="{{ params.cluster }}")

    @task.branch
    def who_is_asked(people: dict[str, Any]) -> str:
        """Require approval if jobs of other users run on the cluster."""
        return "approve" if people["ask"] else "restart"

    approve = ApprovalOperator(
        task_id="approve",
        subject="Restart cluster {{ params.cluster }}?",
        body="{{ params.reason }}\n\n```\n{{ ti.xcom_pull(task_ids='people')['table'] }}\n```",
        response_timeout=timedelta(hours=12),
    )
    restart = RayClusterRestartOperator(
        task_id="restart",
        cluster="{{ params.cluster }}",
        preserve_jobs="{{ params.preserve }}",
        abandon_kept_jobs="{{ params.abandon_kept_jobs }}",
        reason="{{ params.reason }}",
        trigger_rule="none_failed_min_one_success",
        retries=2,
        retry_delay=timedelta(minutes=2),
    )
    who_is_asked(people.output) >> [approve, restart]
    approve >> restart
