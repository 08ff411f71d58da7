"""Upkeep of the fleet's clusters: list them, and report the results of the maintenance tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseNotifier, BaseOperator, Context, TaskInstanceState

from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.deployment.announce import MAX_MESSAGE_CHARS, announce, configured_notifiers
from tradewind.deployment.fleet import configured_fleet, deployment_roots, lock_note
from tradewind.deployment.ray_connection import RayHook
from tradewind.fleet.clusters import CLUSTER_LABEL
from tradewind.fleet.errors import FleetError
from tradewind.fleet.upkeep import (
    LockNote,
    UncheckedItem,
    UpkeepLine,
    UpkeepReport,
    host_lines,
    job_lines,
    orphan_lines,
    slice_lines,
)
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.steps.amounts import check_amount
from tradewind.tasks.errors import BadInputError

if TYPE_CHECKING:
    from tradewind.fleet.clusters import Fleet, FleetCluster
    from tradewind.fleet.stalled_steps import StalledStep
    from tradewind.ray_jobs.details import JobDetails

MARKERS: Final = "markers"
"""The XCom of a ``FleetClustersOperator`` with the state of the cluster locks."""


def task_fleet(task_id: str, names: Sequence[str] | None = None) -> tuple[Fleet, list[FleetCluster]]:
    """Return the fleet of this deployment, and its clusters of these ``names``, or else all of them.

    Raises:
        BadInputError: The fleet file is missing or unusable, or lacks a cluster.
    """
    try:
        fleet = configured_fleet()
        if fleet is not None:
            return fleet, [fleet.cluster(name) for name in names or fleet.clusters]
    except FleetError as error:
        raise BadInputError(f"Task {task_id!r}: {error}") from error
    raise BadInputError(
        f"Task {task_id!r}: this deployment has no fleet file. Set fleet_file in the [tradewind] section of "
        "airflow.cfg, or the variable TRADEWIND_FLEET."
    )


class FleetClustersOperator(BaseOperator):
    """Lists the clusters of the fleet, so that other tasks can be mapped over them.

    The fleet file is read when the task runs, never when a DAG file is parsed.

    XCom: a list with one mapping per cluster: ``name``, ``ray_conn_id``, ``project_id``, ``zone``, ``labels`` of its
    TPU nodes, and ``dry_run``, the run's param of that name.

    A cluster under a start, stop, restart or apply is omitted, since its slices look dead meanwhile; so is one whose
    lock cannot be read. The XCom ``markers`` lists them for the report.

    Args:
        clusters: Only these clusters; default: all of the fleet file.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("clusters",)

    def __init__(self, *, clusters: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clusters = clusters

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Read the fleet file."""
        _, wanted = task_fleet(self.task_id, self.clusters)
        notes = [note for cluster in wanted if (note := lock_note(cluster))]
        for note in notes:
            self.log.info("%s", note.sentence)
        context["ti"].xcom_push(key=MARKERS, value=[asdict(note) for note in notes])
        skipped = {note.cluster for note in notes if note.is_left_out}
        return [
            {
                "name": cluster.name,
                "ray_conn_id": cluster.connection,
                "project_id": cluster.project,
                "zone": cluster.zone,
                "labels": {CLUSTER_LABEL: cluster.name},
                "dry_run": bool(context["params"].get("dry_run", False)),
            }
            for cluster in wanted
            if cluster.name not in skipped
        ]


class FleetReportOperator(BaseOperator):
    """Combines the results of tasks that were mapped over the clusters of a ``FleetClustersOperator``.

    It also finds TPU nodes of clusters that are no longer in the fleet file; it never deletes them. The log contains
    the table. Use the trigger rule ``all_done``, since a task that needs a user's action fails.

    XCom: ``counts`` by cluster, and sentences in ``news`` (what was done, or needs a user), ``for_a_person`` and
    ``unseen``. Its asset events have the same as their extra.

    Args:
        clusters: Result of the ``FleetClustersOperator``.
        slices: Id of the mapped ``TpuSliceRecoverySensor``.
        jobs: Id of the mapped ``RayReconcileOperator``.
        hosts: Id of the mapped task that runs ``sweep_hosts``.
        markers: The XCom ``markers`` of the ``FleetClustersOperator``.
        gcp_conn_id: Google Cloud connection; see ``CloudTpuHook`` for its extras.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("clusters", "markers", "gcp_conn_id")

    def __init__(
        self,
        *,
        clusters: Sequence[Mapping[str, Any]],
        slices: str,
        jobs: str,
        hosts: str,
        markers: Sequence[Mapping[str, Any]] = (),
        gcp_conn_id: str = "google_cloud_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.clusters = clusters
        self.slices = slices
        self.jobs = jobs
        self.hosts = hosts
        self.markers = markers
        self.gcp_conn_id = gcp_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Read the tasks' results, and list the nodes of each zone."""
        locks = [LockNote(**fields).line() for fields in self.markers]
        parts = [locks, *self._task_results(context), *self._orphans()]
        lines = [line for part in parts if not isinstance(part, UncheckedItem) for line in part]
        report = UpkeepReport(lines, [part for part in parts if isinstance(part, UncheckedItem)])
        self.log.info("%s", report.table())
        fields = report.to_json()
        for asset in self.outlets:
            context["outlet_events"][asset].extra = fields
        return fields

    def _task_results(self, context: Context) -> Iterator[Iterable[UpkeepLine] | UncheckedItem]:
        tasks: Mapping[str, Callable[..., Iterable[UpkeepLine]]] = {
            self.slices: slice_lines,
            self.jobs: job_lines,
            self.hosts: host_lines,
        }
        for index, cluster in enumerate(self.clusters):
            for task_id, lines_of in tasks.items():
                result = context["ti"].xcom_pull(task_ids=task_id, map_indexes=index)
                if result is None:
                    yield UncheckedItem(cluster["name"], f"task {task_id} has no result: see its log")
                else:
                    yield lines_of(cluster["name"], result, is_dry=cluster["dry_run"])

    def _orphans(self) -> Iterator[Iterable[UpkeepLine] | UncheckedItem]:
        from tradewind.deployment.cloud_tpu import CloudTpuHook

        fleet, _ = task_fleet(self.task_id)
        for project, zone in sorted({(cluster["project_id"], cluster["zone"]) for cluster in self.clusters}):
            try:
                nodes = CloudTpuHook(self.gcp_conn_id).tpu_api(zone, project).nodes()
            except TpuApiError as error:
                yield UncheckedItem(f"{project}, {zone}", f"its nodes cannot be listed: {error}")
            else:
                yield orphan_lines(fleet, project, zone, nodes)


class StallAlertOperator(BaseOperator):
    """Notifies users once of each step that runs without progress: no training step, or no shard, for too long.

    A step that stalls changes no task's state, so no listener and no callback of Airflow runs. This operator therefore
    looks at the records of the steps that run on the clusters, whenever its DAG is scheduled. A stall is reported again
    only if the step's next attempt stalls, too.

    A cluster that does not answer is logged; the report of upkeep has it. A notifier that fails fails the task, and the
    next run sends the same stalls again.

    XCom: the stalled steps that were reported, one mapping each; ``stalled_steps.StalledStep`` has the fields. A dry
    run reports none, so the next run sends them.

    Args:
        clusters: Result of a ``FleetClustersOperator``.
        notifiers: Notifiers of Airflow. Their templates can contain ``announcement``, the text, and ``stalls``, the
            mappings. Default: those of ``[tradewind] announce_notifiers``; without any, the log has the stalls.
        no_step_s: Seconds without a training step.
        no_shard_s: Seconds without a finished shard of a data pipeline.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("clusters",)

    def __init__(
        self,
        *,
        clusters: Sequence[Mapping[str, Any]],
        notifiers: Sequence[BaseNotifier] = (),
        no_step_s: float = 15 * 60.0,
        no_shard_s: float = 45 * 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.clusters = clusters
        self.notifiers = list(notifiers)
        check_amount(no_step_s, f"Task {self.task_id!r}: no_step_s")
        check_amount(no_shard_s, f"Task {self.task_id!r}: no_shard_s")
        self.no_step_s = no_step_s
        self.no_shard_s = no_shard_s

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Check the running steps of each cluster, and report new stalls."""
        from tradewind.fleet.stalled_steps import new_stalls

        stalled = [step for cluster in self.clusters for step in self._stalled(cluster)]
        fresh = new_stalls(stalled, [step["job"] for step in self._reported_before(context)])
        for step in stalled:
            self.log.warning("%s%s", step, "" if step in fresh else " (reported before)")
        if any(cluster.get("dry_run") for cluster in self.clusters):
            return [asdict(step) for step in stalled if step not in fresh]
        if fresh:
            self._notify(fresh, context)
        return [asdict(step) for step in stalled]

    def _reported_before(self, context: Context) -> list[dict[str, Any]]:
        """Return the result of the last success before this run.

        ``include_prior_dates`` is for runs without a logical date only: PostgreSQL sorts these before all others, so
        scheduled runs would find the last run that was triggered by hand, for ever.
        """
        ti, date = context["ti"], context["dag_run"].logical_date
        if date is None:
            return ti.xcom_pull(task_ids=self.task_id, include_prior_dates=True, map_indexes=-1) or []
        previous = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, logical_date=date)
        if previous is None:
            return []
        return ti.xcom_pull(task_ids=self.task_id, run_id=previous.run_id, map_indexes=-1) or []

    def _stalled(self, cluster: Mapping[str, Any]) -> list[StalledStep]:
        from tradewind.fleet.stalled_steps import stalled_steps
        from tradewind.runtime.stalls import StallLimits

        limits = StallLimits(self.no_step_s, self.no_shard_s)
        try:
            jobs = asyncio.run(_jobs(cluster["ray_conn_id"]))
            return stalled_steps(cluster["name"], jobs, deployment_roots(), limits=limits)
        except (RayJobsError, FleetError) as error:
            self.log.warning("Cluster %s: its steps cannot be checked: %s", cluster["name"], error)
            return []

    def _notify(self, stalled: Sequence[StalledStep], context: Context) -> None:
        text = "\n".join(map(str, stalled))[:MAX_MESSAGE_CHARS]
        if not self.notifiers:
            if configured_notifiers():
                announce(text, sorted({step.cluster for step in stalled}), announced_by=f"task {self.task_id}")
            return
        for notifier in self.notifiers:
            facts: Any = {**context, "announcement": text, "stalls": [asdict(step) for step in stalled]}
            notifier(facts)


async def _jobs(ray_conn_id: str) -> list[JobDetails]:
    from tradewind.ray_jobs.api import JobsApi

    async with JobsApi(await RayHook.cluster_from_trigger(ray_conn_id)) as api:
        return await api.jobs()
