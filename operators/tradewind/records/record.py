"""The record of an output: its lease, its status, and whether its files exist.

The status is one token in ``.executor_status`` beside the output, as E20 writes it.

``read_records`` reads many outputs in a few rounds of concurrent requests. Round one reads all leases. Round two reads
what these leave open: the age of live leases, unreadable leases once more, whether the sentinel files of committed ones
exist, and the status where there is no lease of Tradewind's. Only outputs without a sentinel file, which Marin made,
cost a listing each.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.storage.bounded_read import SMALL
from tradewind.storage.confinement import confined_threads
from tradewind.storage.files import existing_below, list_names, read_contents, write_text
from tradewind.storage.swap import read_stored

STATUS_FILE = ".executor_status"
MAX_CONCURRENT_READS = 32
_RECORD_PREFIXES: Final = (".executor_", ".attempts", ".manifest.json")
"""Beginnings of the names of records, at the top of an output's folder."""


class Status(Enum):
    """Status of an output after the last run of its step."""

    SUCCESS = "SUCCESS"
    """The output is complete: read it, never make it again."""
    FAILED = "FAILED"
    """The function raised; the files are not a result."""
    RUNNING = "RUNNING"
    """An attempt is running, or died; the files are not a result."""
    DEP_FAILED = "DEP_FAILED"
    """An input failed (older executors wrote this)."""


@dataclass(frozen=True)
class NoStatus:
    """Content of a status file that is not a status.

    Attributes:
        flaw: Why not, in words that follow "because".
    """

    flaw: str


def status_path(output_path: str) -> str:
    """Return the path of the status of ``output_path``."""
    return posixpath.join(output_path, STATUS_FILE)


def read_status(output_path: str) -> Status | None:
    """Return the status of one output, or None if the file is missing or is not a status."""
    status = read_statuses([output_path]).get(output_path)
    return status if isinstance(status, Status) else None


def read_statuses(output_paths: Sequence[str]) -> dict[str, Status | NoStatus]:
    """Return the statuses of the outputs that have one, and ``NoStatus`` for unreadable status files."""
    contents = read_contents([status_path(path) for path in output_paths], SMALL)
    statuses: dict[str, Status | NoStatus] = {}
    for file, content in contents.items():
        status = NoStatus(content.flaw) if content.flaw is not None else parse_status(content.text)
        if status is not None:
            statuses[posixpath.dirname(file)] = status
    return statuses


def write_status(output_path: str, status: Status) -> None:
    """Replace the status of ``output_path``."""
    write_text(status_path(output_path), status.value)


def parse_status(text: str) -> Status | None:
    """Return the status in a file's text, or None for an empty file and unknown words, such as the old ``WAITING``.

    Files of before February 2026 hold one JSON event a line; the last one counts.
    """
    token = ""
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = line.strip()
        candidate = event.get("status") if isinstance(event, dict) else event
        token = candidate if isinstance(candidate, str) and candidate else token
    return Status(token) if token in Status.__members__ else None


class RecordState(Enum):
    """State of an output, for a process that wants to use or make it."""

    NONE = "none"
    """There was never an attempt."""
    FINISHED = "finished"
    """It is a result."""
    GONE = "gone"
    """It was a result, but its files are gone or damaged."""
    FAILED = "failed"
    """The last attempt's function failed."""
    STOPPED = "stopped"
    """The last attempt was stopped or lost, or died and its lease is stale."""
    AT_WORK = "at work"
    """A process makes or removes it, by a lease that is not stale."""
    UNREADABLE = "unreadable lease"
    """The state is unknown; a user has to look at the lease."""


@dataclass(frozen=True)
class Record:
    """Record of one output.

    Attributes:
        status: The token in ``.executor_status``.
        lease: The lease, if there is one.
        lease_age_s: Seconds since the store took the lease's last write, by the store's clock.
        has_output: Whether the sentinel file (for Marin's outputs, any file) exists; False if not checked.
        is_damaged: A full check found that the output differs from what was committed.
    """

    status: Status | None = None
    lease: Lease | None = None
    lease_age_s: float = 0.0
    has_output: bool = False
    is_damaged: bool = False

    @property
    def state(self) -> RecordState:
        """The state by the lease; the status counts only if there is no lease, or one of Marin's."""
        if self.lease is not None and self.lease.flaw is not None:
            return RecordState.UNREADABLE
        if self.is_being_removed:
            return RecordState.AT_WORK
        if self.lease is None or self.lease.written_by_marin:
            return self._state_by_marins_rules()
        match self.lease.phase:
            case Phase.COMMITTED:
                return RecordState.FINISHED if self.has_output and not self.is_damaged else RecordState.GONE
            case Phase.FAILED:
                return RecordState.FAILED
            case Phase.STOPPED:
                return RecordState.STOPPED
        return RecordState.STOPPED if self.is_stale else RecordState.AT_WORK

    @property
    def is_marin_result(self) -> bool:
        """Whether it is a result by the rules of Marin's executor, which has no phases and no digests."""
        return self.status is Status.SUCCESS and self.has_output

    @property
    def is_being_removed(self) -> bool:
        """Whether a process is about to remove it, by a mark that is not stale."""
        return self.lease is not None and self.lease.removing is not None and self.lease_age_s <= self.lease.stale_s

    @property
    def is_stale(self) -> bool:
        """Whether the lease is so old that its owner has ended itself, if it was alive."""
        return self.lease is not None and self.lease.is_live and self.lease_age_s > self.lease.stale_s

    def _state_by_marins_rules(self) -> RecordState:
        if self.status is Status.SUCCESS:
            return RecordState.FINISHED if self.has_output else RecordState.GONE
        if self.lease is not None and not self.is_stale:
            return RecordState.AT_WORK
        if self.status in (Status.FAILED, Status.DEP_FAILED):
            return RecordState.FAILED
        return RecordState.STOPPED if self.status is Status.RUNNING else RecordState.NONE


def read_records(output_paths: Sequence[str]) -> dict[str, Record]:
    """Return the record of each output, an empty one for outputs without.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    leases = read_leases(output_paths)
    records = {path: Record(lease=leases.get(path)) for path in output_paths}
    records |= _aged([path for path, lease in leases.items() if lease.is_live or lease.removing is not None])
    foreign = [path for path, record in records.items() if record.lease is None or record.lease.written_by_marin]
    statuses = read_statuses(foreign)
    for path in foreign:
        status = statuses.get(path)
        records[path] = (
            Record(lease=Lease.as_unreadable(status.flaw, STATUS_FILE))
            if isinstance(status, NoStatus)
            else replace(records[path], status=status)
        )
    existing = _with_output(records)
    return {path: replace(record, has_output=path in existing) for path, record in records.items()}


def read_leases(output_paths: Sequence[str]) -> dict[str, Lease]:
    """Return the leases of the outputs that have one, even an unreadable one.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    contents = read_contents([lease_path(path) for path in output_paths], SMALL)
    return {path: Lease.of(contents[file]) for path in output_paths if (file := lease_path(path)) in contents}


def read_record(output_path: str) -> Record:
    """Return the record of one output."""
    return read_records([output_path])[output_path]


def _aged(paths: Sequence[str]) -> dict[str, Record]:
    """Read the leases whose age counts once more, since they may have changed since round one."""
    with confined_threads(MAX_CONCURRENT_READS) as pool:
        leases = zip(paths, pool.map(read_stored, map(lease_path, paths)), strict=True)
        return {
            path: Record(lease=Lease.of(stored), lease_age_s=stored.age_s) if stored else Record()
            for path, stored in leases
        }


def _with_output(records: dict[str, Record]) -> set[str]:
    """Return the paths of results whose files exist."""
    sentinels: dict[str, str] = {}
    unlisted: list[str] = []
    existing: set[str] = set()
    for path, record in records.items():
        if record.lease is not None and record.lease.phase is Phase.COMMITTED:
            if record.lease.witness:
                sentinels[path] = record.lease.witness
            else:
                existing.add(path)  # a step that leaves no file has nothing to lose
        elif record.status is Status.SUCCESS:
            unlisted.append(path)
    existing |= existing_below(sentinels)
    with confined_threads(MAX_CONCURRENT_READS) as pool:
        listings = zip(unlisted, pool.map(list_names, unlisted), strict=True)
        existing.update(
            path for path, names in listings if not all(name.startswith(_RECORD_PREFIXES) for name in names)
        )
    return existing
