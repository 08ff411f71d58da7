"""Build the repair of a cluster's slices from a task's arguments and its Google and Ray connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tradewind.cloud_tpu.errors import BadSliceError
from tradewind.cloud_tpu.repair.records import RECORDS_FOLDER
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope
from tradewind.steps.amounts import check_amount

if TYPE_CHECKING:
    from tradewind.cloud_tpu.repair.passes import SliceRepair
    from tradewind.ray_jobs.cluster import RayCluster

LOCK_FILE = "turn"
"""File of the repair lock, in the folder of records."""


@dataclass(frozen=True)
class RepairRequest:
    """Slices to repair, and settings: the arguments of the sensor, as plain JSON without secrets."""

    gcp_conn_id: str
    zone: str
    ray_conn_id: str
    project_id: str | None = None
    impersonation_chain: str | Sequence[str] | None = None
    expected: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    records: str | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not self.expected and not self.labels:
            raise BadSliceError(
                "Name the slices that belong to the cluster: their names in `expected`, or `labels` that they have."
            )
        known = [setting.name for setting in fields(RepairSettings)]
        if unknown := sorted(set(self.settings) - set(known)):
            raise BadSliceError(f"There is no repair setting {unknown[0]!r}; there are {', '.join(known)}.")
        for name, value in self.settings.items():
            try:
                check_amount(value, f"Repair setting {name!r}")
            except ValueError as error:
                raise BadSliceError(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; ``RepairRequest(**...)`` reads it."""
        return asdict(self)


def build_repair(request: RepairRequest, sleep: Callable[[float], None] = time.sleep) -> SliceRepair:
    """Return the repair for ``request``. It blocks: it loads Google's libraries and reads connections.

    Raises:
        TpuApiError: The API cannot be used with this connection.
        RayJobsError: The Ray connection is invalid.
    """
    from tradewind.cloud_tpu.repair.passes import SliceRepair
    from tradewind.cloud_tpu.repair.records import RepairLock, SliceRecords
    from tradewind.deployment.cloud_tpu import CloudTpuHook
    from tradewind.deployment.ray_connection import RayHook

    ray = RayHook(request.ray_conn_id)
    cluster = ray.cluster()
    api = CloudTpuHook(request.gcp_conn_id, request.impersonation_chain).tpu_api(
        request.zone, request.project_id, sleep=sleep
    )
    folder = _folder(request, ray.bucket(), api.project)
    return SliceRepair(
        api,
        lambda: registered_hosts(cluster),
        Scope(request.expected, request.labels),
        SliceRecords(folder),
        RepairSettings(**request.settings),  # type: ignore[arg-type]
        dry_run=request.dry_run,
        lock=RepairLock(f"{folder}/{LOCK_FILE}"),
    )


def registered_hosts(cluster: RayCluster) -> dict[str, int] | None:
    """Return slice name → live hosts, as the cluster's head reports; None if it does not answer."""
    from tradewind.ray_jobs.errors import RayUnreachableError
    from tradewind.ray_jobs.nodes import hosts_alive

    try:
        return asyncio.run(_hosts(cluster, hosts_alive))
    except RayUnreachableError:
        return None


async def _hosts(cluster: RayCluster, count: Callable[..., dict[str, int]]) -> dict[str, int]:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.nodes import fetch_nodes

    async with JobsApi(cluster) as api:
        return count(await fetch_nodes(api))


def _folder(request: RepairRequest, bucket: str | None, project: str) -> str:
    """Return a folder per zone: slice names are unique only within one."""
    if not request.records and not bucket:
        raise BadSliceError(
            f"A repair needs a folder for its records: name one in `records`, or a bucket in "
            f"connection {request.ray_conn_id!r}."
        )
    root = request.records or f"{str(bucket).rstrip('/')}/{RECORDS_FOLDER}"
    return f"{root.rstrip('/')}/{project}/{request.zone}"
