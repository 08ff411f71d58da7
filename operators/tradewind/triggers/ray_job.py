"""Following a Ray job from the triggerer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tradewind.hooks.ray import RayHook

job_logger = logging.getLogger("ray.job")


class RayJobTrigger(BaseTrigger):
    """Fires when a Ray job has ended; until then its log lines go to the task's log.

    It stops nothing, however it ends. ``payload`` is handed back in the event.
    """

    def __init__(self, ray_conn_id: str, job: str, payload: dict[str, Any]) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id
        self.job = job
        self.payload = payload

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments; no secret is among them."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"ray_conn_id": self.ray_conn_id, "job": self.job, "payload": self.payload}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job to its end."""
        from tradewind.ray_jobs.follow import follow_job  # not at the top: operators import this while a file is parsed

        cluster = await RayHook.cluster_from_trigger(self.ray_conn_id)
        end = await follow_job(cluster, self.job, job_logger.info)
        yield TriggerEvent({"status": end.status, "message": end.message, **self.payload})
