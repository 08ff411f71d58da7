"""Find and remove garbage: outputs that nothing requires and that have not changed recently.

Required are the outputs that steps of current DAGs make or read, pinned outputs, outputs of running attempts, and
everything that those were made from. Where a DAG's requirements are unknown, all outputs of its steps' names are
required. Finding garbage only reads.

An output's sources, at any depth, come from the step infos, wherever these are and may be read.

An output is removed in this order: its lease is withdrawn, so that no step reuses it; its files are removed; its lease
last.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from tradewind.plans.garbage.withdrawal import canonical_path, canonical_paths, paths_in, paths_in_use, withdraw
from tradewind.records.attempts import ATTEMPTS_FOLDER
from tradewind.records.cleanup import remove_listed
from tradewind.records.discovery import (
    MAX_CONCURRENT_LISTINGS,
    FoundOutputs,
    output_ages_s,
    own_files,
    recorded_preexisting_files,
    scan_outputs,
)
from tradewind.records.info_files import INFO_FILE, BadInfoError, info_json, parse_info
from tradewind.records.lease import LEASE_FILE, Lease, Phase, lease_path, new_owner_id
from tradewind.records.lease_store import (
    HeldLease,
    LeaseClaim,
    LeaseStore,
    OutputBusyError,
    RenewLease,
    check_still_held,
    is_in_use,
)
from tradewind.records.manifests import is_record
from tradewind.records.pins import BadPinError, folders_above, is_pinned, look_for_pins, pin_path
from tradewind.records.record import STATUS_FILE, Record, RecordState, read_records
from tradewind.steps import ResolvedStep
from tradewind.steps.paths import self_and_parents
from tradewind.storage import Roots, StorageError, file_system_at, resolve_location
from tradewind.storage.bounded_read import Content
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_contents
from tradewind.storage.swap import remove_if
from tradewind.storage.trees import StoredFile

GUARD_FILE: Final = f"{LEASE_FILE}.guard"
"""Guard file of the lease on a local disk. It stays: if two processes found it missing, each would create its own."""
_INFOS_PER_READ: Final = 500


@dataclass(frozen=True)
class Info:
    """Content of a step info that garbage collection uses."""

    name: str
    reads: frozenset[str] | None
    """Outputs and other paths that its config names; None if unknown."""
    problem: BadRecordError | None = None
    """Why the step info cannot be read."""
    inputs: frozenset[str] = frozenset()
    """The outputs of other steps among ``reads``."""


class Lineage:
    """Sources of outputs, including sources outside the prefixes.

    Attributes:
        unread: Records outside the prefixes that cannot be read, and why.
        unknown: Outputs outside the prefixes whose records must not be read.
    """

    def __init__(self, found: Sequence[str], infos: Mapping[str, Info], prefixes: frozenset[str], roots: Roots) -> None:
        """Take ``prefixes`` (``canonical_path``s), the outputs ``found`` below them, and ``infos`` already read."""
        self.unread: tuple[BadRecordError, ...] = ()
        self.unknown: tuple[str, ...] = ()
        self._outputs = {canonical_path(path): path for path in found}
        self._infos = {canonical_path(path): info for path, info in infos.items()}
        self._prefixes = prefixes
        self._roots = roots
        self._tried: set[str] = set()
        self._named: set[str] = set()

    def of(self, sources: Iterable[str]) -> set[str]:
        """Return the outputs that ``sources`` are, are inside, or were made from, at any depth.

        Return all outputs if a record among them cannot be read.
        """
        seen: set[str] = set()
        pending = list(sources)
        self._named.update(map(canonical_path, pending))
        while pending:
            reads = self._reads_of(pending, seen)
            pending = list(dict.fromkeys(path for found in reads if found is not None for path in found))
            if None in reads or self.unknown:
                return set(self._outputs.values())
        return {path for place, path in self._outputs.items() if place in seen}

    def _reads_of(self, paths: Collection[str], seen: set[str]) -> list[frozenset[str] | None]:
        """Return what ``paths`` read and the outputs that contain them, except those in ``seen``."""
        self._look_elsewhere([path for path in paths if canonical_path(path) not in seen])
        reads: list[frozenset[str] | None] = []
        for path in paths:
            known = (
                candidate
                for candidate in canonical_paths(path)
                if candidate in self._outputs or candidate in self._infos
            )
            for candidate in {canonical_path(path), *known} - seen:
                seen.add(candidate)
                if (info := self._infos.get(candidate)) is not None:
                    reads.append(info.reads)
                    self._check_followed(info)
        return reads

    def _look_elsewhere(self, paths: Iterable[str]) -> None:
        """Read the step infos of outputs outside the search that these paths are, or are inside."""
        far = {parent: None for path in paths if self._is_elsewhere(path) for parent in self_and_parents(path)}
        new = [path for path in far if canonical_path(path) not in self._tried and self._roots.allow(path)]
        self._tried.update(map(canonical_path, new))
        infos = _read_infos(new)
        self._infos |= {canonical_path(path): info for path, info in infos.items()}
        self.unread += tuple(info.problem for info in infos.values() if info.problem is not None)

    def _check_followed(self, info: Info) -> None:
        """Record the sources of an output that are outside the prefixes and below no root."""
        self._named.update(map(canonical_path, info.inputs))
        far = [path for path in sorted(info.inputs) if self._is_elsewhere(path)]
        self.unknown += tuple(path for path in far if _is_place(path) and not self._roots.allow(path))

    def _is_elsewhere(self, path: str) -> bool:
        """Whether the search did not cover this path: outside the prefixes, or an output that it did not list.

        Such an output may be inside another output or in a hidden folder.
        """
        place = canonical_path(path)
        if place in self._infos:
            return False
        is_hidden = place in self._named and place not in self._outputs
        return is_hidden or self._prefixes.isdisjoint(self_and_parents(place))


def _read_infos(paths: Sequence[str]) -> dict[str, Info]:
    """Read the step infos of these outputs; outputs without one are omitted."""
    infos: dict[str, Info] = {}
    for first in range(0, len(paths), _INFOS_PER_READ):  # version texts can be long: bound the memory
        files = {posixpath.join(path, INFO_FILE): path for path in paths[first : first + _INFOS_PER_READ]}
        for file, found in read_contents(list(files)).items():
            infos[files[file]] = _parse_info(file, found)
    return infos


def _parse_info(file: str, found: Content) -> Info:
    try:
        fields = parse_info(file, found)
    except BadInfoError as error:
        return Info("", None, error)
    named = fields.get("dependencies")
    if named is None:
        return Info(fields["name"], None)
    return Info(fields["name"], frozenset([*named, *paths_in(fields.get("config"))]), None, frozenset(named))


def _is_place(path: str) -> bool:
    """Whether an output could exist there at all."""
    try:
        return bool(resolve_location(path).name)
    except StorageError:
        return False


@dataclass
class RequiredOutputs:
    """Outputs that must be kept.

    Attributes:
        paths: Outputs, and paths in or above them.
        names: Steps all of whose outputs are kept.
        roots: Besides the prefixes, where the records of a required output's sources are read.
    """

    paths: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)

    def add_step(self, step: ResolvedStep) -> None:
        """Keep what ``step`` makes and reads, also paths in its config that belong to no step."""
        read = (*step.dependencies, *step.pseudo_dependencies)
        self.paths.update([step.output_path, *(other.output_path for other in read)])
        self.paths.update(paths_in(json.loads(info_json(step.config))))


@dataclass(frozen=True)
class Garbage:
    """An output that can be removed.

    Attributes:
        name: The step's name; empty if no record states it.
        age_s: Time since its last change.
        lease: The lease as it was read, or as it was withdrawn.
        prefix: Where it was found, and where attempts may read it.
        problem: Why it could not be withdrawn.
    """

    path: str
    name: str
    state: RecordState
    age_s: float
    bytes: int
    files: int
    lease: Lease | None = field(repr=False)
    prefix: str = ""
    problem: OutputBusyError | None = None


@dataclass(frozen=True)
class Sweep:
    """Result of a search below a prefix.

    Attributes:
        outputs: How many outputs there are.
        needed: How many of them are required.
        young: How many others changed too recently.
        unread: Records that cannot be read, and why; their outputs are kept.
        unknown: Sources of required outputs whose records are below no root; if there is any, everything is kept.
    """

    prefix: str
    outputs: int
    needed: int
    young: int
    garbage: tuple[Garbage, ...]
    unread: tuple[BadRecordError, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the total size of the garbage."""
        return sum(each.bytes for each in self.garbage)


def find_garbage_below(
    prefixes: Collection[str],
    required: RequiredOutputs,
    older_than_s: float,
    names: Collection[str] | None = None,
    *,
    also_below: Collection[str] = (),
) -> list[Sweep]:
    """Find outputs below each of ``prefixes`` that nothing requires and that are unchanged for ``older_than_s``.

    Outputs below one prefix may be sources of another's.

    Args:
        names: Restrict garbage to outputs of these steps; any step can still require an output.
        also_below: Prefixes that are not searched for garbage, but whose required outputs may be made from outputs
            here.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    scans = _scan_each((*prefixes, *also_below))
    found = [path for scan in scans.values() for path in scan.outputs]
    records, infos = read_records(found), _read_infos(found)
    pins, bad_pins = _find_pinned(scans, found)
    sources = [*required.paths, *pins]
    sources += [path for path, record in records.items() if record.state is RecordState.AT_WORK]
    sources += paths_in_use(records)
    sources += [
        path for path, info in infos.items() if info.name in required.names or (required.names and info.problem)
    ]
    lineage = Lineage(found, infos, frozenset(map(canonical_path, scans)), Roots((*required.roots, *scans)))
    needed = lineage.of(sources)
    if not all(any(_is_of(error, path) for path in found) for error in bad_pins):
        needed = set(found)  # pins keep their sources too
    search = _Search(records, infos, frozenset(needed), older_than_s, names)
    sweeps = [search.below(prefix, scans[prefix].outputs) for prefix in prefixes]
    sweeps[0] = replace(sweeps[0], unread=(*bad_pins, *lineage.unread, *sweeps[0].unread), unknown=lineage.unknown)
    return sweeps


def _scan_each(prefixes: Iterable[str]) -> dict[str, FoundOutputs]:
    """List the outputs below each prefix. An output below two prefixes, in any spelling, counts for the first."""
    scans: dict[str, FoundOutputs] = {}
    seen: set[str] = set()
    for prefix in dict.fromkeys(prefixes):
        scan = scan_outputs(prefix)
        new = {canonical_path(path): path for path in scan.outputs}
        scans[prefix] = replace(scan, outputs=tuple(path for place, path in new.items() if place not in seen))
        seen.update(new)
    return scans


@dataclass(frozen=True)
class _Search:
    """Common data of the search for garbage below each prefix."""

    records: Mapping[str, Record]
    infos: Mapping[str, Info]
    needed: frozenset[str]
    older_than_s: float
    names: Collection[str] | None

    def below(self, prefix: str, found: Sequence[str]) -> Sweep:
        infos = {path: self.infos[path] for path in found if path in self.infos}
        unread = {path: info.problem for path, info in infos.items() if info.problem is not None}
        required = self.needed.intersection(found) | unread.keys()
        others = [path for path in found if path not in required]
        if self.names is not None:
            others = [path for path in others if path in infos and infos[path].name in self.names]
        ages = output_ages_s(others)
        old = [path for path in others if ages[path] >= self.older_than_s]
        with ThreadPoolExecutor(MAX_CONCURRENT_LISTINGS) as pool:
            garbage = tuple(pool.map(lambda path: self._garbage(prefix, path, ages[path]), old))
        return Sweep(prefix, len(found), len(required), len(others) - len(old), garbage, tuple(unread.values()))

    def _garbage(self, prefix: str, path: str, age_s: float) -> Garbage:
        files = [file for file in own_files(path) if file.path != GUARD_FILE]
        size = sum(file.size for file in files)
        record, name = self.records[path], self.infos[path].name if path in self.infos else ""
        return Garbage(path, name, record.state, age_s, size, len(files), record.lease, prefix)


def _find_pinned(scans: Mapping[str, FoundOutputs], found: Sequence[str]) -> tuple[list[str], list[BadPinError]]:
    """Return the pinned outputs at these prefixes, below or above them, and the pins that cannot be read.

    An unreadable pin still names its output, so it is matched with those in ``found``.
    """
    pinned: list[str] = []
    unread: list[BadPinError] = []
    places = ([prefix.rstrip("/"), *folders_above(prefix), *scan.prefixes] for prefix, scan in scans.items())
    for folder in dict.fromkeys(folder for folders in places for folder in folders):
        pins = look_for_pins(folder)
        pinned += [pin.path for pin in pins.read]
        unread += pins.unread
    pinned += [path for path in found if any(_is_of(error, path) for error in unread)]
    return pinned, unread


def _is_of(error: BadPinError, output_path: str) -> bool:
    """Whether a pin belongs to this output, judged by its file name."""
    return posixpath.basename(error.file) == posixpath.basename(pin_path("", output_path))


def withdraw_results(
    garbage: Sequence[Garbage], by: Mapping[str, Any], also_below: Collection[str] = ()
) -> list[Garbage]:
    """Withdraw the results that are unpinned and that no running attempt reads; return all as they then are.

    One read of the running attempts serves the whole call. Pass many outputs, but at most as many as can be marked,
    checked and withdrawn in about 30 s.

    Args:
        also_below: Where attempts may be running, besides the prefixes of the garbage.

    Raises:
        RecordsError: The inputs of a running attempt are unknown.
        StoreUnavailableError: The store does not answer.
    """
    results = {each.path: each.lease for each in garbage if each.state is RecordState.FINISHED}
    ends = withdraw(results, {*also_below, *(each.prefix for each in garbage)}, by)
    after = []
    for each in garbage:
        end = ends.get(each.path)
        if isinstance(end, OutputBusyError):
            each = replace(each, problem=end)
        elif end is not None:
            each = replace(each, state=RecordState.STOPPED, lease=end)
        after.append(each)
    return after


def remove_garbage(garbage: Garbage, by: Mapping[str, Any], renew: RenewLease) -> None:
    """Remove an output: withdraw its lease, remove its files, then its lease.

    Raises:
        OutputBusyError: It is required now: pinned, made again, or claimed by an attempt.
        LeaseLostError: A claimer took the lease during the removal; the remaining files are its own.
    """
    if is_pinned(garbage.path):
        raise OutputBusyError(f"{garbage.path} was pinned meanwhile.")
    if garbage.problem is None and garbage.state is RecordState.FINISHED:
        [garbage] = withdraw_results([garbage], by)
    if garbage.problem is not None:
        raise garbage.problem
    store = LeaseStore(garbage.path)
    held = _claim_removal(store, garbage, by)
    with renew(store, held) as lease:
        check_still_held(lease)
        if is_pinned(garbage.path):  # a later pin sees this lease and is refused
            lease.finish(phase=Phase.STOPPED)
            raise OutputBusyError(f"{garbage.path} was pinned meanwhile: its files stay.")
        files = _list_removable(garbage)
        files.sort(key=lambda file: file.path != STATUS_FILE)  # first, since Marin's executor relies on it
        is_attempt = [file.path.startswith(f"{ATTEMPTS_FOLDER}/") for file in files]  # they name the pre-existing files
        for attempts in (False, True):
            these = [file for file, is_of_attempt in zip(files, is_attempt, strict=True) if is_of_attempt is attempts]
            remove_listed(garbage.path, these, lambda: check_still_held(lease))
        _remove_empty_folders(garbage.path)
        last = lease.finish()  # right before the last file goes, so that the lease is certainly held
        remove_if(lease_path(garbage.path), last.tag)


def _list_removable(garbage: Garbage) -> list[StoredFile]:
    """Return the files to remove: the records and everything that is not a pre-existing file."""
    files = [file for file in own_files(garbage.path) if file.path not in (LEASE_FILE, GUARD_FILE)]
    found = recorded_preexisting_files(garbage.path, garbage.lease)
    if found is None:  # pre-existing files are unknown, so only records go
        return [file for file in files if is_record(file.path)]
    return [file for file in files if file.path not in found or is_record(file.path)]


def _claim_removal(store: LeaseStore, garbage: Garbage, by: Mapping[str, Any]) -> HeldLease:
    seen = store.read()
    if is_in_use(seen) or (seen.lease if seen else None) != garbage.lease:
        raise OutputBusyError(f"{garbage.path} was changed meanwhile.")
    lease = garbage.lease
    claim = LeaseClaim(1 + (lease.attempt if lease else 0), "", "", by, lease.version if lease else "")
    held = store.claim(seen, claim)
    if held is None:
        raise OutputBusyError(f"{garbage.path} was changed meanwhile.")
    return store.change(held, phase=Phase.RUNNING, incarnation=new_owner_id())


def _remove_empty_folders(output_path: str) -> None:
    """Remove folders inside the output that became empty, on a local disk."""
    fs, name = file_system_at(output_path)
    if isinstance(fs, LocalFileSystem):
        for folder, _, _ in os.walk(name, topdown=False):
            with suppress(OSError):  # not empty
                os.rmdir(folder)
