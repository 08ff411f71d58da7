"""The clusters of the fleet file, their slices, jobs, alarms and history. Nothing here changes a cluster.

All viewers of this server share the polls of ``FleetWatch``, so many of them cost as many requests as one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends

from tradewind.deployment.fleet import configured_fleet, deployment_roots
from tradewind.fleet.errors import FleetError
from tradewind.fleet.history import (
    DAY_S,
    DAYS,
    DayGoodput,
    PreemptionCount,
    goodput_by_day,
    last_days,
    preemptions_by_day,
    read_pods,
)
from tradewind.fleet.lifecycle.inventory import OrphanCluster
from tradewind.fleet.overview import READ_ERRORS, TTL_S, WAIT_S, ClusterHealth, ClusterOverview, FleetWatch, is_stopped
from tradewind.fleet.upkeep import UPKEEP_ASSET, PastReport
from tradewind.records.parsing import RecordFormatError
from tradewind.shared_reads import PollResult, SharedReads
from tradewind_ui.api.security import ASKS_FOR_CLUSTERS, READS_CLUSTERS, may_read_clusters

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tradewind.fleet.clusters import Fleet, FleetCluster
    from tradewind.ray_jobs.cluster import RayCluster

router = APIRouter()
_clusters = APIRouter(dependencies=READS_CLUSTERS)

MAX_REPORTS: Final = 2_100
"""Reports of upkeep that are read: one every ten minutes, for two weeks."""
MAX_REPORT_CHARS: Final = 1 << 18
MAX_NEWS: Final = 200
HISTORY_TTL_S: Final = 300.0
_Event = tuple[float, Any, str | None, str | None, str | None]


@dataclass(frozen=True)
class UpkeepView:
    """The last report of upkeep.

    Attributes:
        dag_id: With ``run_id`` and ``task_id`` the task that wrote it.
        left_out: Number of findings beyond ``MAX_NEWS``.
    """

    report: PastReport
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    left_out: int = 0


@dataclass(frozen=True)
class FleetView:
    """The fleet.

    Attributes:
        is_configured: Whether this deployment has a fleet file.
        problem: Why the fleet file cannot be used; None if it can.
        orphans: Clusters with resources in the fleet's zones that the file does not name.
        upkeep_problem: Why there is no report; None if there is one.
    """

    is_configured: bool
    problem: str | None
    clusters: list[ClusterOverview]
    orphans: list[OrphanCluster]
    upkeep: UpkeepView | None
    upkeep_problem: str | None


@dataclass(frozen=True)
class FleetHealth:
    """The fleet in one line for each cluster.

    Attributes:
        is_visible: Whether the user may see clusters; there is nothing else for others.
    """

    is_visible: bool
    is_configured: bool
    problem: str | None
    clusters: list[ClusterHealth]


@dataclass(frozen=True)
class FleetHistory:
    """The fleet by day.

    Attributes:
        days: The days, the oldest first.
        zones: The fleet's zones.
        clusters: The names of its clusters.
        reports: Number of reports of upkeep that were read.
        pods: Number of timelines that were read.
        problems: Why some are missing, a sentence each.
    """

    days: list[str]
    zones: list[str]
    clusters: list[str]
    preemptions: list[PreemptionCount]
    goodput: list[DayGoodput]
    reports: int
    pods: int
    problems: list[str]


def _connect(cluster: FleetCluster) -> RayCluster:
    from tradewind.deployment.ray_connection import RayHook

    return RayHook(cluster.connection).cluster()


polls = SharedReads[Any](ttl_s=TTL_S, wait_s=WAIT_S, known_errors=READ_ERRORS)
watch = FleetWatch(_connect, deployment_roots, polls)


@_clusters.get("/fleet")
def fleet() -> FleetView:
    """Return the clusters of the fleet file, with the last report of upkeep."""
    found, problem = _fleet()
    if found is None:
        return FleetView(problem is not None, problem, [], [], None, None)
    reports: dict[Hashable, Callable[[], Any]] = {"last report": last_report}
    polls.begin("last report", last_report)  # at once, so that the waits do not add up
    clusters = watch.overview(found)
    upkeep: PollResult[UpkeepView] = polls.results(reports)["last report"]
    why = None if upkeep.value is not None else upkeep.problem or f"There is no event of the asset {UPKEEP_ASSET} yet."
    return FleetView(True, None, clusters, watch.orphans(found), upkeep.value, why)


@router.get("/fleet/health", dependencies=ASKS_FOR_CLUSTERS)
def health(may_read: Annotated[bool, Depends(may_read_clusters)]) -> FleetHealth:
    """Return one line for each cluster, for the home page; nothing for users who may not see clusters."""
    if not may_read:
        return FleetHealth(False, False, None, [])
    found, problem = _fleet()
    if found is None:
        return FleetHealth(True, problem is not None, problem, [])
    return FleetHealth(True, True, None, list(map(ClusterHealth.of, watch.overview(found))))


@_clusters.get("/fleet/history")
def history() -> FleetHistory:
    """Return preemptions by zone and goodput by cluster, for each of the last days."""
    now = time.time()
    found, problem = _fleet()
    if found is None:
        return FleetHistory(last_days(now), [], [], [], [], 0, 0, [problem] if problem else [])
    heads = watch.heads(found)
    reads: dict[Hashable, Callable[[], Any]] = {"reports": functools.partial(past_reports, now)}
    for name, head in heads.items():
        if head.value is not None:
            reads["pods", name] = functools.partial(read_pods, name, head.value.jobs, deployment_roots(), now)
    results = polls.results(reads, ttl_s=HISTORY_TTL_S)
    reports: Sequence[PastReport] = results["reports"].value or []
    pods = [pod for key, result in results.items() if key != "reports" for pod in result.value or ()]
    days = last_days(now)
    zones = {name: cluster.zone for name, cluster in found.clusters.items()}
    return FleetHistory(
        days,
        sorted(set(zones.values())),
        list(zones),
        [count for count in preemptions_by_day(reports, pods, zones) if count.day in days],
        [share for share in goodput_by_day(pods, now) if share.day in days],
        len(reports),
        len(pods),
        [*_problems(results), *_problems(_silent(heads, found))],
    )


def _silent(heads: Mapping[str, PollResult[Any]], found: Fleet) -> dict[Hashable, PollResult[Any]]:
    """Return the heads of clusters that are not stopped: those of others do not answer."""
    stopped = {cluster.name for cluster in watch.overview(found) if is_stopped(cluster.cloud)}
    return {f"The head of {name}": head for name, head in heads.items() if name not in stopped}


router.include_router(_clusters)


def _fleet() -> tuple[Fleet | None, str | None]:
    """Return the fleet of this deployment, None without a file; or why the file cannot be used."""
    try:
        return configured_fleet(), None
    except FleetError as error:
        return None, str(error)


def _problems(results: Mapping[Any, PollResult[Any]]) -> Iterator[str]:
    for key, result in results.items():
        what = {"reports": "The reports of upkeep"}.get(key) or (f"The pods of {key[1]}" if key[0] == "pods" else key)
        if result.problem is not None:
            yield f"{what}: {result.problem}"


def last_report() -> UpkeepView | None:
    """Return the newest report of upkeep, from the events of its asset; None if there is none.

    Raises:
        FleetError: It is no report.
    """
    for at, extra, dag_id, run_id, task_id in _asset_events(1, 0.0):
        try:
            report = PastReport.from_json(extra, at)
        except RecordFormatError as error:
            raise FleetError(f"The last event of the asset {UPKEEP_ASSET} is no report: {error}.") from None
        left_out = max(0, len(report.lines) - MAX_NEWS)
        shown = PastReport(at, report.counts, report.lines[:MAX_NEWS], report.for_a_person, report.unseen)
        return UpkeepView(shown, dag_id, run_id, task_id, left_out)
    return None


def past_reports(now: float) -> list[PastReport]:
    """Return the reports of the days that are shown; events that are no reports are left out."""
    reports = []
    for at, extra, *_ in _asset_events(MAX_REPORTS, now - DAYS * DAY_S):
        try:
            reports.append(PastReport.from_json(extra, at))
        except RecordFormatError:
            continue
    return reports


def _asset_events(limit: int, since: float) -> list[_Event]:
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        return upkeep_events(session, limit, since)


def upkeep_events(session: Session, limit: int, since: float) -> list[_Event]:
    """Return time, extra, DAG, run and task of the newest events of upkeep's asset; too large ones are left out."""
    from airflow.models.asset import AssetEvent, AssetModel
    from sqlalchemy import Text, cast, func, select

    source = (AssetEvent.source_dag_id, AssetEvent.source_run_id, AssetEvent.source_task_id)
    query = (
        select(AssetEvent.timestamp, AssetEvent.extra, *source)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(
            AssetModel.name == UPKEEP_ASSET,
            AssetEvent.timestamp >= datetime.fromtimestamp(since, UTC),
            func.length(cast(AssetEvent.extra, Text)) <= MAX_REPORT_CHARS,
        )
        .order_by(AssetEvent.timestamp.desc())
        .limit(limit)
    )
    return [(row[0].timestamp(), *row[1:]) for row in session.execute(query).all()]
