"""Lifecycle of an attempt, from claim to end: the order in which the lease and the files beside it are written.

Claim: the lease first, then the attempt's file. A claimer that dies between them leaves an attempt without a job.
End of an unstarted attempt: the lease first, since a driver may become its owner at that moment.
Commit: the manifest, then the lease, and only then the files derived from it: the attempt's end and the status. If the
owner dies after the lease, any reader writes those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    AttemptOutcome,
    BadAttemptError,
    attempt_numbers,
    attempt_path,
    newest_attempt,
    read_attempt,
    read_attempt_or_none,
    write_attempt,
)
from tradewind.records.lease import Lease, Phase
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseStore
from tradewind.records.manifests import make_manifest, write_manifest
from tradewind.records.record import Record, Status, read_leases, read_records, read_status, write_status
from tradewind.storage.bounded_read import LARGE
from tradewind.storage.errors import LeaseLostError, RecordsError, RecordTooLargeError, StoreError

_MAX_CLAIM_BYTES: Final = LARGE // 2
"""Size of an attempt's file at the claim; the end of the attempt makes it larger."""
_UNRECORDED_OUTCOMES: Final[Mapping[Phase | None, AttemptOutcome]] = {
    Phase.CLAIMED: AttemptOutcome.LOST,
    Phase.RUNNING: AttemptOutcome.LOST,
    Phase.STOPPED: AttemptOutcome.STOPPED,
    Phase.FAILED: AttemptOutcome.FAILED,
}
"""Outcome of an attempt whose file has none, by the phase of its lease."""

Finish = Callable[..., HeldLease]
"""Makes the last write of the lease, with these fields; renewal continues until then."""


class InputChangedError(RecordsError):
    """An input of the attempt was made again, or withdrawn, while the attempt was at work."""


def next_attempt_number(output_path: str, lease: Lease | None) -> int:
    """Return the number of the next attempt: one more than that of the lease and of every attempt's file."""
    return 1 + max([lease.attempt if lease else 0, *attempt_numbers(output_path)])


def claim_attempt(
    store: LeaseStore, output_path: str, over: HeldLease | None, attempt: Attempt, version: str, heartbeat_s: float
) -> HeldLease | None:
    """Claim the lease for ``attempt`` and write its file; None if another process was faster.

    Args:
        over: The lease as it was at the decision to claim.
        version: The whole MD5 of the step's version text.

    Raises:
        RecordTooLargeError: The attempt's file would be too large to be read again; nothing is claimed.
    """
    if (size := len(attempt.to_json().encode())) > _MAX_CLAIM_BYTES:
        raise RecordTooLargeError(
            f"The file of the attempt at {output_path} would have {size:,} bytes, most of them its step's config, and "
            f"may have {_MAX_CLAIM_BYTES:,}: write large values to a file, and give the step that file's path."
        )
    claim = LeaseClaim(attempt.number, attempt.job, attempt.cluster, attempt.by, version, heartbeat_s)
    held = store.claim(over, claim)
    if held is None:
        return None
    if over is not None:
        if outcome := _UNRECORDED_OUTCOMES.get(over.lease.phase):
            _record_end(output_path, over.lease.attempt, outcome)
        attempt = replace(attempt, withdraws=attempt.withdraws or _has_pending_withdrawal(output_path, over.lease))
    write_attempt(output_path, attempt)
    if attempt.withdraws:
        write_status(output_path, Status.RUNNING)
    return held


def commit_attempt(finish: Finish, output_path: str, attempt: Attempt, check_lease: Callable[[], None]) -> HeldLease:
    """Make the attempt's output a result; there is no other way to one.

    ``check_lease`` raises if the lease was lost, perhaps during the checksums of a large output: nothing is written
    then.

    Raises:
        InputChangedError: Its inputs have changed since the claim.
        LeaseLostError: The lease is lost; the output does not count.
    """
    manifest = make_manifest(output_path, attempt.number)
    check_lease()
    write_manifest(output_path, manifest)
    check_inputs_unchanged(attempt)
    committed = finish(phase=Phase.COMMITTED, digest=manifest.digest, witness=manifest.sentinel_file)
    with suppress(StoreError):  # it is a result, and any reader can write the derived files
        complete_commit(output_path, committed.lease)
    return committed


def fail_attempt(finish: Finish, output_path: str, attempt: Attempt, error: AttemptError) -> None:
    """End the attempt with the error of its function.

    Raises:
        LeaseLostError: The lease is lost.
    """
    write_attempt(output_path, attempt.ended(AttemptOutcome.FAILED, error))
    finish(phase=Phase.FAILED)
    write_status(output_path, Status.FAILED)


def stop_attempt(
    finish: Finish, output_path: str, attempt: Attempt, outcome: AttemptOutcome, error: AttemptError | None = None
) -> None:
    """End the attempt without a result and without an error of its function.

    A loss with an ``error``, such as a killed process, spends one of Airflow's retries. After a loss without one the
    next attempt starts at once.

    Raises:
        LeaseLostError: The lease is lost; nothing was written.
    """
    finish(phase=Phase.STOPPED)
    write_attempt(output_path, attempt.ended(outcome, error))


def end_unstarted_attempt(
    store: LeaseStore, output_path: str, job: str, outcome: AttemptOutcome, error: AttemptError | None = None
) -> bool:
    """End an attempt whose job never owned the lease; False, with nothing written, if it does after all."""
    held, phase = store.read(), Phase.FAILED if outcome is AttemptOutcome.FAILED else Phase.STOPPED
    if held is None or held.lease.job != job or not store.end_unstarted(job, phase):
        return False
    _record_end(output_path, held.lease.attempt, outcome, error)
    return True


def end_abandoned_attempt(store: LeaseStore, output_path: str, held: HeldLease) -> bool:
    """End the attempt of an owner that exited with all its processes; False if another one holds the lease."""
    try:
        store.change(held, phase=Phase.STOPPED)
    except LeaseLostError:
        return False
    _record_end(output_path, held.lease.attempt, AttemptOutcome.LOST)
    return True


def complete_commit(output_path: str, lease: Lease) -> None:
    """Write the attempt's end and the status of a committed lease, if its owner died before it wrote them."""
    attempt = read_attempt_or_none(output_path, lease.attempt)
    if attempt is not None and attempt.outcome is not AttemptOutcome.SUCCEEDED:
        write_attempt(output_path, attempt.ended(AttemptOutcome.SUCCEEDED))
    if read_status(output_path) is not Status.SUCCESS:
        write_status(output_path, Status.SUCCESS)


def input_digests(records: Mapping[str, Record]) -> dict[str, str | None]:
    """Return the digest of each input; None for one that Marin made."""
    return {path: record.lease.digest if record.lease else None for path, record in records.items()}


def check_inputs_unchanged(attempt: Attempt) -> None:
    """Check that the leases of the inputs are those of the claim.

    Raises:
        InputChangedError: An input was withdrawn, or is another result now.
    """
    leases = read_leases(list(attempt.inputs))
    marin_paths = [path for path in attempt.inputs if path not in leases or leases[path].written_by_marin]
    marin_records = read_records(marin_paths)
    for path, digest in attempt.inputs.items():
        lease = leases.get(path)
        if path in marin_records:
            is_same = digest is None and marin_records[path].is_marin_result
        else:
            is_same = lease is not None and lease.phase is Phase.COMMITTED and lease.digest == digest
        if not is_same:
            what = "is gone, or is no result any more," if path in marin_records else "was made again"
            if lease is not None and lease.flaw is not None:
                what = f"has a lease that cannot be read, because {lease.flaw},"
            raise InputChangedError(
                f"The input {path} {what} while attempt {attempt.number} was at work, so its output does not count; "
                "the next attempt reads the new one."
            )


def _has_pending_withdrawal(output_path: str, before: Lease) -> bool:
    """Whether the previous attempt or removal had to withdraw a result and did not; it may have no file."""
    try:
        if before.incarnation is not None and read_attempt(attempt_path(output_path, before.attempt)) is None:
            return True  # a removal that died: the attempt of every other owner has a file
        newest = newest_attempt(output_path)
    except BadAttemptError:  # it may have had to replace a result, of which the next attempt may use no file
        return True
    if newest is None:
        return False
    if newest.withdraws:
        return not newest.has_withdrawn
    return before.incarnation is None and newest.outcome is AttemptOutcome.SUCCEEDED


def _record_end(output_path: str, number: int, outcome: AttemptOutcome, error: AttemptError | None = None) -> None:
    """Write the end of an attempt whose owner died before it did so."""
    attempt = read_attempt_or_none(output_path, number)
    if attempt is not None and attempt.outcome is None:
        write_attempt(output_path, attempt.ended(outcome, error))
