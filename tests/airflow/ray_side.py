"""Read the jobs of a Ray cluster over its own API."""

from __future__ import annotations

from typing import Any

import requests

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")


def jobs_of(address: str, run_id: str, token: str | None = None) -> list[dict[str, Any]]:
    """Return the jobs that the tasks of a run submitted, oldest first."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = requests.get(f"{address}/api/jobs/", headers=headers, timeout=30)
    answer.raise_for_status()
    jobs = [job for job in answer.json() if (job.get("metadata") or {}).get("airflow_run") == run_id]
    return sorted(jobs, key=lambda job: job["start_time"])
