"""The fleet file of this deployment, if it has one: what Airflow's tasks know of the clusters without a connection."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from airflow.sdk import conf

from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import FLEET_VARIABLE, load_fleet
from tradewind.fleet.local_paths import expanded
from tradewind.fleet.lock import ClusterLock
from tradewind.fleet.upkeep import LockNote
from tradewind.plans.prefixes import configured_roots, mirror_prefixes
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.storage import Roots, StorageError

logger = logging.getLogger(__name__)


class NotTheOwnerError(BadRequestError):
    """A cluster is for the work of somebody else."""


def configured_fleet_file() -> str | None:
    """The path in ``[tradewind] fleet_file``, if it is set."""
    return str(conf.get("tradewind", "fleet_file", fallback=None) or "") or None


def configured_fleet() -> Fleet | None:
    """The fleet of this deployment; None if nothing says where its file is.

    Raises:
        FleetError: The file cannot be used.
    """
    file = os.environ.get(FLEET_VARIABLE) or configured_fleet_file()
    if not file:
        return None
    path = expanded(file, f"{FLEET_VARIABLE}, or [tradewind] fleet_file:")
    try:
        written_ns = path.stat().st_mtime_ns
    except OSError:  # the reader says why
        written_ns = 0
    return _loaded(path, written_ns)


def lock_note(cluster: FleetCluster) -> LockNote | None:
    """What the marker of ``cluster`` says to upkeep; None if nothing that matters."""
    marker = ClusterLock.of(cluster)
    try:
        return LockNote.of(cluster.name, marker.read(), marker.now())
    except StorageError as error:
        return LockNote.unreadable(cluster.name, error)


def current_operation(name: str) -> str | None:
    """Who is changing the cluster of the fleet called ``name`` just now, as a sentence.

    None if nobody is, if it is no cluster of the fleet, or if its marker cannot be read.
    """
    try:
        fleet = configured_fleet()
        cluster = fleet.called(name) if fleet else None
        if cluster is None:
            return None
        marker = ClusterLock.of(cluster)
        found = marker.read()
    except (FleetError, StorageError) as error:
        logger.warning("Whether somebody is changing cluster %s is not known: %s", name, error)
        return None
    return found.sentence(cluster.name, marker.now()) if found and found.is_held else None


def check_cluster_access(clusters: Iterable[str], owner: str, who: str) -> None:
    """Refuse clusters that are for others than ``owner``, who may be several with commas between them.

    A fleet file that cannot be used keeps no task from its work: a warning says so.

    The owner of a task is Airflow's: ``owner`` of the operator, or of the DAG's ``default_args``.

    Args:
        clusters: Their names in the fleet file, or their connections.
        who: The task, for the message.

    Raises:
        NotTheOwnerError: There is one; it names the first.
    """
    try:
        fleet = configured_fleet()
    except FleetError as error:
        logger.warning("Whose clusters these are is not known: %s", error)
        return
    names = {name.strip() for name in owner.split(",")}
    for cluster in filter(None, map(fleet.called, clusters)) if fleet else ():
        if cluster.owner not in (None, *names):
            raise NotTheOwnerError(
                f"{who}: {cluster.not_for(owner)} Set 'owner' of the task if it is, or name another cluster."
            )


@functools.lru_cache(maxsize=4)
def _loaded(file: Path, written_ns: int) -> Fleet:
    """The fleet in a file as it was at some time: tasks ask for it often, and it changes seldom."""
    return load_fleet(file)


@functools.cache
def fleet_bucket_regions() -> Mapping[str, str]:
    """Bucket → region of the fleet's clusters; empty without a fleet file, or with one that cannot be used."""
    try:
        fleet = configured_fleet()
        return fleet.bucket_regions() if fleet else {}
    except FleetError as error:
        logger.warning("The fleet file does not say where buckets are, so the store is asked: %s", error)
        return {}


# The roots that whoever runs this Airflow allows, and the prefixes of its regions: from its configuration only.


def deployment_roots() -> Roots:
    """The roots of this deployment.

    Raises:
        UnusablePathError: Its configuration names something else than absolute paths.
    """
    return configured_roots(
        conf.get("tradewind", "allowed_roots", fallback=None),
        os.environ,
        conf.get("tradewind", "prefix", fallback=None),
    )


def deployment_mirrors() -> tuple[str, ...]:
    """The prefixes that mirrored paths may be copied from: those of the configuration, else the fleet's buckets.

    Raises:
        UnusablePathError: The configuration names something else than absolute paths.
    """
    configured = conf.get("tradewind", "mirror_prefixes", fallback=None)
    return mirror_prefixes(configured, os.environ, fleet_bucket_regions())
