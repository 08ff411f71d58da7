"""What the store says of an output: one value, made of its lease, its status and whether its files are there."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.storage.bounded_read import SMALL
from tradewind.storage.files import existing_below, list_names, read_contents, write_text
from tradewind.storage.swap import read_stored

# The status of an output: one token in ``.executor_status`` beside it, as E20 writes it.

STATUS_FILE = ".executor_status"


class Status(Enum):
    """What the last run of a step left behind."""

    SUCCESS = "SUCCESS"
    """The output is whole: read it, never make it again."""
    FAILED = "FAILED"
    """The function raised; what lies there is not a result."""
    RUNNING = "RUNNING"
    """Someone is at work, or died at it; what lies there is not a result."""
    DEP_FAILED = "DEP_FAILED"
    """An input failed (older executors wrote this)."""


@dataclass(frozen=True)
class NoStatus:
    """What lies in the place of a status and is none.

    Attributes:
        flaw: Why, in words that follow "because".
    """

    flaw: str


def status_path(output_path: str) -> str:
    """Where the status of ``output_path`` lies."""
    return posixpath.join(output_path, STATUS_FILE)


def read_status(output_path: str) -> Status | None:
    """The status of one output, or None when there is none, or what is there is no status."""
    found = read_statuses([output_path]).get(output_path)
    return found if isinstance(found, Status) else None


def read_statuses(output_paths: Sequence[str]) -> dict[str, Status | NoStatus]:
    """The statuses of those outputs that have one, and of those where something else lies in its place, why."""
    found = read_contents([status_path(path) for path in output_paths], SMALL)
    statuses: dict[str, Status | NoStatus] = {}
    for file, content in found.items():
        status = NoStatus(content.flaw) if content.flaw is not None else parse_status(content.text)
        if status is not None:
            statuses[posixpath.dirname(file)] = status
    return statuses


def write_status(output_path: str, status: Status) -> None:
    """Replace the status of ``output_path``."""
    write_text(status_path(output_path), status.value)


def parse_status(text: str) -> Status | None:
    """The status in a file's text; files of before February 2026 hold one JSON event a line, the last one counts.

    None for an empty file and for words that mean nothing here, such as the old ``WAITING``.
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
    """What an output is to whoever comes."""

    NONE = "none"
    """Nobody ever was at work here."""
    FINISHED = "finished"
    """It is a result."""
    GONE = "gone"
    """It was a result, but its files are gone, or damaged."""
    FAILED = "failed"
    """The last attempt's function failed."""
    STOPPED = "stopped"
    """The last attempt was stopped or lost, or died long ago without a word."""
    AT_WORK = "at work"
    """Somebody is at work, or was until less than a lease's term ago."""
    UNREADABLE = "unreadable lease"
    """Nobody can say which of these it is; a person has to look."""


@dataclass(frozen=True)
class Record:
    """One output.

    Attributes:
        status: The token in ``.executor_status``.
        lease: The lease, if there is one.
        lease_age_s: How long ago the store took the lease's last write, by the store's own clock.
        has_output: Whether the lease's witness (or, for Marin's outputs, any file) is there; False if not looked for.
        is_damaged: It is there, but not as it was committed, as far as a full check was made.
    """

    status: Status | None = None
    lease: Lease | None = None
    lease_age_s: float = 0.0
    has_output: bool = False
    is_damaged: bool = False

    @property
    def state(self) -> RecordState:
        """The lease decides; the status counts only where no lease of ours does."""
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
        """Whether it is a result by the rules of Marin's executor, which knows neither leases of ours nor digests."""
        return self.status is Status.SUCCESS and self.has_output

    @property
    def is_being_removed(self) -> bool:
        """Whether somebody is about to remove it, or was until less than a lease's term ago."""
        return self.lease is not None and self.lease.removing is not None and self.lease_age_s <= self.lease.stale_s

    @property
    def is_stale(self) -> bool:
        """Whether the lease's owner, if it lives, has ended itself by now."""
        return self.lease is not None and self.lease.is_live and self.lease_age_s > self.lease.stale_s

    def _state_by_marins_rules(self) -> RecordState:
        if self.status is Status.SUCCESS:
            return RecordState.FINISHED if self.has_output else RecordState.GONE
        if self.lease is not None and not self.is_stale:
            return RecordState.AT_WORK
        if self.status in (Status.FAILED, Status.DEP_FAILED):
            return RecordState.FAILED
        return RecordState.STOPPED if self.status is Status.RUNNING else RecordState.NONE


# What the store says of many outputs, in a few rounds of requests that are each asked together.
#
# Round one reads all leases. Round two reads what the leases leave open: the age of those that are live, once more
# those that cannot be read, whether the witness of those that are committed is there, and the status where there is no
# lease of ours. Only outputs without any witness, which Marin made, cost a listing of their own.

MAX_CONCURRENT_READS = 32
_RECORDS: Final = (".executor_", ".attempts", ".manifest.json")
"""How the names of records begin, at the top of an output's folder."""


def read_records(output_paths: Sequence[str]) -> dict[str, Record]:
    """The record of each output, also of those that have none.

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
    there = _with_output(records)
    return {path: replace(record, has_output=path in there) for path, record in records.items()}


def read_leases(output_paths: Sequence[str]) -> dict[str, Lease]:
    """The leases of those outputs that have one, also if it cannot be read.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    found = read_contents([lease_path(path) for path in output_paths], SMALL)
    return {path: Lease.of(found[file]) for path in output_paths if (file := lease_path(path)) in found}


def read_record(output_path: str) -> Record:
    """The record of one output."""
    return read_records([output_path])[output_path]


def _aged(paths: Sequence[str]) -> dict[str, Record]:
    """The records of leases whose age counts, as they are now: somebody was at work or removing a moment ago."""
    with ThreadPoolExecutor(MAX_CONCURRENT_READS) as pool:
        found = zip(paths, pool.map(read_stored, map(lease_path, paths)), strict=True)
        return {
            path: Record(lease=Lease.of(stored), lease_age_s=stored.age_s) if stored else Record()
            for path, stored in found
        }


def _with_output(records: dict[str, Record]) -> set[str]:
    witnesses: dict[str, str] = {}
    without: list[str] = []
    there: set[str] = set()
    for path, record in records.items():
        if record.lease is not None and record.lease.phase is Phase.COMMITTED:
            if record.lease.witness:
                witnesses[path] = record.lease.witness
            else:
                there.add(path)  # a step that leaves no file has nothing to lose
        elif record.status is Status.SUCCESS:
            without.append(path)
    there |= existing_below(witnesses)
    with ThreadPoolExecutor(MAX_CONCURRENT_READS) as pool:
        found_names = zip(without, pool.map(list_names, without), strict=True)
        there.update(path for path, names in found_names if not all(name.startswith(_RECORDS) for name in names))
    return there
