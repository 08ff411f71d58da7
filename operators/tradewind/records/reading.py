"""What the store says of many outputs, in a few rounds of requests that are each asked together.

Round one reads all leases. Round two reads what the leases leave open: the age of those that are live, once more those
that cannot be read, whether the witness of those that are committed is there, and the status where there is no lease of
ours. Only outputs without any witness, which Marin made, cost a listing of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from tradewind.records.leases.lease import Lease, Phase, lease_path
from tradewind.records.record import Record
from tradewind.records.status import STATUS_FILE, NoStatus, Status, read_statuses
from tradewind.storage.bounded import SMALL
from tradewind.storage.files import existing_below, list_names, read_contents
from tradewind.storage.swap import read_stored

MOST_AT_ONCE = 32
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
    foreign = [path for path, record in records.items() if record.lease is None or record.lease.is_marins]
    statuses = read_statuses(foreign)
    for path in foreign:
        status = statuses.get(path)
        records[path] = (
            Record(lease=Lease.flawed(status.flaw, STATUS_FILE))
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
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
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
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        found_names = zip(without, pool.map(list_names, without), strict=True)
        there.update(path for path, names in found_names if not all(name.startswith(_RECORDS) for name in names))
    return there
