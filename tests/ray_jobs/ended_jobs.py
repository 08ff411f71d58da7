"""Wait for a job with Ray's own client, for tests that do not test following."""

from __future__ import annotations

from ray.job_submission import JobSubmissionClient

from tests.support.waiting import until
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.details import JobDetails


def ended_job(jobs: RayJobs, job: str) -> tuple[str, list[str]]:
    """Wait until ``job`` has ended; return its final status and its log's lines.

    The lines of a failed job end with Ray's message.
    """

    def ended() -> JobDetails | None:
        details = jobs.details(job)
        assert details is not None, f"{job} is unknown"
        return details if details.has_ended else None

    details = until(ended, f"the end of {job}", seen=lambda: jobs.details(job))
    assert details is not None
    lines = JobSubmissionClient(jobs.cluster.address).get_job_logs(job).splitlines()
    return details.status, lines if details.status == "SUCCEEDED" else [*lines, details.message]
