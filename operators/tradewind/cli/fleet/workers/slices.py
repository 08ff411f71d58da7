"""``tradewind cluster add-worker``, ``remove-worker`` and ``resize``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

from tradewind.cli.errors import UsageError
from tradewind.cli.fleet.lifecycle.consent import agree
from tradewind.cli.output import say
from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.slice_types import SliceType, UnknownSliceTypeError
from tradewind.fleet.access.reached import reached
from tradewind.fleet.cloud.heads import NoHeadError, SeveralHeadsError, find_head
from tradewind.fleet.clusters import Capacity, Fleet, FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.of_fleet import cluster_file, config_hash
from tradewind.fleet.lifecycle.zone import in_fleet_words
from tradewind.fleet.marker import ClusterMarker
from tradewind.fleet.marker_value import ADD_WORKER, REMOVE_WORKER
from tradewind.fleet.workers.manual_slices import ManualSlices, slice_records
from tradewind.fleet.workers.start_script import start_script
from tradewind.fleet.workers.usage import SliceInUseError
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.nodes.nodes import NodeFacts, fetch_nodes


def add_worker(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Add a slice, and wait for it.

    Raises:
        UsageError: There is no such slice type.
        ClusterBusyError: Somebody else is changing the cluster.
        InterruptedOperationError: What somebody began on it is to be ended first.
        FleetError: It cannot be added, or is not there in time.
    """
    cluster = fleet.cluster(arguments.name)
    slices = _slices(cluster, fleet)
    kind = _kinds(slices, [arguments.type])[0]
    capacity = Capacity(arguments.capacity.replace("-", "_")) if arguments.capacity else cluster.capacity
    name = arguments.slice or slices.new_name(kind)
    with ClusterMarker.of(cluster).take(ADD_WORKER, "asking for a slice") as held:
        slices.add(name, kind, capacity)
        held.finish()
    if arguments.wait:
        slices.wait(name, arguments.timeout)
    return 0


def remove_worker(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Delete a slice that somebody added, when that was agreed to. Raises the same."""
    cluster = fleet.cluster(arguments.name)
    slices = _slices(cluster, fleet)
    if slices.is_awaited(arguments.slice):
        agree(arguments, f"Slice {arguments.slice} is not there, and upkeep asks for it. Give it up?")
        with ClusterMarker.of(cluster).take(REMOVE_WORKER, "giving a slice up") as held:
            slices.give_up(arguments.slice)
            held.finish()
        return 0
    there = slices.find(arguments.slice)
    say(f"Slice {there.name} of {cluster.name}: {there.kind.name}, {there.capacity.value}, {there.state}.")
    agree(arguments, f"Delete slice {there.name}?")
    with ClusterMarker.of(cluster).take(REMOVE_WORKER, "deleting a slice") as held:
        slices.remove(there.name, held.check)
        held.finish()
    return 0


def resize(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Cut a slice into smaller ones, when that was agreed to. Raises the same."""
    cluster = fleet.cluster(arguments.name)
    slices = _slices(cluster, fleet)
    kinds = _kinds(slices, arguments.type)
    agree(arguments, f"Delete slice {arguments.slice}, and make {', '.join(kind.name for kind in kinds)} of it?")
    for name in slices.resize(arguments.slice, kinds, ClusterMarker.of(cluster)):
        if arguments.wait:
            slices.wait(name, arguments.timeout)
    return 0


def _slices(cluster: FleetCluster, fleet: Fleet) -> ManualSlices:
    import yaml  # type: ignore[import-untyped]

    config_hash(cluster, fleet)
    config = yaml.safe_load(cluster_file(cluster, fleet).read_text())
    with in_fleet_words():
        api = TpuApi(cluster.project, cluster.zone, poll_s=2.0)
    return ManualSlices(
        cluster,
        api,
        slice_records(cluster),
        script=lambda kind: start_script(cluster, config, kind),
        nodes=lambda: _nodes_of(cluster),
        tell=say,
    )


def _kinds(slices: ManualSlices, names: Iterable[str]) -> list[SliceType]:
    try:
        return [slices.check_kind(name) for name in names]
    except UnknownSliceTypeError as error:
        raise UsageError(str(error)) from None


def _nodes_of(cluster: FleetCluster) -> list[NodeFacts] | None:
    try:
        find_head(cluster)
    except SeveralHeadsError:
        raise
    except NoHeadError:
        return None
    try:
        with reached(cluster) as there:
            return asyncio.run(_fetched(there))
    except (FleetError, RayJobsError) as error:
        raise SliceInUseError(f"Whether somebody uses the slice is not known: {error} Nothing was changed.") from None


async def _fetched(there: RayCluster) -> list[NodeFacts]:
    async with JobsApi(there) as api:
        return await fetch_nodes(api)
