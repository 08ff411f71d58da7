"""The fleet file and roots of this deployment: clusters and paths that need no connection."""

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
    """The cluster is reserved for other owners."""


def configured_fleet_file() -> str | None:
    """Return the path in ``[tradewind] fleet_file``, if it is set."""
    return str(conf.get("tradewind", "fleet_file", fallback=None) or "") or None


def configured_fleet() -> Fleet | None:
    """Return the fleet of this deployment; None if no fleet file is configured.

    Raises:
        FleetError: The file cannot be used.
    """
    file = os.environ.get(FLEET_VARIABLE) or configured_fleet_file()
    if not file:
        return None
    path = expanded(file, f"{FLEET_VARIABLE}, or [tradewind] fleet_file:")
    try:
        written_ns = path.stat().st_mtime_ns
    except OSError:  # the reader reports the reason
        written_ns = 0
    return _loaded(path, written_ns)


def lock_note(cluster: FleetCluster) -> LockNote | None:
    """Return the note for upkeep in the lock of ``cluster``; None if there is none that matters."""
    lock = ClusterLock.of(cluster)
    try:
        return LockNote.of(cluster.name, lock.read(), lock.now())
    except StorageError as error:
        return LockNote.unreadable(cluster.name, error)


def current_operation(name: str) -> str | None:
    """Return a sentence about the operation on the fleet's cluster ``name``, with its user.

    None if there is no operation, no such cluster, or its lock cannot be read.
    """
    try:
        fleet = configured_fleet()
        cluster = fleet.called(name) if fleet else None
        if cluster is None:
            return None
        lock = ClusterLock.of(cluster)
        operation = lock.read()
    except (FleetError, StorageError) as error:
        logger.warning("Cannot read the lock of cluster %s, so its current operation is unknown: %s", name, error)
        return None
    return operation.sentence(cluster.name, lock.now()) if operation and operation.is_held else None


def check_cluster_access(clusters: Iterable[str], owner: str, subject: str) -> None:
    """Refuse clusters that are reserved for others than ``owner``. An unusable fleet file only logs a warning.

    Args:
        clusters: Their names in the fleet file, or their connections.
        owner: Airflow's ``owner`` of the operator or of the DAG's ``default_args``; several with commas.
        subject: The task, for the message.

    Raises:
        NotTheOwnerError: A cluster is reserved for others; the message names the first.
    """
    try:
        fleet = configured_fleet()
    except FleetError as error:
        logger.warning("Cannot read the fleet file, so owners of clusters are not checked: %s", error)
        return
    names = {name.strip() for name in owner.split(",")}
    for cluster in filter(None, map(fleet.called, clusters)) if fleet else ():
        if cluster.owner not in (None, *names):
            raise NotTheOwnerError(
                f"{subject}: {cluster.not_for(owner)} Set 'owner' of the task if it is, or name another cluster."
            )


@functools.lru_cache(maxsize=4)
def _loaded(file: Path, written_ns: int) -> Fleet:
    """Return the fleet in a file, cached by its modification time: tasks request it often."""
    return load_fleet(file)


@functools.cache
def fleet_bucket_regions() -> Mapping[str, str]:
    """Return bucket → region of the fleet's clusters; empty without a usable fleet file."""
    try:
        fleet = configured_fleet()
        return fleet.bucket_regions() if fleet else {}
    except FleetError as error:
        logger.warning("Cannot read the fleet file, so regions of buckets come from the store: %s", error)
        return {}


def deployment_roots() -> Roots:
    """Return this deployment's allowed roots and its regions' prefixes, from its configuration only.

    Raises:
        UnusablePathError: The configuration contains paths that are not absolute.
    """
    return configured_roots(
        conf.get("tradewind", "allowed_roots", fallback=None),
        os.environ,
        conf.get("tradewind", "prefix", fallback=None),
    )


def deployment_mirrors() -> tuple[str, ...]:
    """Return the prefixes that mirrored paths are copied from: configured ones, else the fleet's buckets.

    Raises:
        UnusablePathError: The configuration contains paths that are not absolute.
    """
    configured = conf.get("tradewind", "mirror_prefixes", fallback=None)
    return mirror_prefixes(configured, os.environ, fleet_bucket_regions())
