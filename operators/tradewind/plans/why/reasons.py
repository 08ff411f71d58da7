"""What the record of a step says, in words: why it runs, waits, or need not run.

Pure but for ``read_stories``, which reads what records leave out, for all steps together.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.plans.why.history import NEVER_RAN, explain_new_versions
from tradewind.plans.why.phrases import producer_text, shorten, time_text
from tradewind.records.attempts import AttemptError, BadAttemptError, attempt_path, parse_attempt
from tradewind.records.leases.lease import Lease, Phase
from tradewind.records.leases.unreadable import UnreadableLeaseError
from tradewind.records.record import Record, RecordState
from tradewind.records.status import Status
from tradewind.steps import ResolvedStep
from tradewind.storage import Roots, StorageError
from tradewind.storage.bounded import Content
from tradewind.storage.files import read_contents

logger = logging.getLogger(__name__)

LONGEST_ERROR: Final = 160
MOST_STORIES: Final = 1000
"""In one plan; steps beyond that are told of without their errors."""

ReadErrorLine = Callable[[str], str | None]
"""Gives the first line of the error of the newest attempt at an output path, if it is known."""


@dataclass(frozen=True)
class Story:
    """What an attempt's file tells that the lease does not.

    Attributes:
        error: The first line of its error.
        since: When it was claimed.
    """

    error: str | None = None
    since: str | None = None


def explain_steps(steps: Sequence[tuple[ResolvedStep, Record]], *, now: float, roots: Roots) -> dict[str, str]:
    """The reason of every step that is not finished: output path → words. What has to be read is read together."""
    stories = _read_stories_or_none({step.output_path: record for step, record in steps})
    reasons = {
        step.output_path: state_reason(
            step, record, lambda path: stories.get(path, Story()).error, stories.get(step.output_path, Story()).since
        )
        for step, record in steps
        if record.state is not RecordState.FINISHED
    }
    return reasons | explain_new_versions(steps, now=now, roots=roots)


def state_reason(step: ResolvedStep, record: Record, read_error_line: ReadErrorLine, since: str | None = None) -> str:
    """What the record of ``step`` says; ``since`` is when the attempt that is at work was claimed."""
    match record.state:
        case RecordState.NONE:
            return NEVER_RAN
        case RecordState.FINISHED:
            return f"finished before{_made_by(record.lease)}"
        case RecordState.GONE:
            return "ran, output gone"
        case RecordState.FAILED:
            return _failed(step, record, read_error_line)
        case RecordState.AT_WORK:
            return _at_work(record.lease, since)
        case RecordState.UNREADABLE:
            return _unreadable(step, record)
    return _stopped(record)


def read_stories(records: Mapping[str, Record]) -> dict[str, Story]:
    """The stories of the newest attempts of those outputs that failed or are at work, read together.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    told = {RecordState.FAILED, RecordState.AT_WORK}
    leases = {path: record.lease for path, record in records.items() if record.state in told}
    numbered = [(path, lease.attempt) for path, lease in leases.items() if lease is not None and lease.attempt]
    files = {path: attempt_path(path, number) for path, number in numbered[:MOST_STORIES]}
    found = read_contents(list(files.values()))
    return {path: _story(file, found[file]) for path, file in files.items() if file in found}


def _read_stories_or_none(records: Mapping[str, Record]) -> dict[str, Story]:
    try:
        return read_stories(records)
    except StorageError as error:  # a plan is worth more than its explanations
        logger.warning("The attempts could not be read, so the plan does not tell how steps failed: %s", error)
        return {}


def _story(file: str, found: Content) -> Story:
    try:
        attempt = parse_attempt(file, found)
    except BadAttemptError as error:
        logger.warning("%s", error)
        return Story()
    return Story(_error_line(attempt.error), _moment(attempt.started_at))


def _error_line(error: AttemptError | None) -> str | None:
    if error is None:
        return None
    lines = [line for line in error.message.splitlines() if line.strip()]
    parts = [error.type, lines[0] if lines else ""]
    return shorten(": ".join(part for part in parts if part), LONGEST_ERROR) or None


def _moment(text: str) -> str | None:
    try:
        return time_text(datetime.datetime.fromisoformat(text).timestamp()) if text else None
    except (ValueError, OverflowError):
        return None


def _failed(step: ResolvedStep, record: Record, read_error_line: ReadErrorLine) -> str:
    if record.lease is None and record.status is Status.DEP_FAILED:
        return "an input failed before"
    line = read_error_line(step.output_path)
    return f"failed before: {line}" if line else "failed before"


def _at_work(lease: Lease | None, since: str | None) -> str:
    if lease is None or lease.is_marins:
        worker = f", worker {lease.worker_id}" if lease is not None and lease.worker_id else ""
        return f"in progress in Marin's executor{worker}"
    who = producer_text(lease.by)
    parts = [
        f" in {who}" if who else "",
        f" since {since}" if since else "",
        f" on job {lease.job}" if lease.job else "",
    ]
    return f"in progress{''.join(parts)}"


def _stopped(record: Record) -> str:
    lease = record.lease
    if lease is not None and lease.phase is Phase.STOPPED:
        who = producer_text(lease.stop_requested or {})
        return f"stopped before by {who}" if who else "stopped before"
    return "started before, then lost without a word"


def _unreadable(step: ResolvedStep, record: Record) -> str:
    lease = record.lease if record.lease is not None else Lease.flawed("nobody knows why")
    return str(UnreadableLeaseError(step.output_path, lease))


def _made_by(lease: Lease | None) -> str:
    who = producer_text(lease.by) if lease is not None else ""
    return f" by {who}" if who else ""
