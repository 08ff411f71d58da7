"""Claim that gives a retried task exactly one Ray job: the task stores it before it submits.

The claim fixes the submission ID: the task's names, a nonce and the attempt number. Ray accepts an ID only once, so a
second submission under a claim, even by a late worker, finds the existing job. A task takes a new number in three cases
only: the former job has ended and was acted on, a user cleared the task, or the cluster lost an accepted job from its
memory. After such a loss a job may have run twice; nothing on the cluster could detect that.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tradewind.ray_jobs.details import JobDetails

_MAX_SLUG_CHARS = 60


@dataclass(frozen=True)
class JobClaim:
    """Job of a task, stored where it survives retries and Clear.

    Attributes:
        base: Prefix of the IDs of all attempts: the task's names and a nonce, or an ID that the user chose.
        attempt: 1 for the first.
        tries_allowed: Airflow's ``max_tries`` at the claim. Clear changes it, unless a user lowered the retries
            meanwhile; a crash does not.
        is_named: The user chose the ID.
        submitted_at: Unix time at which the cluster had accepted the job; None while that is unknown.
        queued_since: Unix time since which the job waits to start, over all attempts that Ray gave up.
        was_judged: A try has seen how the job ended, and has acted on it.
        has_succeeded: The job succeeded.
        clears: How often tasks of the run had been cleared when its end was acted on; None if unknown.
        losses: Number of earlier attempts that were lost with their node or head, since a user last requested the task.
    """

    base: str
    attempt: int
    tries_allowed: int
    is_named: bool = False
    submitted_at: float | None = None
    queued_since: float | None = None
    was_judged: bool = False
    has_succeeded: bool = False
    losses: int = 0
    clears: int | None = None

    @staticmethod
    def first(names: Sequence[str], tries_allowed: int) -> JobClaim:
        """Return the claim on a task's first job; ``names`` identify the task."""
        return JobClaim(f"{_slug(names)}-{secrets.token_hex(4)}", 1, tries_allowed)

    @staticmethod
    def named(submission_id: str, tries_allowed: int) -> JobClaim:
        """Return the claim on a job whose ID the user chose."""
        return JobClaim(submission_id, 1, tries_allowed, is_named=True)

    @property
    def job(self) -> str:
        """Submission ID of this attempt."""
        return self.base if self.is_named and self.attempt == 1 else f"{self.base}-{self.attempt}"

    def next(self, tries_allowed: int, *, lost: bool = False) -> JobClaim:
        """Return the claim on the next attempt; ``lost`` means that this one ended with its node or head."""
        losses = self.losses + 1 if lost else 0
        return JobClaim(self.base, self.attempt + 1, tries_allowed, self.is_named, losses=losses)

    def requeued(self) -> JobClaim:
        """Return the claim on the next attempt at a job that Ray gave up before it started."""
        return replace(self.next(self.tries_allowed), losses=self.losses, queued_since=self.queued_since)

    def submitted(self, at: float) -> JobClaim:
        """Return this claim once the cluster has accepted its job."""
        return replace(self, submitted_at=at, queued_since=self.queued_since or at)

    def judged(self, *, succeeded: bool, clears: int | None = None) -> JobClaim:
        """Return this claim once a try has acted on the end of its job."""
        return replace(self, was_judged=True, has_succeeded=succeeded, clears=clears)

    def was_cleared(self, tries_allowed: int, clears: int) -> bool:
        """Return whether a user has cleared the task since; the run counts this for finished tasks only.

        A crash right after the end was acted on, followed by a Clear of another task of the run, looks the same.
        """
        if tries_allowed != self.tries_allowed:
            return True
        return self.was_judged and self.clears is not None and clears > self.clears

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> JobClaim:
        """Return the claim that ``to_json`` wrote."""
        return JobClaim(**fields)


@dataclass(frozen=True)
class Submit:
    """Store ``claim`` and submit under it; first stop the job ``cancel_previous`` and wait until it has ended."""

    claim: JobClaim
    cancel_previous: str | None = None


@dataclass(frozen=True)
class Attach:
    """Follow the job of ``claim``, or read how it ended: no try has acted on its end yet."""

    claim: JobClaim


def decide_submission(
    claim: JobClaim, details: JobDetails | None, tries_allowed: int, *, clears: int = 0, durable: bool = True
) -> Submit | Attach:
    """Decide what a try does with ``claim``, whose job has ``details`` (None: unknown to the cluster).

    With ``durable`` off, a job of an earlier try is stopped instead of reattached.

    Args:
        tries_allowed: Airflow's ``max_tries`` now.
        clears: How often tasks of the run have been cleared by now.
    """
    active = details is not None and not details.has_ended
    if claim.was_cleared(tries_allowed, clears):
        return Submit(claim.next(tries_allowed), cancel_previous=claim.job if active else None)
    if claim.was_judged:
        return Attach(claim) if claim.has_succeeded else Submit(claim.next(tries_allowed))
    if not durable and active:
        return Submit(claim.next(tries_allowed), cancel_previous=claim.job)
    if details is None:
        return Submit(claim.next(tries_allowed, lost=True) if claim.submitted_at else claim)
    return Attach(claim)


def _slug(names: Sequence[str]) -> str:
    """Return the names in the characters of an ID. Long ones end with a digest of all names."""
    text = re.sub(r"[^a-zA-Z0-9_.]+", "-", "-".join(names)).strip("-.")
    if len(text) <= _MAX_SLUG_CHARS:
        return text
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]
    return f"{text[: _MAX_SLUG_CHARS - 9].rstrip('-.')}-{digest}"
