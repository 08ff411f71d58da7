"""Links from a task to Ray. The task pushes them when it submits the job, so they work while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import RuntimeTaskInstanceProtocol, TaskInstanceKey

    from tradewind.ray_jobs.cluster import RayCluster


class _PushedLink(BaseOperatorLink):
    """A link whose address the task has pushed."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address that the task pushed."""
        return str(XCom.get_value(key=self.xcom_key, ti_key=ti_key) or "")


class RayJobLink(_PushedLink):
    """The job's page on the Ray dashboard."""

    name = "Ray job"


class RayLogLink(_PushedLink):
    """The job's whole log on the cluster."""

    name = "Ray log"


def push_links(ti: RuntimeTaskInstanceProtocol, cluster: RayCluster, job: str) -> None:
    """Point both links of a task to ``job``."""
    ti.xcom_push(key=RayJobLink().xcom_key, value=cluster.job_url(job))
    ti.xcom_push(key=RayLogLink().xcom_key, value=cluster.log_url(job))
