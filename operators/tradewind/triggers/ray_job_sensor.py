"""Wait from the triggerer for a Ray job that another process submitted."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.demand import Demand
from tradewind.ray_jobs.follow.outcomes import FollowRequest, await_outcome
from tradewind.ray_jobs.job_query import JobQuery, await_job
from tradewind.triggers.in_line import ending_in_line

logger = logging.getLogger(__name__)


class RayJobSensorTrigger(BaseTrigger):
    """Fires when the job has appeared and ended. It stops nothing: the job is not this task's."""

    def __init__(self, ray_conn_id: str, submission_id: str | None, metadata: dict[str, str] | None) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id
        self.submission_id = submission_id
        self.metadata = metadata

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments; none of them is a secret."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in ("ray_conn_id", "submission_id", "metadata")}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the job and for its end."""
        from tradewind.ray_jobs.api import JobsApi

        async with ending_in_line(self, "The job that this task waits for is not stopped."):
            cluster = await RayHook.cluster_from_trigger(self.ray_conn_id)
            async with JobsApi(cluster) as api:
                job = (await await_job(api, JobQuery(self.submission_id, self.metadata))).job
            logger.info("Waiting for Ray job %s: %s", job, cluster.job_url(job))
            reload_cluster = partial(RayHook.reload_cluster, self.ray_conn_id)
            outcome = await await_outcome(cluster, FollowRequest(job, Demand()), None, logger.info, reload_cluster)
        yield TriggerEvent({"job": job, "ending": outcome.ending.to_json()})
