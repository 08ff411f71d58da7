"""Stopping a job is done when the job has ended, not when Ray says that it was told."""

from __future__ import annotations

from collections.abc import Callable

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.details import JobDetails


async def stop_job(api: JobsApi, job: str, say: Callable[[str], None]) -> JobDetails | None:
    """Stop ``job`` and return it once it has ended; None when the cluster does not know it."""
    raise NotImplementedError
