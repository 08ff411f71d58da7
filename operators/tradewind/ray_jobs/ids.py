"""Submission ids that are fixed before a job is submitted, so that submitting twice gives one job."""

from __future__ import annotations

import hashlib
import re

_LONGEST_SLUG = 40


def step_job_id(name: str, output_path: str, version_hash: str, attempt: int) -> str:
    """The id of one attempt at a step: readable, and different for every output path and attempt."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_SLUG].strip("-") or "step"
    place = hashlib.sha256(output_path.encode()).hexdigest()[:8]
    return f"{slug}-{place}-{version_hash}-{attempt}"
