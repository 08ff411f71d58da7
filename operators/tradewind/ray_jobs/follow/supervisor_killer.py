"""Script on a cluster: kill the supervisors of jobs that have not started, so that they never start.

Ray's ``stop`` is a message to the supervisor. A supervisor that waits for resources or its environment reads it only
afterwards, and then starts its entrypoint. Killing the supervisor ends the wait. The script marks the job as stopped
first: a supervisor starts only a pending job, Ray's monitor leaves an ended job as it is when the supervisor dies, and
no other process marks a job without a supervisor (its submission broke off).

Running jobs are left alone: their supervisors have read the message. Sent as source, so it imports only Ray.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

ROUNDS = 3
"""An interrupted submission can create its supervisor just after a round."""


def main(jobs: list[str]) -> None:
    """End the supervisors of ``jobs``."""
    import ray
    from ray.dashboard.modules.job.common import JOB_ACTOR_NAME_TEMPLATE, SUPERVISOR_ACTOR_RAY_NAMESPACE

    ray.init(address="auto", namespace=SUPERVISOR_ACTOR_RAY_NAMESPACE, log_to_driver=False)
    left = set(jobs)
    for number in range(ROUNDS):
        if number and left:
            time.sleep(1.0)
        for job in sorted(left):
            if str(asyncio.run(_info().get_status(job))) == "RUNNING":
                left.discard(job)
                continue
            _mark_as_stopped(job)
            try:
                ray.kill(ray.get_actor(JOB_ACTOR_NAME_TEMPLATE.format(job_id=job)), no_restart=True)
                left.discard(job)
                print("ended the supervisor of", job)
            except ValueError:
                print("no supervisor of", job)


def _mark_as_stopped(job: str) -> None:
    from ray.job_submission import JobStatus

    async def mark() -> None:
        if await _info().get_status(job) == JobStatus.PENDING:
            await _info().put_status(job, JobStatus.STOPPED, message="Job was stopped before it started.")

    asyncio.run(mark())


def _info() -> Any:
    from ray._private import worker
    from ray.dashboard.modules.job.common import JobInfoStorageClient

    connected: Any = worker.global_worker
    return JobInfoStorageClient(connected.gcs_client)


if __name__ == "__main__":
    main(sys.argv[1:])
