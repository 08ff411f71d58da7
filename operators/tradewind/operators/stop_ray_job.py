"""Stop Ray jobs as a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.job_query import JobQuery, find_jobs
from tradewind.tasks.errors import failing_without_retry, translated_cluster_errors
from tradewind.tasks.xcom_texts import check_xcom_texts

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster


class RayStopJobOperator(BaseOperator):
    """Stops Ray jobs and waits for their end. A job that has ended or never existed is no error.

    XCom: the submission ids of the jobs that it stopped.

    Args:
        submission_id: The job's id.
        metadata: Instead of the id: all jobs with all of these metadata.
        ray_conn_id: Connection of the cluster.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("submission_id", "metadata", "ray_conn_id")

    def __init__(
        self,
        *,
        submission_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        ray_conn_id: str = RayHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.submission_id = submission_id
        self.metadata = metadata
        self.ray_conn_id = ray_conn_id

    def prepare_template(self) -> None:
        """Refuse texts that need another task's XCom without waiting for it."""
        check_xcom_texts(self)

    def execute(self, context: Context) -> list[str]:
        """Stop the matching jobs that have not ended."""
        with failing_without_retry():
            query = JobQuery(self.submission_id or None, self.metadata or None)
        with translated_cluster_errors(f"Task {self.task_id!r}"):
            stopped = asyncio.run(self._stop(RayHook(self.ray_conn_id).cluster(), query))
        self.log.info("Stopped %s.", ", ".join(stopped) if stopped else f"no job: {query} is not running")
        return stopped

    async def _stop(self, cluster: RayCluster, query: JobQuery) -> list[str]:
        from tradewind.ray_jobs.api import JobsApi
        from tradewind.ray_jobs.follow.stopping import stop_job

        async with JobsApi(cluster) as api:
            active = [job.job for job in await find_jobs(api, query) if not job.has_ended]
            await asyncio.gather(*(stop_job(api, job, self.log.info) for job in active))
        return active
