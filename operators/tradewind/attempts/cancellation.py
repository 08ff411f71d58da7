"""Stopping a step's turn: its keeper is asked through the lease, and its Ray job is stopped when it has obeyed.

A keeper that is asked ends what it started in good order and says so in the record. Ray's own stop gives it three
seconds, after which nobody knows what it left. So Ray comes second, or first for a job that has no keeper yet.
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
"""How long a keeper may take: its look at the lease, and the grace of what it ends."""
_POLL_S: Final = 0.5
_DEPLOYMENT: Final = "airflow_deployment"
"""In a job's metadata; ``tasks.address`` writes it."""


async def stop_step_job(
    cluster: RayCluster, job: str, output_path: str, by: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Stop the turn of ``job`` and wait until its job has ended.

    Args:
        by: Who asks, for the record.
    """
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    store = LeaseStore(output_path)
    asked = await asyncio.to_thread(store.request_stop, job, by)
    if asked is not None and asked.lease.phase is Phase.RUNNING:
        await _await_end(store, job)
    async with JobsApi(cluster) as api:
        await stop_job(api, job, say)
    await asyncio.to_thread(end_unstarted_attempt, store, output_path, job, AttemptOutcome.STOPPED)


async def stop_any_job(
    cluster: RayCluster, details: JobDetails, by: Mapping[str, Any], say: Callable[[str], None]
) -> bool:
    """Stop a job of which only Ray's list tells: a step's by its lease, any other by Ray alone.

    What the list says of a job came from whoever submitted it. A lease is touched only if it names this very job, and
    where it says that the job is another deployment's, the job is left alone.

    Returns:
        Whether it was stopped.
    """
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.errors import RayJobsError
    from tradewind.ray_jobs.follow.stopping import stop_job

    output_path = details.metadata.get("output_path")
    if "step" in details.metadata and output_path:
        try:
            if owner := await asyncio.to_thread(_another_owner, output_path, details):
                say(f"Ray job {details.job} is left alone: its lease says that it is deployment {owner!r}'s.")
                return False
            await stop_step_job(cluster, details.job, output_path, by, say)
            return True
        except RayJobsError:
            raise
        except Exception as error:  # the path is what somebody wrote into the job's metadata
            say(f"The lease of job {details.job} cannot be asked: {error}")
    async with JobsApi(cluster) as api:
        await stop_job(api, details.job, say)
    return True


def _another_owner(output_path: str, details: JobDetails) -> str | None:
    """The deployment whose job it is by its lease, if that is another one than the job's metadata says."""
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
