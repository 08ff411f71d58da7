"""A turn at an output, from the claim to the commit: the order in which the lease and the files beside it are written.

Claim: the lease first, then the attempt's file. Whoever dies between them leaves a turn whose job nobody submitted.
End of a turn that was never begun: the lease first, since a keeper may take it over at that moment.
Commit: the manifest, then the lease, and only then what is derived from it: the attempt's end and the status. Whoever
dies after the lease leaves that to any reader.
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


class InputChangedError(RecordsError):
    """What the attempt read was made again, or withdrawn, while it was at work."""


def next_attempt_number(output_path: str, lease: Lease | None) -> int:
    """The number of the next attempt: one more than any that the lease or a file knows."""
    return 1 + max([lease.attempt if lease else 0, *attempt_numbers(output_path)])


def claim_attempt(
    store: LeaseStore, output_path: str, over: HeldLease | None, attempt: Attempt, version: str, heartbeat_s: float
) -> HeldLease | None:
    """Claim the lease for ``attempt`` and write its file; None when somebody else was faster.

    Args:
        over: The lease as it was when this was decided.
        version: The whole MD5 of the step's version text.

    Raises:
        RecordTooLargeError: The attempt's file would be too large to be read again; nothing is claimed.
    """
    if (size := len(attempt.to_json().encode())) > _LARGEST_AT_CLAIM:
        raise RecordTooLargeError(
            f"The attempt at {output_path} would be written down in {size:,} bytes, most of them its step's config, "
            f"and may have {_LARGEST_AT_CLAIM:,}: write large values to a file, and give the step that file's path."
        )
    claim = LeaseClaim(attempt.number, attempt.job, attempt.cluster, attempt.by, version, heartbeat_s)
    held = store.claim(over, claim)
    if held is None:
        return None
    if over is not None:
        _close(output_path, over.lease)
        attempt = replace(attempt, withdraws=attempt.withdraws or _left_to_withdraw(output_path, over.lease))
    write_attempt(output_path, attempt)
    if attempt.withdraws:
        write_status(output_path, Status.RUNNING)
    return held


_LARGEST_AT_CLAIM: Final = LARGE // 2
"""Bytes of an attempt's file, which is to grow by how the attempt ends."""
_UNSAID: Final[Mapping[Phase | None, AttemptOutcome]] = {
    Phase.CLAIMED: AttemptOutcome.LOST,
    Phase.RUNNING: AttemptOutcome.LOST,
    Phase.STOPPED: AttemptOutcome.STOPPED,
    Phase.FAILED: AttemptOutcome.FAILED,
}
"""How an attempt ended that did not say so, by the phase in which it left the lease."""

Finish = Callable[..., HeldLease]
"""Writes the last state of the turn, given as fields of the lease; whoever renews it does so until then."""


def commit_attempt(finish: Finish, output_path: str, attempt: Attempt, check_turn: Callable[[], None]) -> HeldLease:
    """Make the attempt's output a result; the only way to one, whoever made it.

    ``check_turn`` raises when the turn is over, which may come while a large output's checksums are made: nothing is
    written then.

    Raises:
        InputChangedError: Its inputs are not what they were when it was claimed.
        LeaseLostError: The turn is over; the output does not count.
    """
    manifest = make_manifest(output_path, attempt.number)
    check_turn()
    write_manifest(output_path, manifest)
    check_inputs_unchanged(attempt)
    committed = finish(phase=Phase.COMMITTED, digest=manifest.digest, witness=manifest.sentinel_file)
    with suppress(StoreError):  # it is a result; what is derived from that can be written by any reader
        complete_commit(output_path, committed.lease)
    return committed


def fail_attempt(finish: Finish, output_path: str, attempt: Attempt, error: AttemptError) -> None:
    """End the turn with the fault of its function.

    Raises:
        LeaseLostError: The turn is over.
    """
    write_attempt(output_path, attempt.ended(AttemptOutcome.FAILED, error))
    finish(phase=Phase.FAILED)
    write_status(output_path, Status.FAILED)


def stop_attempt(
    finish: Finish, output_path: str, attempt: Attempt, outcome: AttemptOutcome, error: AttemptError | None = None
) -> None:
    """End the turn without a result and without a fault of its function.

    A loss with an ``error``, such as a process that something has killed, spends one of Airflow's retries; one without
    is followed by the next attempt at once.

    Raises:
        LeaseLostError: The turn is over; nothing was written.
    """
    finish(phase=Phase.STOPPED)
    write_attempt(output_path, attempt.ended(outcome, error))


def end_unstarted_attempt(
    store: LeaseStore, output_path: str, job: str, outcome: AttemptOutcome, error: AttemptError | None = None
) -> bool:
    """End the turn of ``job``, which never became a keeper; False, and nothing written, when it did after all."""
    held, phase = store.read(), Phase.FAILED if outcome is AttemptOutcome.FAILED else Phase.STOPPED
    if held is None or held.lease.job != job or not store.end_unstarted(job, phase):
        return False
    attempt = read_attempt_or_none(output_path, held.lease.attempt)
    if attempt is not None and attempt.outcome is None:
        write_attempt(output_path, attempt.ended(outcome, error))
    return True


def end_abandoned_attempt(store: LeaseStore, output_path: str, held: HeldLease) -> bool:
    """End the turn of a keeper that has exited and left nothing alive; False when somebody else has gone on."""
    try:
        store.change(held, phase=Phase.STOPPED)
    except LeaseLostError:
        return False
    attempt = read_attempt_or_none(output_path, held.lease.attempt)
    if attempt is not None and attempt.outcome is None:
        write_attempt(output_path, attempt.ended(AttemptOutcome.LOST))
    return True


def complete_commit(output_path: str, lease: Lease) -> None:
    """Write what is derived from a committed lease, unless it is there: its writer may have died before."""
    attempt = read_attempt_or_none(output_path, lease.attempt)
    if attempt is not None and attempt.outcome is not AttemptOutcome.SUCCEEDED:
        write_attempt(output_path, attempt.ended(AttemptOutcome.SUCCEEDED))
    if read_status(output_path) is not Status.SUCCESS:
        write_status(output_path, Status.SUCCESS)


def input_digests(records: Mapping[str, Record]) -> dict[str, str | None]:
    """The digest of each input; None for one that Marin made."""
    return {path: record.lease.digest if record.lease else None for path, record in records.items()}


def check_inputs_unchanged(attempt: Attempt) -> None:
    """Compare the leases of the inputs with what the attempt was claimed with.

    Raises:
        InputChangedError: One was withdrawn or is another result now.
    """
    leases = read_leases(list(attempt.inputs))
    marins = [path for path in attempt.inputs if path not in leases or leases[path].written_by_marin]
    there = read_records(marins)
    for path, digest in attempt.inputs.items():
        lease = leases.get(path)
        if path in there:
            is_same = digest is None and there[path].is_marin_result
        else:
            is_same = lease is not None and lease.phase is Phase.COMMITTED and lease.digest == digest
        if not is_same:
            what = "is gone, or is no result any more," if path in there else "was made again"
            if lease is not None and lease.flaw is not None:
                what = f"has a lease that cannot be read, because {lease.flaw},"
            raise InputChangedError(
                f"The input {path} {what} while attempt {attempt.number} was at work, so its output does not count; "
                "the next attempt reads the new one."
            )


def _left_to_withdraw(output_path: str, before: Lease) -> bool:
    """Whether the turn before was to replace or remove a result and has not done so, perhaps before it had a file."""
    try:
        if before.incarnation is not None and read_attempt(attempt_path(output_path, before.attempt)) is None:
            return True  # a removal that died half-way: every other keeper's attempt has a file
        newest = newest_attempt(output_path)
    except BadAttemptError:  # it may have been to replace a result, of which nothing may be taken for the next one's
        return True
    if newest is None:
        return False
    if newest.withdraws:
        return not newest.has_withdrawn
    return before.incarnation is None and newest.outcome is AttemptOutcome.SUCCEEDED


def _close(output_path: str, before: Lease) -> None:
    """Note the end of the attempt before, if it died without saying it."""
    outcome = _UNSAID.get(before.phase)
    if outcome is None:
        return
    attempt = read_attempt_or_none(output_path, before.attempt)
    if attempt is not None and attempt.outcome is None:
        write_attempt(output_path, attempt.ended(outcome))
