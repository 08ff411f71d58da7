"""Follow a step's Ray job, and renew its lease until its driver owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from airflow.triggers.base import TriggerEvent

from tradewind.attempts.cancellation import stop_step_job
from tradewind.attempts.renewal import renew_while_claimed
from tradewind.deployment.ray_connection import RayHook
from tradewind.triggers.ray_job import RayJobTrigger

logger = logging.getLogger(__name__)


class StepJobTrigger(RayJobTrigger):
    """``RayJobTrigger`` for the job of an attempt; its payload has the ``output_path``."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job to its end."""
        renewing = asyncio.create_task(renew_while_claimed(self._output_path, self._job))
        try:
            async for event in super().run():
                yield event
        finally:
            renewing.cancel()

    async def _stop_job(self) -> None:
        cluster = await RayHook.cluster_from_trigger(self.ray_conn_id)
        await stop_step_job(cluster, self._job, self._output_path, vars(self._address), logger.info)

    @property
    def _output_path(self) -> str:
        return str(self.payload["output_path"])
