"""A head that remembers many jobs that ended long ago: copies of the record of one that really ran and ended.

They are put where Ray keeps such records, so the head itself answers with them as with any other.
"""

from __future__ import annotations

import time

from ray._private import ray_constants
from ray._raylet import GcsClient
from ray.dashboard.modules.job.common import JobInfoStorageClient
from ray.job_submission import JobSubmissionClient

MODEL = "ended-long-ago"
LONGEST_S = 120.0


def remember(address: str, gcs_address: str, count: int) -> None:
    """Let the head whose dashboard is at ``address`` know ``count`` jobs that have ended."""
    client = JobSubmissionClient(address)
    client.submit_job(entrypoint="true", submission_id=MODEL)
    deadline = time.monotonic() + LONGEST_S
    while not client.get_job_status(MODEL).is_terminal():
        if time.monotonic() > deadline:
            raise RuntimeError(f"job {MODEL} has not ended in {LONGEST_S:g} s")
        time.sleep(0.5)
    store, key = GcsClient(address=gcs_address), JobInfoStorageClient.JOB_DATA_KEY
    namespace = ray_constants.KV_NAMESPACE_JOB
    record = store.internal_kv_get(key.format(job_id=MODEL).encode(), namespace)
    for number in range(count - 1):
        name = key.format(job_id=f"{MODEL}-{number:05}").encode()
        store.internal_kv_put(name, record, True, namespace)
