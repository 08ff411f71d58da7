"""Wait from the triggerer for TPU slices: for free ones, and for the repair of dead ones.

A repair blocks, so it runs in a thread. When the trigger ends, the thread stops at its next wait, and the next repair
continues its work.
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
from tradewind.triggers.in_line import ending_in_line

if TYPE_CHECKING:
    from tradewind.cloud_tpu.repair.terms import RepairReport
    from tradewind.ray_jobs.api import JobsApi

logger = logging.getLogger(__name__)


class RepairStoppedError(Exception):
    """The trigger that waits for the repair has ended."""


class TpuSliceRecoveryTrigger(BaseTrigger):
    """Repairs the slices of a cluster until all work or only a user can help; with ``once``, in one pass.

    The event has the last table (``rows``), everything that was done (``done``), the slices that need a user
    (``stuck``), and ``error`` if the repair cannot continue.
    """

    def __init__(self, request: dict[str, Any], interval_s: float, *, once: bool = False) -> None:
        super().__init__()
        self.request = request
        self.interval_s = interval_s
        self.once = once

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments; none of them is a secret."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"request": self.request, "interval_s": self.interval_s, "once": self.once}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Run pass after pass."""
        from asgiref.sync import sync_to_async

        stopped = threading.Event()

        def sleep(seconds: float) -> None:
            if stopped.wait(seconds):
                raise RepairStoppedError

        updates = RepairUpdates()
        try:
            async with ending_in_line(self, "The next repair continues this one."):
                make = sync_to_async(build_repair, thread_sensitive=False)
                repair = await make(RepairRequest(**self.request), sleep)
                while not (updates.add_pass(await _one_pass(repair.run_once)) or (self.once and updates.report)):
                    await asyncio.sleep(self.interval_s)
        except (TpuApiError, RayJobsError) as error:
            updates.error = str(error)
        finally:
            stopped.set()
        yield TriggerEvent(updates.to_json())


async def _one_pass(run_once: Any) -> RepairReport | None:
    """Run one pass; return its report, or None if the API did not answer."""
    try:
        report: RepairReport = await asyncio.to_thread(run_once)
    except TpuUnreachableError as error:
        logger.warning("%s", error)
        return None
    return report


class RepairUpdates:
    """The reports of a repair's passes, as far as they are new."""

    def __init__(self) -> None:
        self.report: RepairReport | None = None
        self.done: list[str] = []
        self.error: str | None = None
        self._shown: list[tuple[str, str, str, str]] = []

    def add_pass(self, report: RepairReport | None) -> bool:
        """Add a report and log it if it is new; return whether the repair is complete."""
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
        """Return the event."""
        rows = self.report.rows() if self.report else []
        stuck = [f"{finding.name}: {finding.reason}" for finding in self.report.needs_attention] if self.report else []
        return {"rows": rows, "done": self.done, "stuck": stuck, "error": self.error}


class TpuSliceReadyTrigger(BaseTrigger):
    """Fires when ``count`` slices of a type are complete and free. The event has their names."""

    def __init__(self, ray_conn_id: str, slice_type: str, hosts: int, count: int, interval_s: float) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id
        self.slice_type = slice_type
        self.hosts = hosts
        self.count = count
        self.interval_s = interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments; none of them is a secret."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        names = ("ray_conn_id", "slice_type", "hosts", "count", "interval_s")
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there are enough."""
        from tradewind.ray_jobs.api import JobsApi

        try:
            async with (
                ending_in_line(self, "It has no job."),
                JobsApi(await RayHook.cluster_from_trigger(self.ray_conn_id)) as api,
            ):
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
    """Return the free, complete slices of this type, and a description of each slice of this type.

    Raises:
        RayUnreachableError: No answer.
    """
    from tradewind.ray_jobs.nodes import fetch_nodes

    slices = [one for one in registered_slices(await fetch_nodes(api)) if one.slice_type == slice_type]
    words = "; ".join(f"{one.name}: {_state(one, hosts)}" for one in slices) or "The cluster has none of this type."
    return [one.name for one in slices if one.hosts >= hosts and one.is_free], words


def _state(one: RegisteredSlice, hosts: int) -> str:
    if one.hosts < hosts:
        return f"{one.hosts} of {hosts} hosts registered"
    return {True: "free", False: "busy", None: "Ray does not report whether it is free"}[one.is_free]
