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
    ours = [job for job in answer.json() if (job.get("metadata") or {}).get("airflow_run") == run_id]
    return sorted(ours, key=lambda job: job["start_time"])


def statuses(address: str, run_id: str) -> list[str]:
    """Return the status of each of these jobs, oldest first."""
    return [job["status"] for job in jobs_of(address, run_id)]


def active(address: str, run_id: str) -> int:
    """Count the jobs of the run that have not ended."""
    return len([status for status in statuses(address, run_id) if status not in TERMINAL])
