"""Exactly one Ray job for a task that comes back: the task writes its claim down before it submits under it.

The id of a job is made of the task's names, a nonce and the number of the attempt, all fixed by the claim. Ray takes an
id only once, so whoever submits under a claim a second time, a late worker included, meets the job that is there. A new
number is taken only when the former job has ended and was judged, when a person cleared the task, or when the cluster
has lost its memory of a job that it had accepted. After such a loss a job may have run twice; nothing on the cluster
could tell.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tradewind.ray_jobs.details import JobDetails

_LONGEST_SLUG = 60


@dataclass(frozen=True)
class JobClaim:
    """What a task knows of its job, kept where it survives retries and Clear.

    Attributes:
        base: What the ids of all attempts begin with: the task's names and a nonce, or an id that the user chose.
        attempt: 1 for the first.
        tries_allowed: Airflow's ``max_tries`` at the claim. Clear changes it, unless somebody lowered the retries
            meanwhile, and a crash does not.
        is_named: The user chose the id.
        submitted_at: Unix time at which the cluster had accepted the job; None while nobody knows.
        queued_since: Unix time since which it waits to be started, whatever attempts Ray has given up meanwhile.
        was_judged: A try has seen how the job ended, and has acted on it.
        has_succeeded: It ended well.
        clears: How often tasks of the run had been cleared when its end was acted on; None where that is not known.
        losses: How many attempts before this one were lost with their node or head, since a person last asked.
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
        """The claim on a task's first job; ``names`` say whose it is."""
        return JobClaim(f"{_slug(names)}-{secrets.token_hex(4)}", 1, tries_allowed)

    @staticmethod
    def named(submission_id: str, tries_allowed: int) -> JobClaim:
        """The claim on a job whose id the user chose."""
        return JobClaim(submission_id, 1, tries_allowed, is_named=True)

    @property
    def job(self) -> str:
        """The submission id of this attempt."""
        return self.base if self.is_named and self.attempt == 1 else f"{self.base}-{self.attempt}"

    def next(self, tries_allowed: int, *, lost: bool = False) -> JobClaim:
        """The claim on the next attempt; ``lost`` says that this one ended with its node or head."""
        losses = self.losses + 1 if lost else 0
        return JobClaim(self.base, self.attempt + 1, tries_allowed, self.is_named, losses=losses)

    def requeued(self) -> JobClaim:
        """The claim on the next attempt at a job that Ray has given up before it was started."""
        return replace(self.next(self.tries_allowed), losses=self.losses, queued_since=self.queued_since)

    def submitted(self, at: float) -> JobClaim:
        """This claim once the cluster has accepted its job."""
        return replace(self, submitted_at=at, queued_since=self.queued_since or at)

    def judged(self, *, succeeded: bool, clears: int | None = None) -> JobClaim:
        """This claim once the end of its job was acted on."""
        return replace(self, was_judged=True, has_succeeded=succeeded, clears=clears)

    def was_cleared(self, tries_allowed: int, clears: int) -> bool:
        """Whether a person cleared the task since: the run's count of that tells it of finished tasks only.

        A crash right after the end was judged, and then a Clear of another task of the run, looks the same.
        """
        if tries_allowed != self.tries_allowed:
            return True
        return self.was_judged and self.clears is not None and clears > self.clears

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> JobClaim:
        """The claim that ``to_json`` wrote down."""
        return JobClaim(**fields)


@dataclass(frozen=True)
class Submit:
    """Write ``claim`` down and submit under it; first stop the job ``stop_first`` and wait until it has ended."""

    claim: JobClaim
    stop_first: str | None = None


@dataclass(frozen=True)
class Attach:
    """Follow the job of ``claim``, or read how it ended: nobody has judged it yet."""

    claim: JobClaim


def decide_submission(
    claim: JobClaim, details: JobDetails | None, tries_allowed: int, *, clears: int = 0, durable: bool = True
) -> Submit | Attach:
    """What a try does that finds ``claim``, whose job the cluster describes by ``details`` (None: it knows none).

    With ``durable`` off, a job of an earlier try is stopped rather than joined.

    Args:
        tries_allowed: Airflow's ``max_tries`` now.
        clears: How often tasks of the run have been cleared by now.
    """
    active = details is not None and not details.has_ended
    if claim.was_cleared(tries_allowed, clears):
        return Submit(claim.next(tries_allowed), stop_first=claim.job if active else None)
    if claim.was_judged:
        return Attach(claim) if claim.has_succeeded else Submit(claim.next(tries_allowed))
    if not durable and active:
        return Submit(claim.next(tries_allowed), stop_first=claim.job)
    if details is None:
        return Submit(claim.next(tries_allowed, lost=True) if claim.submitted_at else claim)
    return Attach(claim)


def _slug(names: Sequence[str]) -> str:
    """The names as an id can hold them, shortened at their end with a digest of them all."""
    text = re.sub(r"[^a-zA-Z0-9_.]+", "-", "-".join(names)).strip("-.")
    if len(text) <= _LONGEST_SLUG:
        return text
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]
    return f"{text[: _LONGEST_SLUG - 9].rstrip('-.')}-{digest}"
