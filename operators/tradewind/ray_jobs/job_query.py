"""Find a job of another client: by its ID, or as the newest one with some metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import BadRequestError, RayUnreachableError

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

_FIRST_INTERVAL_S = 1.0
_MAX_INTERVAL_S = 15.0


@dataclass(frozen=True)
class JobQuery:
    """Query for the job with this ID, or for those with all of these metadata.

    Raises:
        BadRequestError: Neither is given, or both are.
    """

    submission_id: str | None = None
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if bool(self.submission_id) == bool(self.metadata):
            raise BadRequestError("Say which Ray job is meant: by submission_id or by metadata, one of them.")

    def matching(self, jobs: Iterable[JobDetails]) -> list[JobDetails]:
        """Return the matching jobs, the newest first."""
        if self.submission_id:
            return [job for job in jobs if job.job == self.submission_id]
        wanted = (self.metadata or {}).items()
        found = [job for job in jobs if all(job.metadata.get(name) == value for name, value in wanted)]
        return sorted(found, key=lambda job: job.started_ms or 0, reverse=True)

    def __str__(self) -> str:
        if self.submission_id:
            return f"Ray job {self.submission_id!r}"
        return f"a Ray job with {dict(self.metadata or {})}"


async def find_jobs(api: JobsApi, query: JobQuery) -> list[JobDetails]:
    """Return the jobs that match ``query``, the newest first."""
    if query.submission_id:
        found = await api.details(query.submission_id)
        return [found] if found else []
    return query.matching(await api.jobs())


async def await_job(api: JobsApi, query: JobQuery) -> JobDetails:
    """Wait for a job that matches ``query`` and return the newest; outages are waited out."""
    interval = _FIRST_INTERVAL_S
    while True:
        try:
            if found := await find_jobs(api, query):
                return found[0]
        except RayUnreachableError:
            interval = _MAX_INTERVAL_S
        await asyncio.sleep(interval)
        interval = min(interval * 1.5, _MAX_INTERVAL_S)
