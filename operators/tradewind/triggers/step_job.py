"""Follow a step's Ray job, and renew its lease until its driver owns it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from tradewind.attempts.cancellation import stop_step_job
from tradewind.attempts.renewal import renew_while_claimed
from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, JobOutcome
from tradewind.timeouts import within
from tradewind.triggers.ray_job import RayJobTrigger

logger = logging.getLogger(__name__)


def timed_out(job: str) -> Ending:
    """Return the ending of an attempt that was stopped at its task's ``execution_timeout``."""
    return Ending(EndingKind.TIMED_OUT, f"Ray job {job} exceeded its task's execution_timeout and was stopped.")


class StepJobTrigger(RayJobTrigger):
    """``RayJobTrigger`` for the job of an attempt.

    Its payload has the ``output_path``, the task (``by``) and the Unix time at which the attempt is stopped
    (``deadline``, or None).
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job to its end."""
        renewing = asyncio.create_task(renew_while_claimed(self._output_path, self._job))
        try:
            async for event in super().run():
                yield event
        finally:
            renewing.cancel()

    async def _await_outcome(self, *arguments: Any) -> JobOutcome:
        deadline = self.payload.get("deadline")
        try:
            async with within(None if deadline is None else deadline - time.time()) as limit:
                return await super()._await_outcome(*arguments)
        except TimeoutError:
            if not limit.expired():
                raise
        await self._stop_job()
        return JobOutcome(timed_out(self._job))

    async def _stop_job(self) -> None:
        cluster = await RayHook.cluster_from_trigger(self.ray_conn_id)
        await stop_step_job(cluster, self._job, self._output_path, self._by, logger.info)

    @property
    def _by(self) -> dict[str, Any]:
        """The task that stops the job; a trigger that an earlier version stored has only its own."""
        return self.payload.get("by") or vars(self._address)

    @property
    def _output_path(self) -> str:
        return str(self.payload["output_path"])
