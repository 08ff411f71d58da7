"""The claim on a task's Ray job, in Airflow's task state store: it outlives the try, the worker and a Clear."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from tradewind.ray_jobs.claims import JobClaim

CLAIM_KEY = "ray_job"


def load_claim(context: Context) -> JobClaim | None:
    """What an earlier try claimed, if one did."""
    found: Any = context["task_state_store"].get(CLAIM_KEY)
    return JobClaim.from_json(found) if found else None


def save_claim(context: Context, claim: JobClaim) -> JobClaim:
    """Keep ``claim``; it is kept when this returns."""
    fields: Any = claim.to_json()
    context["task_state_store"].set(CLAIM_KEY, fields)
    return claim
