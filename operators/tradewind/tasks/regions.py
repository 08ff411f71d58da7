"""Regions of buckets and clusters, looked up only for steps that read buckets from a known region.

A cluster's region is the extra ``region`` of its connection. A bucket's location is in this deployment's fleet file;
for other buckets Google Cloud Storage, or the emulator at ``STORAGE_EMULATOR_HOST``, gives it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tradewind.deployment.fleet import fleet_bucket_regions
from tradewind.deployment.ray_connection import RayHook
from tradewind.plans.regions import CrossRegionReadError, StepReads, cross_region_reads, paths_read
from tradewind.records.lease import Lease, lease_path
from tradewind.records.manifests import read_manifest
from tradewind.steps import AirflowWorker, ExecutorStep, ResolvedStep
from tradewind.storage import file_system_at
from tradewind.storage.bucket_regions import bucket_region
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.files import read_text
from tradewind.storage.trees import list_files

logger = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S: Final = 30.0
"""How long a lookup of a bucket's location is retried while the store does not answer."""


def refuse_cross_region_reads(
    steps: Iterable[ResolvedStep], cluster_of: Callable[[ExecutorStep], str], allowed: Sequence[str] = ()
) -> None:
    """Refuse steps that would read from buckets outside the regions of their clusters.

    ``allowed`` are names of steps and prefixes of paths that may do so.

    Raises:
        CrossRegionReadError: There are such reads; the message lists them with their sizes.
        StoreUnavailableError: Google Cloud Storage does not return a bucket's location.
    """
    region = functools.cache(region_of)
    reads = [
        StepReads(step.name, region(cluster_of(step.step)), paths)
        for step in steps
        if (paths := paths_read(step)) and not isinstance(step.step.resources, AirflowWorker)
    ]
    if refused := cross_region_reads(reads, location_of, allowed, stored_size):
        raise CrossRegionReadError(refused)


def region_of(conn_id: str) -> str | None:
    """Return the region of a cluster, if its connection gives one."""
    region = RayHook(conn_id).region()
    return str(region).strip().lower() or None if region else None


@functools.cache
def location_of(bucket: str) -> str | None:
    """Return the location of ``bucket`` from the fleet file or ``bucket_region``; None if unknown.

    Raises:
        StoreUnavailableError: Google Cloud Storage does not answer.
    """
    if known := fleet_bucket_regions().get(bucket):
        return known
    try:
        from google.api_core.exceptions import ClientError, GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]
    except ImportError:
        logger.warning("Reads from bucket %s are not checked: google-cloud-storage is not installed here.", bucket)
        return None
    try:
        return bucket_region(bucket, retry=DEFAULT_RETRY.with_timeout(LOOKUP_TIMEOUT_S))
    except ClientError as error:
        logger.warning("Reads from bucket %s are not checked, since its location is unknown: %s", bucket, error)
        return None
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        raise StoreUnavailableError(f"The region of bucket {bucket!r} is unknown: {error}") from error


def stored_size(path: str) -> int | None:
    """Return the bytes at ``path``, from its manifest, else from the store's listing; None if unknown."""
    try:
        lease = read_text(lease_path(path))
        manifest = read_manifest(path, Lease.from_json(lease).attempt if lease is not None else 0)
        if manifest is not None:
            return manifest.size
        if files := list_files(path):
            return sum(file.size for file in files)
        fs, name = file_system_at(path)
        return int(fs.size(name))
    except Exception as error:  # clients have their own exceptions, and the read matters more
        logger.debug("The size of %s is unknown: %s", path, error)
        return None
