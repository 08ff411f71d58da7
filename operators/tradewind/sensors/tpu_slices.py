"""Wait for TPU slices: for free ones of a type, and for the repair of the dead ones of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tradewind.cloud_tpu.errors import BadSliceError, TpuApiError
from tradewind.cloud_tpu.slice_types import slice_type as slice_type_of
from tradewind.deployment.ray_connection import RayHook
from tradewind.deployment.slice_repair import RepairRequest, build_repair
from tradewind.tasks.errors import BadInputError, ClusterRefusedError, failing_without_retry, translated_cluster_errors
from tradewind.triggers.in_line import waits_in_line
from tradewind.triggers.tpu_slices import RepairUpdates, TpuSliceReadyTrigger, TpuSliceRecoveryTrigger, find_free_slices

if TYPE_CHECKING:
    from tradewind.cloud_tpu.repair.passes import SliceRepair

_MAX_NAMED = 10
_DEFERRABLE = conf.getboolean("operators", "default_deferrable", fallback=False)


class SliceRepairError(AirflowException):
    """The repair cannot continue: the Cloud TPU API refuses a request. Airflow's next try repeats the pass."""


class SliceNeedsPersonError(AirflowFailException):
    """A slice is dead that no repair may touch or can create: it is reserved, or no known request creates it."""


SliceNeedsAttentionError = SliceNeedsPersonError


class TpuSliceReadySensor(BaseSensorOperator):
    """Succeeds when there are free slices of a type, with all of their hosts registered with Ray.

    It reserves nothing: another job may take the slices before the next task does. XCom: the names of the free slices.

    Args:
        slice_type: Their type, for example ``v4-16``.
        count: How many.
        ray_conn_id: Connection of the cluster.
        deferrable: Wait in the triggerer, which needs no worker slot.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("slice_type", "count", "ray_conn_id")

    def __init__(
        self,
        *,
        slice_type: str,
        count: int = 1,
        ray_conn_id: str = RayHook.default_conn_name,
        deferrable: bool = _DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.slice_type = slice_type
        self.count = count
        self.ray_conn_id = ray_conn_id
        self.deferrable = deferrable
        self._shown = ""

    def execute(self, context: Context) -> Any:
        """Wait for the slices, in the triggerer or here."""
        hosts = self._hosts()
        if not (self.deferrable or waits_in_line()):
            return super().execute(context)
        self.defer(
            trigger=TpuSliceReadyTrigger(
                self.ray_conn_id, self.slice_type, hosts, int(self.count), float(self.poke_interval)
            ),
            method_name=self.execute_complete.__name__,
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[str]:
        """Log and return the names of the free slices."""
        if event["error"]:
            raise ClusterRefusedError(f"Task {self.task_id!r}: {event['error']}")
        self.log.info("Free: %s", ", ".join(event["slices"]))
        return list(event["slices"])

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether there are enough."""
        with translated_cluster_errors(f"Task {self.task_id!r}"):
            free, words = asyncio.run(self._find_free())
        if words != self._shown:
            self.log.info("%d of %d slices %s are ready. %s", len(free), int(self.count), self.slice_type, words)
        self._shown = words
        return PokeReturnValue(is_done=len(free) >= int(self.count), xcom_value=free)

    async def _find_free(self) -> tuple[list[str], str]:
        from tradewind.ray_jobs.api import JobsApi

        async with JobsApi(RayHook(self.ray_conn_id).cluster()) as api:
            return await find_free_slices(api, self.slice_type, self._hosts())

    def _hosts(self) -> int:
        with failing_without_retry():
            return slice_type_of(self.slice_type).hosts


class TpuSliceRecoverySensor(BaseSensorOperator):
    """Finds the dead slices of a cluster, deletes and creates them again, and succeeds when every host is back.

    With nothing to do it succeeds at once. It never touches a slice of which all hosts are registered with Ray, nor
    reserved capacity. Name the slices that belong to the cluster by ``expected``, by ``labels``, or by both: the repair
    ignores all others. XCom: the table of slices, what was done, and what needs a user; the task pushes it also when it
    fails because a slice needs a user.

    Args:
        zone: The zone of the slices.
        gcp_conn_id: Google Cloud connection; see ``CloudTpuHook`` for its extras.
        project_id: Instead of the connection's project.
        impersonation_chain: The service account to act as.
        ray_conn_id: Connection of the cluster.
        expected: The names of slices or queued resources that should be there; or a mapping from each name to what
            creates it: the JSON body of a node, or of a queued resource, in the Cloud TPU API v2.
        labels: A slice with all of these labels belongs to the cluster, too.
        records: Folder, in any store, for the records that a repair needs to replace a slice; default: the folder
            ``slice-records`` in the bucket of the Ray connection.
        settings: Fields of ``RepairSettings``: grace periods and limits.
        dry_run: Only report what a repair would do.
        once: Make one pass, and leave unfinished work to the next run. The pass waits a few minutes at most.
        deferrable: Work in the triggerer, which needs no worker slot.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = (
        "zone",
        "gcp_conn_id",
        "project_id",
        "impersonation_chain",
        "ray_conn_id",
        "expected",
        "labels",
        "records",
        "settings",
    )

    def __init__(
        self,
        *,
        zone: str,
        gcp_conn_id: str = "google_cloud_default",
        project_id: str | None = None,
        impersonation_chain: str | Sequence[str] | None = None,
        ray_conn_id: str = RayHook.default_conn_name,
        expected: Mapping[str, Mapping[str, Any] | None] | Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        records: str | None = None,
        settings: Mapping[str, float] | None = None,
        dry_run: bool = False,
        once: bool = False,
        deferrable: bool = _DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.zone = zone
        self.gcp_conn_id = gcp_conn_id
        self.project_id = project_id
        self.impersonation_chain = impersonation_chain
        self.ray_conn_id = ray_conn_id
        self.expected = expected
        self.labels = labels
        self.records = records
        self.settings = settings
        self.only_report = dry_run
        self.once = once
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Repair, in the triggerer or here."""
        request = self._request()
        if not (self.deferrable or waits_in_line()):
            return super().execute(context)
        self.defer(
            trigger=TpuSliceRecoveryTrigger(request.to_json(), float(self.poke_interval), once=self.once),
            method_name=self.execute_complete.__name__,
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome.

        Raises:
            SliceRepairError: The Cloud TPU API refuses a request.
            SliceNeedsPersonError: A slice needs a user.
        """
        if event["error"]:
            raise SliceRepairError(f"Task {self.task_id!r}: {event['error']}")
        found = {"slices": event["rows"], "done": event["done"], "stuck": event["stuck"]}
        if event["stuck"]:
            context["ti"].xcom_push(key="return_value", value=found)  # a task that fails returns nothing
            named, rest = event["stuck"][:_MAX_NAMED], len(event["stuck"]) - _MAX_NAMED
            more = f"; and {rest} more, see the table in the log" if rest > 0 else ""
            raise SliceNeedsPersonError(f"Task {self.task_id!r}: {'; '.join(named)}{more}")
        return found

    def poke(self, context: Context) -> PokeReturnValue:
        """Make one pass; done if it was the last."""
        try:
            with translated_cluster_errors(f"Task {self.task_id!r}"):
                is_done = self._updates.add_pass(self._repair.run_once()) or self.once
        except TpuApiError as error:
            raise SliceRepairError(f"Task {self.task_id!r}: {error}") from error
        event = self._updates.to_json()
        return PokeReturnValue(is_done=is_done, xcom_value=self.execute_complete(context, event) if is_done else None)

    @cached_property
    def _updates(self) -> RepairUpdates:
        return RepairUpdates()

    @cached_property
    def _repair(self) -> SliceRepair:
        return build_repair(self._request())

    def _request(self) -> RepairRequest:
        expected = self.expected
        try:
            return RepairRequest(
                gcp_conn_id=self.gcp_conn_id,
                zone=self.zone,
                ray_conn_id=self.ray_conn_id,
                project_id=self.project_id,
                impersonation_chain=self.impersonation_chain,
                expected=dict(expected) if isinstance(expected, Mapping) else dict.fromkeys(expected),
                labels=dict(self.labels or {}),
                records=self.records,
                settings=dict(self.settings or {}),
                dry_run=self.only_report,
            )
        except BadSliceError as error:
            raise BadInputError(f"Task {self.task_id!r}: {error}") from error
