"""Garbage: outputs that nobody needs any more and that have not changed for long.

Needed is what the current DAGs' steps make or read, what is pinned, what somebody is at work on, and whatever was read
to make any of that. Where it cannot be known what a DAG needs, all outputs of its steps' names count as needed. Finding
garbage reads only; what is removed is withdrawn by its lease first, and its lease goes last.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from tradewind.plans.withdrawal import paths_in, reads_at_work, spot, withdraw
from tradewind.records.attempts import ATTEMPTS_FOLDER
from tradewind.records.conditional import remove_if
from tradewind.records.errors import BadRecordError
from tradewind.records.files import StoredFile
from tradewind.records.found_files import found_by_record
from tradewind.records.holding import Keep, OutputBusyError, check_goes_on, is_taken
from tradewind.records.lease_store import Claim, Held, LeaseStore
from tradewind.records.leases import LEASE_FILE, Lease, Phase, lease_path, new_owner
from tradewind.records.manifests import is_record
from tradewind.records.outputs import MOST_AT_ONCE, Below, look_below, output_ages_s, own_files
from tradewind.records.pins import BadPinError, folders_above, is_pinned, look_for_pins, pin_path
from tradewind.records.reading import read_records
from tradewind.records.record import Record, RecordState
from tradewind.records.removal import remove_listed
from tradewind.records.status import STATUS_FILE
from tradewind.records.step_info import INFO_FILE, BadInfoError, info_json, parse_info
from tradewind.records.store import read_contents
from tradewind.records.stores.bounded import Content
from tradewind.steps import ResolvedStep
from tradewind.steps.paths import self_and_parents
from tradewind.storage import file_system_at

_INFOS_AT_ONCE: Final = 500
_GUARD_FILE: Final = f"{LEASE_FILE}.guard"
"""What guards the lease on a local disk. It stays: of two processes that find it gone, each would make its own."""


@dataclass
class Needs:
    """What must be kept.

    Attributes:
        paths: Outputs, and paths in or above them.
        names: Steps all of whose outputs are kept.
    """

    paths: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add_step(self, step: ResolvedStep) -> None:
        """Keep what ``step`` makes and reads, also where its config names a path and no step."""
        read = (*step.dependencies, *step.pseudo_dependencies)
        self.paths.update([step.output_path, *(one.output_path for one in read)])
        self.paths.update(paths_in(json.loads(info_json(step.config))))


@dataclass(frozen=True)
class Garbage:
    """An output that can go.

    Attributes:
        name: The step's; empty where no record says it.
        age_s: How long nothing has changed.
        lease: The lease as it was seen, or as it was withdrawn.
        prefix: Below which it was found, and below which attempts may read it.
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
    """What was found below a prefix.

    Attributes:
        outputs: How many outputs there are.
        needed: How many of them are needed.
        young: How many others have changed too recently.
        unread: The records that cannot be read, and why; what they are of is kept.
    """

    prefix: str
    outputs: int
    needed: int
    young: int
    garbage: tuple[Garbage, ...]
    unread: tuple[BadRecordError, ...] = ()

    @property
    def bytes(self) -> int:
        """What all of the garbage holds."""
        return sum(each.bytes for each in self.garbage)


@dataclass(frozen=True)
class _Info:
    """What the garbage collector reads in a step info."""

    name: str
    reads: frozenset[str] | None
    """None if it does not say."""
    problem: BadRecordError | None = None
    """Why it cannot be read."""


def find_garbage(prefix: str, needs: Needs, older_than_s: float, names: Collection[str] | None = None) -> Sweep:
    """The outputs below ``prefix`` that nobody needs and that have not changed for ``older_than_s``.

    Args:
        names: Only outputs of these steps are garbage; needed is what any step needs.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    below = look_below(prefix)
    found = below.outputs
    records, infos = read_records(found), _read_infos(found)
    pins, bad_pins = _pinned(prefix, below)
    roots = [*needs.paths, *pins]
    roots += [path for path, record in records.items() if record.state is RecordState.AT_WORK]
    roots += reads_at_work(records)
    roots += [path for path, info in infos.items() if info.name in needs.names or (needs.names and info.problem)]
    needed = needed_outputs(found, roots, infos | _read_infos(_within(roots, found)))
    if not all(_is_of_one(error, found) for error in bad_pins):
        needed = set(found)  # whatever it pins was made from some of these
    unread = {path: info.problem for path, info in infos.items() if info.problem is not None}
    spare = [path for path in found if path not in needed and path not in unread]
    if names is not None:
        spare = [path for path in spare if path in infos and infos[path].name in names]
    ages = output_ages_s(spare)
    old = [path for path in spare if ages[path] >= older_than_s]
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        garbage = pool.map(lambda path: _garbage(prefix, path, records[path], infos.get(path), ages[path]), old)
        problems = (*bad_pins, *unread.values())
        kept = len(needed | unread.keys())
        return Sweep(prefix, len(found), kept, len(spare) - len(old), tuple(garbage), problems)


def needed_outputs(found: Sequence[str], roots: Iterable[str], infos: Mapping[str, _Info]) -> set[str]:
    """Those of the outputs ``found`` that ``roots`` are, lie in, or were made from, at any depth.

    All of them, where it cannot be read what one of these was made from.
    """
    outputs = {spot(path): path for path in found}
    infos_by_spot = {spot(path): info for path, info in infos.items()}
    seen: set[str] = set()
    pending = [spot(path) for path in roots]
    while pending:
        place = pending.pop()
        for one in {place, *(parent for parent in self_and_parents(place) if parent in outputs)}:
            if one in seen:
                continue
            seen.add(one)
            reads = infos_by_spot[one].reads if one in infos_by_spot else frozenset()
            if reads is None:
                return set(found)
            pending.extend(map(spot, reads))
    return {path for place, path in outputs.items() if place in seen}


def _within(roots: Iterable[str], found: Collection[str]) -> list[str]:
    """Those of ``roots`` that lie within an output: they may be outputs too, which nobody looked for there."""
    outputs = {spot(path) for path in found}
    return [path for path in roots if outputs.intersection(islice(self_and_parents(spot(path)), 1, None))]


def withdraw_results(
    garbage: Sequence[Garbage], by: Mapping[str, Any], also_below: Collection[str] = ()
) -> list[Garbage]:
    """Withdraw those that are results, not pinned, and read by no attempt at work; all of them as they are then.

    One look at what is at work serves all of them, so they should be many, but not more than can be marked, looked for
    and withdrawn within half a minute or so.

    Args:
        also_below: Where attempts may be at work, besides the prefixes at which they were found.

    Raises:
        UnreadableRecordError: It cannot be known what is read.
        StoreUnavailableError: The store does not answer.
    """
    results = {each.path: each.lease for each in garbage if each.state is RecordState.FINISHED}
    ends = withdraw(results, {*also_below, *(each.prefix for each in garbage)}, by)
    return [_after(each, ends.get(each.path)) for each in garbage]


def remove_garbage(garbage: Garbage, by: Mapping[str, Any], keep: Keep) -> None:
    """Remove an output: withdraw it, so that nobody reuses what is half gone, then its files, and its lease last.

    Raises:
        OutputBusyError: It is needed now: somebody has pinned it, made it again, or is at work on it.
        LeaseLostError: Somebody took the turn while files were removed; what is left is theirs.
    """
    if is_pinned(garbage.path):
        raise OutputBusyError(f"{garbage.path} was pinned meanwhile.")
    if garbage.problem is None and garbage.state is RecordState.FINISHED:
        [garbage] = withdraw_results([garbage], by)
    if garbage.problem is not None:
        raise garbage.problem
    store = LeaseStore(garbage.path)
    held = _withdrawn(store, garbage, by)
    with keep(store, held) as turn:
        check_goes_on(turn)
        if is_pinned(garbage.path):  # who pins it from now on sees this turn, and is refused
            turn.finish(phase=Phase.STOPPED)
            raise OutputBusyError(f"{garbage.path} was pinned meanwhile: its files stay.")
        files = _own_and_not_found(garbage)
        files.sort(key=lambda file: file.path != STATUS_FILE)  # first, since it is what Marin's executor believes
        is_attempt = [file.path.startswith(f"{ATTEMPTS_FOLDER}/") for file in files]  # they say what to leave alone
        for attempts in (False, True):
            these = [file for file, one in zip(files, is_attempt, strict=True) if one is attempts]
            remove_listed(garbage.path, these, lambda: check_goes_on(turn))
        _remove_empty_folders(garbage.path)
        last = turn.finish()  # right before the last file goes, so that it is surely ours
        remove_if(lease_path(garbage.path), last.tag)


def _own_and_not_found(garbage: Garbage) -> list[StoredFile]:
    """What to remove: the records, and all that was not there before the first attempt."""
    files = [file for file in own_files(garbage.path) if file.path not in (LEASE_FILE, _GUARD_FILE)]
    found = found_by_record(garbage.path, garbage.lease)
    if found is None:  # nobody can say what was there before, so what is no record stays
        return [file for file in files if is_record(file.path)]
    return [file for file in files if file.path not in found or is_record(file.path)]


def _after(garbage: Garbage, end: Lease | OutputBusyError | None) -> Garbage:
    if isinstance(end, OutputBusyError):
        return replace(garbage, problem=end)
    return replace(garbage, state=RecordState.STOPPED, lease=end) if end is not None else garbage


def _pinned(prefix: str, below: Below) -> tuple[list[str], list[BadPinError]]:
    """What is pinned here, or at a prefix that lies below this one or above it; and the pins that do not say what.

    A pin that cannot be read is still named for its output, which is so found among those below.
    """
    pinned: list[str] = []
    unread: list[BadPinError] = []
    for folder in dict.fromkeys([prefix.rstrip("/"), *folders_above(prefix), *below.prefixes]):
        pins = look_for_pins(folder)
        pinned += [pin.path for pin in pins.read]
        unread += pins.unread
    pinned += [path for path in below.outputs if any(_is_of(error, path) for error in unread)]
    return pinned, unread


def _is_of(error: BadPinError, output_path: str) -> bool:
    """Whether a pin is that of this output, as far as its name says."""
    return posixpath.basename(error.file) == posixpath.basename(pin_path("", output_path))


def _is_of_one(error: BadPinError, found: Iterable[str]) -> bool:
    return any(_is_of(error, path) for path in found)


def _withdrawn(store: LeaseStore, garbage: Garbage, by: Mapping[str, Any]) -> Held:
    seen = store.read()
    if is_taken(seen) or (seen.lease if seen else None) != garbage.lease:
        raise OutputBusyError(f"{garbage.path} was changed meanwhile.")
    lease = garbage.lease
    claim = Claim(1 + (lease.attempt if lease else 0), "", "", by, lease.version if lease else "")
    held = store.claim(seen, claim)
    if held is None:
        raise OutputBusyError(f"{garbage.path} was changed meanwhile.")
    return store.change(held, phase=Phase.RUNNING, incarnation=new_owner())


def _remove_empty_folders(output_path: str) -> None:
    """On a local disk, leave no folder within the output that has become empty."""
    fs, name = file_system_at(output_path)
    if isinstance(fs, LocalFileSystem):
        for folder, _, _ in os.walk(name, topdown=False):
            with suppress(OSError):  # it holds what stays
                os.rmdir(folder)


def _garbage(prefix: str, path: str, record: Record, info: _Info | None, age_s: float) -> Garbage:
    files = [file for file in own_files(path) if file.path != _GUARD_FILE]
    size = sum(file.size for file in files)
    return Garbage(path, info.name if info else "", record.state, age_s, size, len(files), record.lease, prefix)


def _read_infos(paths: Sequence[str]) -> dict[str, _Info]:
    """What the step infos of these outputs say; those that have none are left out."""
    infos: dict[str, _Info] = {}
    for first in range(0, len(paths), _INFOS_AT_ONCE):  # a version text can be long, so not all are held at once
        files = {posixpath.join(path, INFO_FILE): path for path in paths[first : first + _INFOS_AT_ONCE]}
        for file, found in read_contents(list(files)).items():
            infos[files[file]] = _parse_info(file, found)
    return infos


def _parse_info(file: str, found: Content) -> _Info:
    try:
        fields = parse_info(file, found)
    except BadInfoError as error:
        return _Info("", None, error)
    named = fields.get("dependencies")
    return _Info(fields["name"], None if named is None else frozenset([*named, *paths_in(fields.get("config"))]))
