"""Submission ids, made when an attempt is claimed and kept in its file, so that submitting it twice gives one job."""

from __future__ import annotations

import hashlib
import re
import secrets

_LONGEST_SLUG = 40


def step_job_id(name: str, output_path: str, version_hash: str, attempt: int) -> str:
    """A new id for one attempt at a step: readable, and never given twice.

    The random end keeps an attempt from meeting the job of an equal one whose records were deleted meanwhile.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_SLUG].strip("-") or "step"
    place = hashlib.sha256(output_path.encode()).hexdigest()[:8]
    return f"{slug}-{place}-{version_hash}-{attempt}-{secrets.token_hex(3)}"
