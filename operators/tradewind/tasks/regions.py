"""Where buckets and clusters are, asked only if a step reads from a bucket and runs on a cluster that says its region.

A cluster says it in the extra ``region`` of its connection. Where a bucket is, the fleet file of this deployment says;
of another bucket Google Cloud Storage, or the emulator that ``STORAGE_EMULATOR_HOST`` names.
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
"""How long a store that does not answer is asked again for where a bucket is."""


def refuse_cross_region_reads(
    steps: Iterable[ResolvedStep], cluster_of: Callable[[ExecutorStep], str], allowed: Sequence[str] = ()
) -> None:
    """Refuse steps that would read from buckets outside the regions of their clusters.

    ``allowed`` are the names of steps and the beginnings of paths that may.

    Raises:
        CrossRegionReadError: There are such reads; it lists them with their sizes.
        StoreUnavailableError: Google Cloud Storage does not say where a bucket is.
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
    """The region of a cluster, if its connection says one."""
    region = RayHook(conn_id).region()
    return str(region).strip().lower() or None if region else None


@functools.cache
def location_of(bucket: str) -> str | None:
    """Where ``bucket`` is, as the fleet file or ``bucket_region`` has it; None if not known.

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
        logger.warning("Reads from bucket %s are not checked, as it does not say where it is: %s", bucket, error)
        return None
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        raise StoreUnavailableError(f"Nothing says which region bucket {bucket!r} is in: {error}") from error


def stored_size(path: str) -> int | None:
    """The bytes at ``path``: as the manifest there says, else as the store lists them; None if nobody can tell."""
    try:
        lease = read_text(lease_path(path))
        manifest = read_manifest(path, Lease.from_json(lease).attempt if lease is not None else 0)
        if manifest is not None:
            return manifest.size
        if files := list_files(path):
            return sum(file.size for file in files)
        fs, name = file_system_at(path)
        return int(fs.size(name))
    except Exception as error:  # each client library has errors of its own, and none matters as much as the read
        logger.debug("The size of %s is not known: %s", path, error)
        return None
