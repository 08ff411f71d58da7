"""Taking results away from under nobody's hands: marked first, then looked for in what is at work, then withdrawn.

A claimant lists its inputs in its attempt's file and then reads their leases again; whoever removes a result marks its
lease and then reads the files of all attempts at work. Whichever comes first, one of the two sees the other: a claimant
that finds the mark ends its turn unstarted, and a result that an attempt lists is unmarked. Nobody reuses what is
marked. A mark runs out as a lease does, so whoever died over it blocks nobody, and whoever was slow over it gives up.
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

_LEASES_AT_ONCE: Final = 500
_AT_WORK: Final = frozenset({RecordState.AT_WORK, RecordState.UNREADABLE})
"""Also where nobody can say whether somebody is."""


def withdraw(
    results: Mapping[str, Lease | None], prefixes: Collection[str], by: Mapping[str, Any]
) -> dict[str, Lease | OutputBusyError]:
    """Withdraw those of ``results`` that are not pinned and that no attempt at work below ``prefixes`` reads.

    Path → the lease that says so, or why it is not withdrawn.

    Args:
        results: Outputs, and their leases as they were seen; None where Marin's executor left none.
        by: Who withdraws them.

    Raises:
        RecordsError: It cannot be known what is read.
        StoreUnavailableError: The store does not answer. What was marked then is so for one lease's term at most.
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
    """What the attempts that these records show at work read, with all folders above, each as its ``canonical_path``.

    Raises:
        RecordsError: One of them does not say it.
    """
    at_work = {path: record.lease for path, record in records.items() if record.state in _AT_WORK}
    files = dict(_stories(at_work))
    contents = read_contents(list(files))
    read: set[str] = set()
    for file, lease in files.items():
        if file not in contents and lease.phase is Phase.CLAIMED:
            continue  # it has still to read its inputs' leases again
        for path in _places_in(file, contents.get(file, Content("", "it is gone"))):
            read.update(canonical_paths(path))
    return frozenset(read)


def paths_in(value: Any) -> Iterator[str]:
    """All texts in parsed JSON that name a place, keys too; of a chain such as ``zip://a::gs://b/c`` each part."""
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
    """One spelling for all that mean the same place, the links of local disks followed."""
    try:
        place = resolve_location(path)
    except StorageError:  # nobody opens it, so any spelling does that is the same each time
        protocol, rest = split_protocol(path)
        return f"{protocol or 'file'}:/{posixpath.normpath('/' + rest.lstrip('/'))}"
    return f"{place.store}{place.name}".rstrip("/") if "://" in place.store else f"{place.store}://{place.name}"


def canonical_paths(path: str) -> set[str]:
    """What whoever reads ``path`` needs: itself and all that it lies in, also where a link on the way leads."""
    return {canonical_path(path)}.union(
        *(self_and_parents(canonical_path(parent)) for parent in self_and_parents(path))
    )


def _records_at_work(prefixes: Collection[str]) -> dict[str, Record]:
    found = list(dict.fromkeys(path for prefix in prefixes for path in find_outputs(prefix)))
    live: list[str] = []
    for first in range(0, len(found), _LEASES_AT_ONCE):
        leases = read_leases(found[first : first + _LEASES_AT_ONCE])
        live += [path for path, lease in leases.items() if lease.is_live]
    return read_records(live)


def _stories(at_work: Mapping[str, Lease | None]) -> Iterator[tuple[str, Lease]]:
    """The files that say what is read, each with the lease of whoever reads it."""
    for path, lease in at_work.items():
        if lease is None or lease.removing is not None:
            continue  # a mark like ours reads nothing
        if lease.flaw is not None:
            raise RecordsError(f"{UnreadableLeaseError(path, lease)} So everything is kept.")
        file = posixpath.join(path, INFO_FILE) if lease.written_by_marin else attempt_path(path, lease.attempt)
        yield file, lease


def _places_in(file: str, found: Content) -> Iterable[str]:
    """What an attempt at work reads: an attempt's file says it, of Marin's executor the step info."""
    try:
        if posixpath.basename(file) == INFO_FILE:
            return paths_in(parse_info(file, found))
        attempt = parse_attempt(file, found)
    except BadRecordError as error:
        raise RecordsError(
            f"{file} should say what an attempt at work reads and cannot be read, because {error.flaw}: so everything "
            "is kept."
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
        return OutputBusyError(f"{path} is read by an attempt that is at work.")
    if is_pinned(path):
        store.unmark(marked)
        return OutputBusyError(f"{path} was pinned meanwhile.")
    if store.clock() - marked.written_at >= marked.lease.fence_s:
        store.unmark(marked)
        return OutputBusyError(f"{path} is kept: it took too long to see who reads it.")
    withdrawn = store.withdraw(marked)
    return withdrawn.lease if withdrawn is not None else OutputBusyError(f"{path} was changed meanwhile.")
