"""Garbage: outputs that nobody needs any more and that have not changed for long.

Needed is what the current DAGs' steps make or read, what is pinned, what somebody is at work on, and whatever was read
to make any of that. Where it cannot be known what a DAG needs, all outputs of its steps' names count as needed. Finding
garbage reads only.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from tradewind.plans.garbage.lineage import Info, Lineage, read_infos
from tradewind.plans.garbage.withdrawal import paths_in, reads_at_work, spot
from tradewind.records.leases.holding import OutputBusyError
from tradewind.records.leases.lease import LEASE_FILE, Lease
from tradewind.records.outputs.finding import MOST_AT_ONCE, Below, look_below, output_ages_s, own_files
from tradewind.records.outputs.pins import BadPinError, folders_above, look_for_pins, pin_path
from tradewind.records.reading import read_records
from tradewind.records.record import Record, RecordState
from tradewind.records.step_info import info_json
from tradewind.steps import ResolvedStep
from tradewind.storage import Roots
from tradewind.storage.errors import BadRecordError

GUARD_FILE: Final = f"{LEASE_FILE}.guard"
"""What guards the lease on a local disk. It stays: of two processes that find it gone, each would make its own."""


@dataclass
class Needs:
    """What must be kept.

    Attributes:
        paths: Outputs, and paths in or above them.
        names: Steps all of whose outputs are kept.
        roots: Below what records are read, besides the prefixes, that say what a needed output was made from.
    """

    paths: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)

    def add_step(self, step: ResolvedStep) -> None:
        """Keep what ``step`` makes and reads, also where its config names a path and no step."""
        read = (*step.dependencies, *step.pseudo_dependencies)
        self.paths.update([step.output_path, *(other.output_path for other in read)])
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
        unknown: Outputs that something needed was made from, and whose own records lie below no root: so all is kept.
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
        """What all of the garbage holds."""
        return sum(each.bytes for each in self.garbage)


def find_garbage(prefix: str, needs: Needs, older_than_s: float, names: Collection[str] | None = None) -> Sweep:
    """The outputs below ``prefix`` that nobody needs and that have not changed for ``older_than_s``.

    Args:
        names: Only outputs of these steps are garbage; needed is what any step needs.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    return find_garbage_below([prefix], needs, older_than_s, names)[0]


def find_garbage_below(
    prefixes: Collection[str],
    needs: Needs,
    older_than_s: float,
    names: Collection[str] | None = None,
    *,
    also_below: Collection[str] = (),
) -> list[Sweep]:
    """The same below each of ``prefixes``. What is needed below one of them may have been made from another's outputs.

    Args:
        also_below: Prefixes of which nothing is garbage, but what is needed there was perhaps made from what is here.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    looks = _look_below_each((*prefixes, *also_below))
    found = [path for below in looks.values() for path in below.outputs]
    records, infos = read_records(found), read_infos(found)
    pins, bad_pins = _pinned(looks, found)
    sources = [*needs.paths, *pins]
    sources += [path for path, record in records.items() if record.state is RecordState.AT_WORK]
    sources += reads_at_work(records)
    sources += [path for path, info in infos.items() if info.name in needs.names or (needs.names and info.problem)]
    lineage = Lineage(found, infos, frozenset(map(spot, looks)), Roots((*needs.roots, *looks)))
    needed = lineage.of(sources)
    if not all(any(_is_of(error, path) for path in found) for error in bad_pins):
        needed = set(found)  # whatever it pins was made from some of these
    search = _Search(records, infos, frozenset(needed), older_than_s, names)
    sweeps = [search.below(prefix, looks[prefix].outputs) for prefix in prefixes]
    sweeps[0] = replace(sweeps[0], unread=(*bad_pins, *lineage.unread, *sweeps[0].unread), unknown=lineage.unknown)
    return sweeps


def _look_below_each(prefixes: Iterable[str]) -> dict[str, Below]:
    """What is below each prefix. What lies below two, perhaps by two spellings, counts below the first."""
    looks: dict[str, Below] = {}
    seen: set[str] = set()
    for prefix in dict.fromkeys(prefixes):
        below = look_below(prefix)
        new = {spot(path): path for path in below.outputs}
        looks[prefix] = replace(below, outputs=tuple(path for place, path in new.items() if place not in seen))
        seen.update(new)
    return looks


@dataclass(frozen=True)
class _Search:
    """What is known when the garbage below each prefix is told."""

    records: Mapping[str, Record]
    infos: Mapping[str, Info]
    needed: frozenset[str]
    older_than_s: float
    names: Collection[str] | None

    def below(self, prefix: str, found: Sequence[str]) -> Sweep:
        infos = {path: self.infos[path] for path in found if path in self.infos}
        unread = {path: info.problem for path, info in infos.items() if info.problem is not None}
        kept = self.needed.intersection(found) | unread.keys()
        spare = [path for path in found if path not in kept]
        if self.names is not None:
            spare = [path for path in spare if path in infos and infos[path].name in self.names]
        ages = output_ages_s(spare)
        old = [path for path in spare if ages[path] >= self.older_than_s]
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            garbage = pool.map(
                lambda path: _garbage(prefix, path, self.records[path], infos.get(path), ages[path]), old
            )
            young = len(spare) - len(old)
            return Sweep(prefix, len(found), len(kept), young, tuple(garbage), tuple(unread.values()))


def _pinned(looks: Mapping[str, Below], found: Sequence[str]) -> tuple[list[str], list[BadPinError]]:
    """What is pinned at these prefixes, or at one that lies below them or above; and the pins that do not say what.

    A pin that cannot be read is still named for its output, which is so found among those ``found``.
    """
    pinned: list[str] = []
    unread: list[BadPinError] = []
    places = ([prefix.rstrip("/"), *folders_above(prefix), *below.prefixes] for prefix, below in looks.items())
    for folder in dict.fromkeys(folder for folders in places for folder in folders):
        pins = look_for_pins(folder)
        pinned += [pin.path for pin in pins.read]
        unread += pins.unread
    pinned += [path for path in found if any(_is_of(error, path) for error in unread)]
    return pinned, unread


def _is_of(error: BadPinError, output_path: str) -> bool:
    """Whether a pin is that of this output, as far as its name says."""
    return posixpath.basename(error.file) == posixpath.basename(pin_path("", output_path))


def _garbage(prefix: str, path: str, record: Record, info: Info | None, age_s: float) -> Garbage:
    files = [file for file in own_files(path) if file.path != GUARD_FILE]
    size = sum(file.size for file in files)
    return Garbage(path, info.name if info else "", record.state, age_s, size, len(files), record.lease, prefix)
