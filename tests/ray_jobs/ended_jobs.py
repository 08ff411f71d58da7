"""Waiting for a job with nothing but Ray's own client, for tests that are not about following."""

from __future__ import annotations

import time

from ray.job_submission import JobSubmissionClient

from tradewind.ray_jobs.client import RayJobs

DEADLINE_S = 300.0


def ended_job(jobs: RayJobs, job: str) -> tuple[str, list[str]]:
    """The final status of ``job`` and its log's lines, once it has ended; a failed job's lines end with Ray's words."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        details = jobs.details(job)
        assert details is not None, f"{job} is unknown"
        if details.has_ended:
            break
        assert time.monotonic() < deadline, f"{job} is still {details.status}: {details.message}"
        time.sleep(0.2)
    lines = JobSubmissionClient(jobs.cluster.address).get_job_logs(job).splitlines()
    return details.status, lines if details.status == "SUCCEEDED" else [*lines, details.message]
