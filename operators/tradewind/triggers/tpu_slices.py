"""Waiting from the triggerer for TPU slices: for free ones, and for dead ones to be back.

A repair blocks, so it works in a thread. When the trigger ends, whatever the reason, the thread stops at its next
wait; what it had begun is carried on by the next repair.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tradewind.cloud_tpu.errors import TpuApiError, TpuUnreachableError
from tradewind.deployment.ray_connection import RayHook
from tradewind.deployment.slice_repair import RepairRequest, build_repair
from tradewind.ray_jobs.errors import RayJobsError, RayUnreachableError
from tradewind.ray_jobs.nodes import RegisteredSlice, registered_slices

if TYPE_CHECKING:
    from tradewind.cloud_tpu.repair.terms import RepairReport
    from tradewind.ray_jobs.api import JobsApi

logger = logging.getLogger(__name__)


class RepairStoppedError(Exception):
    """Whoever waits for the repair has gone."""


class TpuSliceRecoveryTrigger(BaseTrigger):
    """Repairs the slices of a cluster until all of them work or only a person can help, or with ``once`` in one pass.

    The event holds the last table (``rows``), everything that was done (``done``), who needs a person (``stuck``), and
    ``error`` if the repair cannot go on.
    """

    def __init__(self, request: dict[str, Any], interval_s: float, *, once: bool = False) -> None:
        super().__init__()
        self.request = request
        self.interval_s = interval_s
        self.once = once

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments; no secret is among them."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"request": self.request, "interval_s": self.interval_s, "once": self.once}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Pass after pass."""
        from asgiref.sync import sync_to_async

        stopped = threading.Event()

        def sleep(seconds: float) -> None:
            if stopped.wait(seconds):
                raise RepairStoppedError

        told = RepairUpdates()
        try:
            # Airflow's connections can be read in such a thread, and not in one of asyncio's own.
            make = sync_to_async(build_repair, thread_sensitive=False)
            repair = await make(RepairRequest(**self.request), sleep)
            while not (told.add_pass(await _one_pass(repair.run_once)) or (self.once and told.report)):
                await asyncio.sleep(self.interval_s)
        except (TpuApiError, RayJobsError) as error:
            told.error = str(error)
        finally:
            stopped.set()
        yield TriggerEvent(told.to_json())


async def _one_pass(run_once: Any) -> RepairReport | None:
    """The report of one pass; None if the API did not answer."""
    try:
        report: RepairReport = await asyncio.to_thread(run_once)
    except TpuUnreachableError as error:
        logger.warning("%s", error)
        return None
    return report


class RepairUpdates:
    """What the passes of a repair told, as far as it was new."""

    def __init__(self) -> None:
        self.report: RepairReport | None = None
        self.done: list[str] = []
        self.error: str | None = None
        self._shown: list[tuple[str, str, str, str]] = []

    def add_pass(self, report: RepairReport | None) -> bool:
        """Take in a report and log it if it says something new; whether there is nothing more to wait for."""
        if report is None:
            return False
        self.report = report
        self.done += [f"{name}: {words}" for name, words in report.done.items()]
        shown = [(finding.name, finding.verdict.value, finding.hosts, finding.trouble) for finding in report.findings]
        if report.done or shown != self._shown:
            logger.info("%s", report.table())
        self._shown = shown
        return report.is_over

    def to_json(self) -> dict[str, Any]:
        """What the event holds."""
        rows = self.report.rows() if self.report else []
        stuck = [f"{finding.name}: {finding.reason}" for finding in self.report.needs_attention] if self.report else []
        return {"rows": rows, "done": self.done, "stuck": stuck, "error": self.error}


class TpuSliceReadyTrigger(BaseTrigger):
    """Fires when so many slices of a type are complete and free. The event holds their names."""

    def __init__(self, ray_conn_id: str, slice_type: str, hosts: int, count: int, interval_s: float) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id
        self.slice_type = slice_type
        self.hosts = hosts
        self.count = count
        self.interval_s = interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments; no secret is among them."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        names = ("ray_conn_id", "slice_type", "hosts", "count", "interval_s")
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there are enough."""
        from tradewind.ray_jobs.api import JobsApi

        try:
            async with JobsApi(await RayHook.cluster_from_trigger(self.ray_conn_id)) as api:
                slices = await self._wait(api)
        except RayJobsError as error:
            yield TriggerEvent({"slices": [], "error": str(error)})
            return
        yield TriggerEvent({"slices": slices, "error": None})

    async def _wait(self, api: JobsApi) -> list[str]:
        shown = ""
        while True:
            try:
                free, words = await find_free_slices(api, self.slice_type, self.hosts)
            except RayUnreachableError as error:
                free, words = [], str(error)
            if len(free) >= self.count:
                return free
            if words != shown:
                logger.info("%d of %d slices %s are ready. %s", len(free), self.count, self.slice_type, words)
                shown = words
            await asyncio.sleep(self.interval_s)


async def find_free_slices(api: JobsApi, slice_type: str, hosts: int) -> tuple[list[str], str]:
    """The free, complete slices of this type, and how each slice of this type is.

    Raises:
        RayUnreachableError: No answer.
    """
    from tradewind.ray_jobs.nodes import fetch_nodes

    ours = [known for known in registered_slices(await fetch_nodes(api)) if known.slice_type == slice_type]
    words = "; ".join(f"{known.name}: {_how(known, hosts)}" for known in ours) or "The cluster has none of this type."
    return [known.name for known in ours if known.hosts >= hosts and known.is_free], words


def _how(known: RegisteredSlice, hosts: int) -> str:
    if known.hosts < hosts:
        return f"{known.hosts} of {hosts} hosts registered"
    return {True: "free", False: "busy", None: "Ray does not tell whether it is free"}[known.is_free]
