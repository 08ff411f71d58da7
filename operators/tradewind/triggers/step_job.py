"""Following a step's Ray job: as any other job, and its lease is kept alive until its driver does so itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from airflow.triggers.base import TriggerEvent

from tradewind.hooks.ray import RayHook
from tradewind.records.errors import LeaseLostError, StoreUnavailableError
from tradewind.records.lease_store import LeaseStore
from tradewind.records.leases import Phase
from tradewind.triggers.ray_job import RayJobTrigger
from tradewind.triggers.step_stop import stop_step_job

logger = logging.getLogger(__name__)


class StepJobTrigger(RayJobTrigger):
    """``RayJobTrigger`` for the job of a turn; its payload holds the ``output_path``."""

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


async def renew_while_claimed(output_path: str, job: str) -> None:
    """Renew the lease of ``job`` until its driver has taken it over, or the turn is over."""
    store = LeaseStore(output_path)
    while True:
        try:
            held = await asyncio.to_thread(store.read)
            if held is None or held.lease.job != job or held.lease.phase is not Phase.CLAIMED:
                return
            held = await asyncio.to_thread(store.change, held)
        except LeaseLostError:
            return
        except StoreUnavailableError as error:
            logger.warning("The lease cannot be renewed: %s", error)
            await asyncio.sleep(1.0)
        else:
            await asyncio.sleep(held.lease.heartbeat_s)
