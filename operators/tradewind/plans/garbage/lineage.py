"""What outputs were made from, at any depth: as their step infos say it, wherever these lie and may be read."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.plans.garbage.withdrawal import paths_in, spot, spots_of
from tradewind.records.step_info import INFO_FILE, BadInfoError, parse_info
from tradewind.steps.paths import self_and_parents
from tradewind.storage import Roots, StorageError, place_of
from tradewind.storage.bounded import Content
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_contents

_INFOS_AT_ONCE: Final = 500


@dataclass(frozen=True)
class Info:
    """What the garbage collector reads in a step info."""

    name: str
    reads: frozenset[str] | None
    """Outputs, and what else its config names; None if it does not say."""
    problem: BadRecordError | None = None
    """Why it cannot be read."""
    inputs: frozenset[str] = frozenset()
    """Of ``reads``, the outputs of other steps."""


class Lineage:
    """What outputs were made from, also where that was not found below the prefixes.

    Attributes:
        unread: The records elsewhere that cannot be read, and why.
        unknown: The outputs elsewhere whose records may not be read; empty if there is none.
    """

    def __init__(self, found: Sequence[str], infos: Mapping[str, Info], prefixes: frozenset[str], roots: Roots) -> None:
        """``prefixes`` are ``spot``s; outputs below them are ``found``, and what ``infos`` has was read."""
        self.unread: tuple[BadRecordError, ...] = ()
        self.unknown: tuple[str, ...] = ()
        self._outputs = {spot(path): path for path in found}
        self._infos = {spot(path): info for path, info in infos.items()}
        self._prefixes = prefixes
        self._roots = roots
        self._tried: set[str] = set()
        self._named: set[str] = set()

    def of(self, sources: Iterable[str]) -> set[str]:
        """Those of the outputs that ``sources`` are, lie in, or were made from, at any depth.

        All of them, where it cannot be read what one of these was made from.
        """
        seen: set[str] = set()
        pending = list(sources)
        self._named.update(map(spot, pending))
        while pending:
            reads = self._reads_of(pending, seen)
            pending = list(dict.fromkeys(path for found in reads if found is not None for path in found))
            if None in reads or self.unknown:
                return set(self._outputs.values())
        return {path for place, path in self._outputs.items() if place in seen}

    def _reads_of(self, paths: Collection[str], seen: set[str]) -> list[frozenset[str] | None]:
        """What those of ``paths`` read, and the outputs that they lie in, that are not among ``seen`` yet."""
        self._look_elsewhere([path for path in paths if spot(path) not in seen])
        reads: list[frozenset[str] | None] = []
        for path in paths:
            known = (
                candidate for candidate in spots_of(path) if candidate in self._outputs or candidate in self._infos
            )
            for candidate in {spot(path), *known} - seen:
                seen.add(candidate)
                if (info := self._infos.get(candidate)) is not None:
                    reads.append(info.reads)
                    self._check_followed(info)
        return reads

    def _look_elsewhere(self, paths: Iterable[str]) -> None:
        """Read what is known of the outputs that these paths are, or lie in, and that were not found."""
        far = {parent: None for path in paths if self._is_elsewhere(path) for parent in self_and_parents(path)}
        new = [path for path in far if spot(path) not in self._tried and self._roots.allow(path)]
        self._tried.update(map(spot, new))
        infos = read_infos(new)
        self._infos |= {spot(path): info for path, info in infos.items()}
        self.unread += tuple(info.problem for info in infos.values() if info.problem is not None)

    def _check_followed(self, info: Info) -> None:
        """Note what it was made from, and which of that lies elsewhere and below no root."""
        self._named.update(map(spot, info.inputs))
        far = [path for path in sorted(info.inputs) if self._is_elsewhere(path)]
        self.unknown += tuple(path for path in far if _is_place(path) and not self._roots.allow(path))

    def _is_elsewhere(self, path: str) -> bool:
        """Whether nobody has looked there: below no prefix, or named as an output although none was found there.

        Such a one may lie within another output, or in a hidden folder.
        """
        place = spot(path)
        if place in self._infos:
            return False
        is_hidden = place in self._named and place not in self._outputs
        return is_hidden or self._prefixes.isdisjoint(self_and_parents(place))


def read_infos(paths: Sequence[str]) -> dict[str, Info]:
    """What the step infos of these outputs say; those that have none are left out."""
    infos: dict[str, Info] = {}
    for first in range(0, len(paths), _INFOS_AT_ONCE):  # a version text can be long, so not all are held at once
        files = {posixpath.join(path, INFO_FILE): path for path in paths[first : first + _INFOS_AT_ONCE]}
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
    """Whether an output could lie there at all."""
    try:
        return bool(place_of(path).name)
    except StorageError:
        return False
