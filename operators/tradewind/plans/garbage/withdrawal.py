"""Withdraw results that no running attempt reads: mark, check running attempts, withdraw.

A claimer lists its inputs in its attempt's file, then reads their leases again. The garbage collector marks a result's
lease, then reads the files of all running attempts. So in any order, at least one of them sees the other: a claimer
that finds the mark ends its attempt before the start, and the collector unmarks a result that an attempt lists. No step
reuses a marked result. A mark expires like a lease: a collector that died blocks nothing, and a slow one gives up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fsspec.core import split_protocol

from tradewind.records.attempts import attempt_path, parse_attempt
from tradewind.records.discovery import MAX_CONCURRENT_LISTINGS, find_outputs
from tradewind.records.info_files import INFO_FILE, parse_info
from tradewind.records.lease import Lease, Phase, UnreadableLeaseError
from tradewind.records.lease_store import HeldLease, LeaseStore, OutputBusyError
from tradewind.records.pins import is_pinned
from tradewind.records.record import Record, RecordState, read_leases, read_records
from tradewind.steps.paths import is_absolute, self_and_parents
from tradewind.storage import StorageError, resolve_location
from tradewind.storage.bounded_read import Content
from tradewind.storage.errors import BadRecordError, RecordsError
from tradewind.storage.files import read_contents

_LEASES_PER_READ: Final = 500
_AT_WORK: Final = frozenset({RecordState.AT_WORK, RecordState.UNREADABLE})
"""Unreadable leases too: their attempts may be running."""


def withdraw(
    results: Mapping[str, Lease | None], prefixes: Collection[str], by: Mapping[str, Any]
) -> dict[str, Lease | OutputBusyError]:
    """Withdraw the unpinned ``results`` that no running attempt below ``prefixes`` reads.

    Return path → the withdrawn lease, or why the result is not withdrawn.

    Args:
        results: Outputs, and their leases as they were read; None for outputs of Marin's executor.
        by: The producer that withdraws them.

    Raises:
        RecordsError: The inputs of a running attempt are unknown.
        StoreUnavailableError: The store does not answer. Marks expire after at most one lease term.
    """
    with ThreadPoolExecutor(MAX_CONCURRENT_LISTINGS) as pool:
        paths = list(results)
        marks = dict(zip(paths, pool.map(lambda path: _mark(path, results[path], by), paths), strict=True))
        marked = {path: held for path, held in marks.items() if held is not None}
        try:
            read = paths_in_use(_records_at_work(prefixes)) if marked else frozenset()
        except StorageError:
            list(pool.map(lambda path: LeaseStore(path).unmark(marked[path]), marked))
            raise
        ends = pool.map(lambda path: _end(path, marks[path], is_read=canonical_path(path) in read), paths)
        return dict(zip(paths, ends, strict=True))


def paths_in_use(records: Mapping[str, Record]) -> frozenset[str]:
    """Return what the running attempts in these records read, and all folders above, as ``canonical_path``s.

    Raises:
        RecordsError: An attempt does not state its inputs.
    """
    at_work = {path: record.lease for path, record in records.items() if record.state in _AT_WORK}
    files = dict(_input_files(at_work))
    contents = read_contents(list(files))
    read: set[str] = set()
    for file, lease in files.items():
        if file not in contents and lease.phase is Phase.CLAIMED:
            continue  # the claimer reads its inputs' leases again before it starts
        for path in _paths_read(file, contents.get(file, Content("", "it is gone"))):
            read.update(canonical_paths(path))
    return frozenset(read)


def paths_in(value: Any) -> Iterator[str]:
    """Return all texts and keys in parsed JSON that are paths; of chains like ``zip://a::gs://b/c`` each part."""
    pending = [value]
    while pending:
        match pending.pop():
            case str() as text if "::" in text:
                pending.extend(text.split("::"))
            case str() as text if is_absolute(text):
                yield text
            case dict() as fields:
                pending.extend([*fields, *fields.values()])
            case list() as items:
                pending.extend(items)


def canonical_path(path: str) -> str:
    """Return one spelling for all spellings of a path, with links of local disks followed."""
    try:
        place = resolve_location(path)
    except StorageError:  # unusable path: any stable spelling does
        protocol, rest = split_protocol(path)
        return f"{protocol or 'file'}:/{posixpath.normpath('/' + rest.lstrip('/'))}"
    return f"{place.store}{place.name}".rstrip("/") if "://" in place.store else f"{place.store}://{place.name}"


def canonical_paths(path: str) -> set[str]:
    """Return everything a reader of ``path`` requires: it, its parents, and where links on the way lead."""
    return {canonical_path(path)}.union(
        *(self_and_parents(canonical_path(parent)) for parent in self_and_parents(path))
    )


def _records_at_work(prefixes: Collection[str]) -> dict[str, Record]:
    found = list(dict.fromkeys(path for prefix in prefixes for path in find_outputs(prefix)))
    live: list[str] = []
    for first in range(0, len(found), _LEASES_PER_READ):
        leases = read_leases(found[first : first + _LEASES_PER_READ])
        live += [path for path, lease in leases.items() if lease.is_live]
    return read_records(live)


def _input_files(at_work: Mapping[str, Lease | None]) -> Iterator[tuple[str, Lease]]:
    """Return the files that state what is read, each with the reader's lease."""
    for path, lease in at_work.items():
        if lease is None or lease.removing is not None:
            continue  # a withdrawal mark reads nothing
        if lease.flaw is not None:
            raise RecordsError(f"{UnreadableLeaseError(path, lease)} So everything is kept.")
        file = posixpath.join(path, INFO_FILE) if lease.written_by_marin else attempt_path(path, lease.attempt)
        yield file, lease


def _paths_read(file: str, found: Content) -> Iterable[str]:
    """Return what a running attempt reads, from its attempt's file or, for Marin's executor, the step info."""
    try:
        if posixpath.basename(file) == INFO_FILE:
            return paths_in(parse_info(file, found))
        attempt = parse_attempt(file, found)
    except BadRecordError as error:
        raise RecordsError(
            f"{file}, which lists the inputs of a running attempt, cannot be read, because {error.flaw}: everything is "
            "kept."
        ) from error
    return [*attempt.inputs, *paths_in(attempt.spec), *paths_in(dict(attempt.by))]


def _mark(path: str, seen: Lease | None, by: Mapping[str, Any]) -> HeldLease | None:
    store = LeaseStore(path)
    held = store.read()
    return store.mark_removing(held, by) if (held.lease if held else None) == seen else None


def _end(path: str, marked: HeldLease | None, *, is_read: bool) -> Lease | OutputBusyError:
    if marked is None:
        return OutputBusyError(f"{path} was changed meanwhile.")
    store = LeaseStore(path)
    if is_read:
        store.unmark(marked)
        return OutputBusyError(f"{path} is read by a running attempt.")
    if is_pinned(path):
        store.unmark(marked)
        return OutputBusyError(f"{path} was pinned meanwhile.")
    if store.clock() - marked.written_at >= marked.lease.fence_s:
        store.unmark(marked)
        return OutputBusyError(f"{path} is kept: the search for its readers took too long.")
    withdrawn = store.withdraw(marked)
    return withdrawn.lease if withdrawn is not None else OutputBusyError(f"{path} was changed meanwhile.")
