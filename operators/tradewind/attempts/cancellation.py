"""Stop an attempt: ask its lease owner through the lease, then stop its Ray job.

A lease owner that reads the request ends its processes in order and records that. Ray's own stop gives it three
seconds, after which its leftovers are unknown. So Ray stops the job second, or first if no driver owns the lease yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tradewind.records.attempts import AttemptOutcome
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import end_unstarted_attempt

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.ray_jobs.details import JobDetails

STOP_TIMEOUT_S: Final = 20.0
"""How long the owner may take: one read of the lease, and the grace period of its processes."""
_POLL_S: Final = 0.5
_DEPLOYMENT: Final = "airflow_deployment"
"""Key of a job's metadata; ``tasks.address`` writes it."""


async def stop_step_job(
    cluster: RayCluster, job: str, output_path: str, by: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Stop the attempt of ``job`` and wait until its Ray job has ended.

    Args:
        by: The task or user that asks, for the record.
    """
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    store = LeaseStore(output_path)
    requested = await asyncio.to_thread(store.request_stop, job, by)
    if requested is not None and requested.lease.phase is Phase.RUNNING:
        await _await_end(store, job)
    async with JobsApi(cluster) as api:
        await stop_job(api, job, say)
    await asyncio.to_thread(end_unstarted_attempt, store, output_path, job, AttemptOutcome.STOPPED)


async def stop_any_job(
    cluster: RayCluster, details: JobDetails, by: Mapping[str, Any], say: Callable[[str], None]
) -> bool:
    """Stop a job that is known only from Ray's job list: a step's by its lease, any other by Ray alone.

    The submitter of a job wrote its metadata, so the metadata proves nothing. This function changes a lease only if
    the lease names this very job, and leaves the job alone if the lease names another deployment.

    Returns:
        Whether the job was stopped.
    """
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.errors import RayJobsError
    from tradewind.ray_jobs.follow.stopping import stop_job

    output_path = details.metadata.get("output_path")
    if "step" in details.metadata and output_path:
        try:
            if owner := await asyncio.to_thread(_another_owner, output_path, details):
                say(f"Ray job {details.job} is left alone: by its lease it belongs to deployment {owner!r}.")
                return False
            await stop_step_job(cluster, details.job, output_path, by, say)
            return True
        except RayJobsError:
            raise
        except Exception as error:  # the path is untrusted metadata
            say(f"Cannot read the lease of Ray job {details.job}, so Ray alone stops it: {error}")
    async with JobsApi(cluster) as api:
        await stop_job(api, details.job, say)
    return True


def _another_owner(output_path: str, details: JobDetails) -> str | None:
    """Return the deployment that owns the job by its lease, if the job's metadata names another one."""
    held = LeaseStore(output_path).read()
    if held is None or held.lease.job != details.job:
        return None
    owner = str(held.lease.by.get("deployment") or "") if held.lease.by else ""
    return owner if owner and owner != details.metadata.get(_DEPLOYMENT) else None


async def _await_end(store: LeaseStore, job: str) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        held = await asyncio.to_thread(store.read)
        if held is None or held.lease.job != job or not held.lease.is_live:
            return
        await asyncio.sleep(_POLL_S)
