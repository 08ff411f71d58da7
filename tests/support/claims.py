"""Claim a step in tests as a task does, with the attempt's file beside the output; hold and read its lease."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

from tradewind.attempts.renewal import LeaseRenewer
from tradewind.attempts.spec_digest import driver_arguments as arguments_of
from tradewind.records.attempts import Attempt, attempt_path, utc_now
from tradewind.records.lease import HEARTBEAT_S, Lease
from tradewind.records.lease_store import HeldLease, LeaseHolder, LeaseStore
from tradewind.records.lifecycle import claim_attempt, next_attempt_number
from tradewind.serialization.spec import StepSpec
from tradewind.steps import ResolvedStep


def claimed(
    resolved: ResolvedStep,
    spec: StepSpec,
    *,
    job: str | None = None,
    cluster: str = "",
    inputs: Mapping[str, str | None] | None = None,
    withdraws: bool = False,
    heartbeat_s: float = HEARTBEAT_S,
) -> Attempt:
    """Claim the step's next attempt."""
    path = resolved.output_path
    store = LeaseStore(path)
    before = store.read()
    number = next_attempt_number(path, before.lease if before else None)
    attempt = Attempt(
        number,
        job or f"job-{number}",
        cluster,
        {"dag": "d", "run": "r", "task": "t", "map_index": -1, "try": number, "max_tries": 3},
        spec.to_json(),
        inputs=dict(inputs or {}),
        withdraws=withdraws,
        started_at=utc_now(),
    )
    version = hashlib.md5(resolved.version_json.encode(), usedforsecurity=False).hexdigest()
    claim = claim_attempt(store, path, before, attempt, version, heartbeat_s)
    assert claim is not None, "another process has claimed the step"
    return attempt


def renewing(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
    """Renew the lease for the length of the block."""
    return LeaseRenewer(store, held, end_work=lambda end: None)


def lease_at(output_path: str) -> Lease:
    """Return the lease of the output."""
    held = LeaseStore(output_path).read()
    assert held is not None
    return held.lease


def driver_arguments(attempt: Attempt) -> list[str]:
    """Return the command-line arguments of the attempt's driver."""
    return arguments_of(attempt_path(attempt.spec["output_path"], attempt.number), attempt)
