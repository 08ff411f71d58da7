"""``tradewind cluster status`` and ``doctor``: read-only reports.

``status`` prints the state of clusters in Google Cloud and in Ray. ``doctor`` checks what a cluster needs before it
starts, and prints how to fix what is missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from tradewind.cli.fleet.fleet_file import print_warnings
from tradewind.cli.fleet.lifecycle import cluster_nodes
from tradewind.cli.output import CommandError, json_lines, say, write_lines
from tradewind.fleet.access.connect import connected
from tradewind.fleet.cloud.google_api import CloudError
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.doctor import Diagnosis, Health, cloud_diagnoses, machine_diagnoses, running_diagnoses
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.cluster_manager import config_hash
from tradewind.fleet.lifecycle.inventory import CloudZone, ClusterReport, Inventory, RayStatus, orphan_clusters
from tradewind.fleet.lifecycle.job_preservation import ClusterJobBackup, interruption, prune_backups
from tradewind.fleet.lock import ClusterLock
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.probe import check_connection
from tradewind.storage import StorageError
from tradewind.text import format_columns

_HEAD = ("KIND", "NAME", "STATE", "AGE", "IN RAY", "")
_MAX_CONCURRENT = 8


def status(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the state of the chosen clusters, and resources in their zones of no cluster in the file.

    Raises:
        CommandError: A zone could not be read.
    """
    chosen = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    places = sorted({(cluster.project, cluster.zone) for cluster in chosen})
    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        zones = dict(zip(places, pool.map(_inventory, places), strict=True))
        seen = [cluster for cluster in chosen if isinstance(zones[cluster.project, cluster.zone], Inventory)]
        reports = list(pool.map(lambda cluster: _report(cluster, fleet, zones), seen))
    orphans = [*_orphans(fleet, zones)]
    failed = [*dict.fromkeys(str(found) for found in zones.values() if isinstance(found, CloudError))]
    if arguments.json:
        clusters = [report.to_json() for report in reports]
        write_lines(json_lines({"clusters": clusters, "orphans": orphans, "unseen": failed}))
    else:
        for report in reports:
            _print(report)
        for orphan in orphans:
            say(
                f"Cluster {orphan['cluster']} is not in {fleet.file}, but has resources in {orphan['project']}, "
                f"{orphan['zone']}: {', '.join(orphan['names'])}. "
                f"'tradewind cluster stop {orphan['cluster']} --project {orphan['project']} --zone {orphan['zone']}' "
                "deletes them."
            )
    if failed:
        raise CommandError(" ".join(failed))
    return 0


def _inventory(place: tuple[str, str]) -> Inventory | CloudError:
    try:
        return CloudZone(*place).inventory()
    except CloudError as error:
        return error


def _report(
    cluster: FleetCluster, fleet: Fleet, zones: Mapping[tuple[str, str], Inventory | CloudError]
) -> ClusterReport:
    zone = zones[cluster.project, cluster.zone]
    assert isinstance(zone, Inventory)
    found, now = zone.of(cluster.name), time.time()
    ray = _ray_side(cluster) if found.heads else RayStatus()
    current = config_hash(cluster, fleet, must_be_fresh=False)
    return ClusterReport.of(cluster, found, current, ray, now, _marker(cluster, now))


def _ray_side(cluster: FleetCluster) -> RayStatus:
    try:
        with connected(cluster) as connection:
            nodes, version = cluster_nodes(connection), check_connection(connection).ray_version
    except (FleetError, RayJobsError) as error:
        return RayStatus(why=str(error))
    return RayStatus.of(nodes, version)


def _marker(cluster: FleetCluster, now: float) -> str:
    """Describe a running or interrupted operation, empty if none; delete obsolete local backups."""
    try:
        found = ClusterLock.of(cluster).read()
        prune_backups(cluster.name, ClusterJobBackup(cluster, say), found, say)
        if found is not None and found.is_held:
            return found.sentence(cluster.name, now)
        return interruption(found, cluster.name, now)
    except (StorageError, FleetError) as error:
        return str(error)


def _orphans(fleet: Fleet, zones: Mapping[tuple[str, str], Inventory | CloudError]) -> Iterator[dict[str, Any]]:
    for (project, zone), found in zones.items():
        if isinstance(found, Inventory):
            yield from map(asdict, orphan_clusters(fleet, project, zone, found))


def _print(report: ClusterReport) -> None:
    cluster, ray = report.cluster, report.ray
    parts = [f"{cluster.name} ({cluster.project}, {cluster.zone}): {report.state}"]
    parts += [f"Ray {ray.version}"] if ray.version else []
    parts += [f"{used:g} of {total:g} {name} in use" for name, (used, total) in ray.used.items()]
    write_lines(["; ".join(parts)])
    if report.lines:
        write_lines(format_columns([_HEAD, *report.rows()]))
        counts = (f"{count} {kind} {state}" for (kind, state), count in sorted(report.counts().items()))
        write_lines([", ".join(counts)])
    if ray.why:
        say(f"The head does not answer: {ray.why}")
    if report.marker:
        say(report.marker)


def doctor(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the checks, and how to fix those that fail; change nothing.

    Raises:
        CommandError: A check failed, or could not be made.
    """
    clusters = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    print_warnings(clusters)
    diagnoses = [*machine_diagnoses(clusters), *cloud_diagnoses(clusters)]
    if find_spec("ray") is not None:  # else a check has failed already
        diagnoses += running_diagnoses(clusters, version("ray"))
    if arguments.json:
        write_lines(json_lines([asdict(diagnosis) for diagnosis in diagnoses]))
    else:
        write_lines([line for diagnosis in diagnoses for line in _lines(diagnosis)])
    counts = [sum(diagnosis.health is health for diagnosis in diagnoses) for health in (Health.WRONG, Health.UNKNOWN)]
    if any(counts):
        raise CommandError(f"Of {len(diagnoses)} checks {counts[0]} failed, and {counts[1]} could not be made.")
    return 0


def _lines(diagnosis: Diagnosis) -> list[str]:
    line = f"{diagnosis.health.value.ljust(max(map(len, Health)))}  {diagnosis.about}: {diagnosis.found}"
    return [line, f"         {diagnosis.mend}"] if diagnosis.mend else [line]
