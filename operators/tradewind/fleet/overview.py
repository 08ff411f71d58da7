"""Overview of the fleet for viewers: slices, jobs, lock, token and alarms of each cluster, without changing anything.

Each fact has its own poll and its own problem, so a cluster, a store or a Google API that does not answer leaves the
other facts as they are. ``SharedReads`` limits the waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.cloud_tpu.repair.records import SliceRecordError
from tradewind.cloud_tpu.resources import WITHOUT_MACHINES
from tradewind.fleet.cloud.token_secret import SecretVersion, TokenSecret
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.cluster_manager import written_config_hash
from tradewind.fleet.lifecycle.inventory import (
    READY,
    CloudZone,
    ClusterReport,
    ClusterState,
    Inventory,
    NodeLine,
    OrphanCluster,
    RayStatus,
    orphan_clusters,
)
from tradewind.fleet.lifecycle.job_preservation import interruption
from tradewind.fleet.lock import ClusterLock, FoundLock
from tradewind.fleet.stalled_steps import StalledStep, stalled_steps
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import AIRFLOW_DAG, AIRFLOW_RUN, AIRFLOW_TASK, OUTPUT_PATH, STEP, JobDetails, owner_of
from tradewind.ray_jobs.errors import RayJobsError, RayUnreachableError
from tradewind.ray_jobs.nodes import NodeInfo, fetch_nodes
from tradewind.ray_jobs.probe import version_in
from tradewind.ray_jobs.usage import Usage, Work, fetch_usage, format_amount, may_wait
from tradewind.shared_reads import PollResult, SharedReads
from tradewind.storage import Roots, StorageError
from tradewind.text import pluralize, single_line
from tradewind.timeouts import within

TTL_S: Final = 15.0
WAIT_S: Final = 4.0
READ_ERRORS: Final = (FleetError, RayJobsError, StorageError, TpuApiError, SliceRecordError)
"""Errors whose texts are for users and hold no secrets."""
RAY_TIMEOUT_S: Final = 8.0
"""Limit for all requests of one poll to a head."""
TOKEN_TTL_S: Final = 600.0
STALLS_TTL_S: Final = 60.0
MAX_JOBS: Final = 200
MAX_WAITS: Final = 50
MAX_LINES: Final = 2_000
"""Machines and slices of a cluster that are shown."""


Health = Literal["ready", "incomplete", "coming", "gone"]
_ACTIVE: Final = frozenset({READY, "RUNNING", "ACTIVE"})
_GONE: Final = WITHOUT_MACHINES | {"DELETING", "STOPPING", "SUSPENDING", "SUSPENDED", "FAILED", "UNKNOWN"}


@dataclass(frozen=True)
class ResourceLine(NodeLine):
    """One machine, slice or queued resource, with its health.

    Attributes:
        health: ``ready``; ``incomplete``, if Ray lacks a host of a READY slice; ``coming``; or ``gone``.
        is_slice: Whether it is a slice.
    """

    health: Health = "coming"
    is_slice: bool = False

    @staticmethod
    def of(line: NodeLine, *, is_slice: bool) -> ResourceLine:
        """Return ``line`` with its health. The hosts of a slice count only while the head answers."""
        health: Health = "gone" if line.state in _GONE else "ready" if line.state in _ACTIVE else "coming"
        if health == "ready" and line.in_ray is not None and line.in_ray < (line.hosts or 1):
            health = "incomplete"
        return ResourceLine(**vars(line), health=health, is_slice=is_slice)


@dataclass(frozen=True)
class SlicePoolState:
    """Slices of one type.

    Attributes:
        minimum: Slices that the fleet file keeps up.
        maximum: Maximum of the fleet file; None for a type that it does not name.
        existing: Slices that exist.
        ready: Those that work: READY, with all hosts in Ray if the head answers.
    """

    kind: str
    minimum: int
    maximum: int | None
    existing: int
    ready: int

    @property
    def wanted(self) -> int:
        """Slices that should be ready."""
        return max(self.minimum, self.existing)


@dataclass(frozen=True)
class CloudOverview:
    """Resources of a cluster in Google Cloud.

    Attributes:
        state: The state of the cluster, in words.
        lines: Machines, slices and queued resources.
        pools: Slices by type.
        left_out: Number of lines beyond ``MAX_LINES``.
    """

    state: str
    lines: Sequence[ResourceLine]
    pools: Sequence[SlicePoolState]
    left_out: int = 0


@dataclass(frozen=True)
class JobLine:
    """A job that runs or waits.

    Attributes:
        owner: Its user, or its task or step in words.
        step: The version name of its step; empty for another job.
        dag_id: With ``run_id`` and ``task_id`` its Airflow task; empty for a job of a user.
        submitted_at: In seconds since the epoch.
    """

    job: str
    status: str
    owner: str
    step: str = ""
    output_path: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    submitted_at: float | None = None


@dataclass(frozen=True)
class WaitLine:
    """Parts of a job that wait for the same resources.

    Attributes:
        job: Its submission ID; Ray's own ID of a driver that was not submitted, in words.
        owner: As that of a ``JobLine``, with its Airflow task; empty if unknown.
        kind: ``driver``, ``actor``, ``Ray task`` or ``placement group``.
        resources: What each of them needs, in words.
        since: Submission of the first of them, in seconds since the epoch; None if unknown.
    """

    job: str
    owner: str
    kind: str
    count: int
    resources: str
    since: float | None = None
    step: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""


@dataclass(frozen=True)
class ResourceUse:
    """One of Ray's resources: the amount in use, and the total of all live nodes."""

    name: str
    used: float
    total: float


@dataclass(frozen=True)
class RayOverview:
    """The answer of a cluster's head.

    Attributes:
        nodes: Number of its live nodes.
        used: The use of TPU chips and CPUs.
        running: Number of running jobs.
        waiting: Number of jobs that have not started.
        jobs: The first ``MAX_JOBS`` of both, those that wait first.
        waits: What running jobs wait for.
        is_cut: Whether jobs or waits were left out.
    """

    address: str
    version: str | None
    nodes: int
    used: Sequence[ResourceUse]
    running: int
    waiting: int
    jobs: Sequence[JobLine]
    waits: Sequence[WaitLine]
    is_cut: bool = False


@dataclass(frozen=True)
class LockOverview:
    """The cluster lock.

    Attributes:
        state: ``free``, ``held`` or ``interrupted``.
        since: Start of the operation, in seconds since the epoch.
        sentence: The same as a sentence; for a free lock, about the last operation.
    """

    state: str
    operation: str = ""
    phase: str = ""
    holder: str = ""
    since: float | None = None
    sentence: str = ""


@dataclass(frozen=True)
class TokenOverview:
    """The secret of the cluster's token, never its value.

    Attributes:
        secret: Its name.
        version: Number of the newest enabled version; None without one.
        age_s: Age of that version; None if Google does not report it.
        enabled: Number of enabled versions.
    """

    secret: str
    version: int | None = None
    age_s: float | None = None
    enabled: int = 0


@dataclass(frozen=True)
class ClusterOverview:
    """A cluster of the fleet file. Each fact is None where it is unknown, and then has a problem.

    Attributes:
        owner: The only user whose jobs it takes.
        alarms: What a user should look at, a sentence each.
    """

    name: str
    project: str
    zone: str
    generation: str
    is_default: bool
    owner: str | None
    connection: str
    cloud: CloudOverview | None
    cloud_problem: str | None
    ray: RayOverview | None
    ray_problem: str | None
    lock: LockOverview | None
    lock_problem: str | None
    token: TokenOverview | None
    token_problem: str | None
    stalled: Sequence[StalledStep]
    stalled_problem: str | None
    alarms: Sequence[str] = ()


@dataclass(frozen=True)
class ClusterHealth:
    """A cluster in one line. A count is None where it is unknown.

    Attributes:
        operation: The operation that changes it now, with its holder; empty without one.
    """

    name: str
    state: str
    operation: str
    ready: int | None
    wanted: int | None
    running: int | None
    waiting: int | None
    alarms: Sequence[str]

    @staticmethod
    def of(cluster: ClusterOverview) -> ClusterHealth:
        """Return the line of ``cluster``."""
        cloud, ray, lock = cluster.cloud, cluster.ray, cluster.lock
        return ClusterHealth(
            cluster.name,
            cloud.state if cloud else "unknown",
            f"{lock.operation} by {lock.holder}" if lock and lock.state == "held" else "",
            sum(pool.ready for pool in cloud.pools) if cloud else None,
            sum(pool.wanted for pool in cloud.pools) if cloud else None,
            ray.running if ray else None,
            ray.waiting if ray else None,
            cluster.alarms,
        )


@dataclass(frozen=True)
class HeadPoll:
    """Everything that one poll of a head returned."""

    address: str
    version: str | None
    nodes: Sequence[NodeInfo]
    jobs: Sequence[JobDetails]
    usage: Usage

    @property
    def status(self) -> RayStatus:
        """The state of Ray."""
        return RayStatus.of(self.nodes, self.version)


class FleetWatch:
    """Overviews of a fleet's clusters.

    Args:
        connect: Returns the address and token of a cluster's head. It may block.
        roots: Returns the allowed roots, below which the records of steps are read.
        polls: Shared by all callers.
    """

    def __init__(
        self, connect: Callable[[FleetCluster], RayCluster], roots: Callable[[], Roots], polls: SharedReads[Any]
    ) -> None:
        self._connect = connect
        self._roots = roots
        self._polls = polls
        self._zones: dict[tuple[str, str], CloudZone] = {}
        self._secrets: dict[tuple[str, str], TokenSecret] = {}

    def overview(self, fleet: Fleet) -> list[ClusterOverview]:
        """Return an overview of each cluster."""
        clusters = list(fleet.clusters.values())
        tokens: dict[Hashable, Callable[[], Any]] = {
            self._token_key(one): partial(self._versions, one) for one in clusters
        }
        for key, read in tokens.items():
            self._polls.begin(key, read, TOKEN_TTL_S)  # all at once, so that the waits do not add up
        facts = self._facts(clusters) | self._polls.results(tokens, ttl_s=TOKEN_TTL_S)
        heads: dict[str, PollResult[HeadPoll]] = {one.name: facts["head", one.name] for one in clusters}
        stalls: dict[Hashable, Callable[[], Any]] = {
            ("stalls", name): partial(self._stalls, name, head.value)
            for name, head in heads.items()
            if head.value is not None
        }
        facts |= self._polls.results(stalls, ttl_s=STALLS_TTL_S)
        now = time.time()
        return [self._of(one, fleet, facts, now) for one in clusters]

    def orphans(self, fleet: Fleet) -> list[OrphanCluster]:
        """Return the clusters in the fleet's zones that are not in the fleet file."""
        found = self._facts(list(fleet.clusters.values()))
        return [
            orphan
            for project, zone in sorted({(one.project, one.zone) for one in fleet.clusters.values()})
            if (inventory := found["zone", project, zone].value) is not None
            for orphan in orphan_clusters(fleet, project, zone, inventory)
        ]

    def heads(self, fleet: Fleet) -> dict[str, PollResult[HeadPoll]]:
        """Return the newest answer of each cluster's head, by the cluster's name."""
        found = self._facts(list(fleet.clusters.values()))
        return {name: found["head", name] for name in fleet.clusters}

    def _facts(self, clusters: Sequence[FleetCluster]) -> dict[Hashable, PollResult[Any]]:
        reads: dict[Hashable, Callable[[], Any]] = {}
        for one in clusters:
            reads["zone", one.project, one.zone] = partial(self._inventory, one)
            reads["head", one.name] = partial(self._head, one)
            reads["lock", one.name] = partial(lock_overview, one)
        return self._polls.results(reads)

    def _of(
        self, cluster: FleetCluster, fleet: Fleet, facts: Mapping[Hashable, PollResult[Any]], now: float
    ) -> ClusterOverview:
        head: PollResult[HeadPoll] = facts["head", cluster.name]
        zone: PollResult[Inventory] = facts["zone", cluster.project, cluster.zone]
        status = head.value.status if head.value is not None else RayStatus()
        file_hash = written_config_hash(cluster, fleet)
        cloud = zone.map(lambda found: cloud_overview(cluster, found.of(cluster.name), file_hash, status, now))
        ray = head.map(ray_overview)
        lock: PollResult[LockOverview] = facts["lock", cluster.name]
        versions: PollResult[list[SecretVersion]] = facts[self._token_key(cluster)]
        token = versions.map(lambda found: token_overview(cluster, found, now))
        stalls: PollResult[list[StalledStep]] = facts.get(("stalls", cluster.name), PollResult([]))
        return ClusterOverview(
            cluster.name,
            cluster.project,
            cluster.zone,
            cluster.generation.name,
            cluster.name == fleet.default_cluster,
            cluster.owner,
            cluster.connection,
            cloud.value,
            cloud.problem,
            ray.value,
            None if is_stopped(cloud.value) else ray.problem,
            lock.value,
            lock.problem,
            token.value,
            token.problem,
            stalls.value or [],
            stalls.problem,
            alarms_of(cloud.value, ray.value, ray.problem, lock.value, stalls.value or []),
        )

    def _inventory(self, cluster: FleetCluster) -> Inventory:
        place = (cluster.project, cluster.zone)
        if place not in self._zones:
            self._zones[place] = CloudZone(*place)  # its clients take a while to build
        return self._zones[place].inventory()

    def _versions(self, cluster: FleetCluster) -> list[SecretVersion]:
        secret = (cluster.project, cluster.token_secret)
        if secret not in self._secrets:
            self._secrets[secret] = TokenSecret(*secret)
        return self._secrets[secret].versions()

    def _head(self, cluster: FleetCluster) -> HeadPoll:
        return poll_head(self._connect(cluster))

    def _stalls(self, name: str, head: HeadPoll) -> list[StalledStep]:
        return stalled_steps(name, head.jobs, self._roots())

    @staticmethod
    def _token_key(cluster: FleetCluster) -> Hashable:
        return ("token", cluster.project, cluster.token_secret)


def poll_head(cluster: RayCluster) -> HeadPoll:
    """Ask the head of ``cluster`` for its nodes, jobs and waiting work.

    Raises:
        RayJobsError: It does not answer within ``RAY_TIMEOUT_S``, or refuses.
    """
    return asyncio.run(_poll_head(cluster))


async def _poll_head(cluster: RayCluster) -> HeadPoll:
    try:
        async with within(RAY_TIMEOUT_S), JobsApi(cluster) as api:
            version = version_in(await api.get_json("/api/version"))
            nodes, jobs = await fetch_nodes(api), await api.jobs()
            usage = await fetch_usage(api) if await may_wait(api) else Usage()
            return HeadPoll(cluster.address, version, nodes, jobs, usage)
    except TimeoutError:
        raise RayUnreachableError(f"{cluster} does not answer within {RAY_TIMEOUT_S:g} s.") from None


def cloud_overview(
    cluster: FleetCluster, found: Inventory, file_hash: str | None, status: RayStatus, now: float
) -> CloudOverview:
    """Return the resources ``found`` of ``cluster``, whose present file has ``file_hash``, if that is known."""
    slices = {one.name for one in found.slices}
    report = ClusterReport.of(cluster, found, file_hash, status, now)
    lines = [ResourceLine.of(line, is_slice=line.name in slices) for line in report.lines]
    shown = lines[:MAX_LINES]
    return CloudOverview(found.state.value, shown, pool_states(cluster, lines), len(lines) - len(shown))


def pool_states(cluster: FleetCluster, lines: Sequence[ResourceLine]) -> list[SlicePoolState]:
    """Return the slices by type, those of the fleet file first, of each type with a minimum or with slices."""
    slices = [line for line in lines if line.is_slice]
    pools = {pool.kind.name: pool for pool in cluster.pools}
    states = []
    for kind in [*pools, *sorted({line.kind for line in slices} - pools.keys())]:
        own, pool = [line for line in slices if line.kind == kind], pools.get(kind)
        if own or (pool and pool.minimum):
            ready = sum(line.health == "ready" for line in own)
            minimum, maximum = (pool.minimum, pool.maximum) if pool else (0, None)
            states.append(SlicePoolState(kind, minimum, maximum, len(own), ready))
    return states


def ray_overview(head: HeadPoll) -> RayOverview:
    """Return the answer of a head, bounded."""
    active = sorted((job for job in head.jobs if not job.has_ended), key=_order)
    waits = wait_lines(head.usage.waiting, head.jobs)
    waiting = sum(job.status == "PENDING" for job in active)
    return RayOverview(
        address=head.address,
        version=head.version,
        nodes=sum(node.is_alive for node in head.nodes),
        used=[ResourceUse(name, used, total) for name, (used, total) in head.status.used.items()],
        running=len(active) - waiting,
        waiting=waiting,
        jobs=[job_line(job) for job in active[:MAX_JOBS]],
        waits=waits[:MAX_WAITS],
        is_cut=len(active) > MAX_JOBS or len(waits) > MAX_WAITS,
    )


def _order(job: JobDetails) -> tuple[bool, int]:
    """Those that wait first, the longest; then those that run, the newest."""
    is_waiting, started_ms = job.status == "PENDING", job.started_ms or 0
    return (not is_waiting, started_ms if is_waiting else -started_ms)


def job_line(job: JobDetails) -> JobLine:
    """Return the line of a job. Any client of the cluster writes its texts, so they are bounded."""

    def text(key: str) -> str:
        return single_line(job.metadata.get(key, ""))

    return JobLine(
        single_line(job.job),
        job.status,
        single_line(owner_of(job.metadata)),
        text(STEP),
        text(OUTPUT_PATH),
        text(AIRFLOW_DAG),
        text(AIRFLOW_RUN),
        text(AIRFLOW_TASK),
        None if job.started_ms is None else job.started_ms / 1000,
    )


def wait_lines(waiting: Sequence[Work], jobs: Iterable[JobDetails]) -> list[WaitLine]:
    """Group waiting parts of ``jobs`` by job, kind and resources; the largest groups first."""
    known = {job.job: job for job in jobs}
    groups: dict[tuple[str, str, str], list[Work]] = {}
    for work in waiting:
        amounts = [f"{format_amount(name, amount)} {single_line(name, 60)}" for name, amount in work.resources.items()]
        labels = [single_line(f"label {key}={value}", 80) for key, value in work.label_selector.items()]
        groups.setdefault((work.job, work.kind, ", ".join([*amounts, *labels]) or "no resources"), []).append(work)
    lines = [_wait_line(known.get(key[0]), *key, works) for key, works in groups.items()]
    return sorted(lines, key=lambda line: -line.count)


def _wait_line(job: JobDetails | None, name: str, kind: str, resources: str, works: Sequence[Work]) -> WaitLine:
    since = min((work.since_ms / 1000 for work in works if work.since_ms), default=None)
    if job is None:  # a notebook, a Ray client, or a job that Ray no longer lists
        return WaitLine(
            single_line(f"not a submitted job (Ray's {name})"), "", kind, len(works), single_line(resources), since
        )
    line = job_line(job)
    task = (line.step, line.dag_id, line.run_id, line.task_id)
    return WaitLine(line.job, line.owner, kind, len(works), single_line(resources), since, *task)


def lock_overview(cluster: FleetCluster) -> LockOverview:
    """Read the lock of ``cluster``. Raises the errors of ``ClusterLock.read``."""
    lock = ClusterLock.of(cluster)
    return describe_lock(lock.read(), cluster.name, lock.now())


def describe_lock(found: FoundLock | None, cluster: str, now: float) -> LockOverview:
    """Describe a cluster lock at ``now``."""
    if found is None:
        return LockOverview("free", sentence="No command has changed this cluster yet.")
    state = "held" if found.is_held else "interrupted" if found.is_interrupted else "free"
    marker = found.marker
    sentence = interruption(found, cluster, now) or found.sentence(cluster, now)
    return LockOverview(state, marker.operation, marker.phase, marker.holder, marker.since, sentence)


def token_overview(cluster: FleetCluster, versions: Sequence[SecretVersion], now: float) -> TokenOverview:
    """Describe the versions, newest first, of the token's secret."""
    name = f"projects/{cluster.project}/secrets/{cluster.token_secret}"
    enabled = [version for version in versions if version.is_enabled]
    if not enabled:
        return TokenOverview(name)
    newest = enabled[0]
    age_s = None if newest.created_at is None else max(0.0, now - newest.created_at)
    return TokenOverview(name, newest.number, age_s, len(enabled))


def is_stopped(cloud: CloudOverview | None) -> bool:
    """Whether nothing of a cluster is there, so that its head cannot answer."""
    return cloud is not None and cloud.state == ClusterState.ABSENT.value


def alarms_of(
    cloud: CloudOverview | None,
    ray: RayOverview | None,
    ray_problem: str | None,
    lock: LockOverview | None,
    stalled: Sequence[StalledStep],
) -> list[str]:
    """Return what a user should look at, a sentence each; a stopped cluster and a running operation are no alarms."""
    alarms = []
    is_changing = lock is not None and lock.state == "held"
    if lock is not None and lock.state == "interrupted":
        alarms.append(lock.sentence)
    if not is_stopped(cloud) and ray is None and ray_problem is not None:
        alarms.append("The head does not answer.")
    if cloud is not None and not is_changing:
        if cloud.state in (ClusterState.HEADLESS.value, ClusterState.HALF_MADE.value, ClusterState.DOUBLE.value):
            alarms.append(f"{cloud.state[0].upper()}{cloud.state[1:]}.")
        if cloud.state == ClusterState.UP.value:
            alarms += [
                f"{pool.ready} of {pool.minimum} slices {pool.kind} are ready."
                for pool in cloud.pools
                if pool.ready < pool.minimum
            ]
        gone = [line.state for line in cloud.lines if line.state in WITHOUT_MACHINES]
        alarms += [f"{pluralize(len(gone), 'machine or slice')} {' or '.join(sorted(set(gone)))}."] if gone else []
    alarms += [f"Step {step.step}: no {step.what} for {step.seconds / 60:.0f} min." for step in stalled]
    return alarms
