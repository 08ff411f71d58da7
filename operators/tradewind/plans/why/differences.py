"""What differs between two versions of a step, traced to the fields that caused it.

A difference is told once, at the step whose own config holds it; a step that only reads a changed step has none of its
own. Every pair of versions is compared once however many ways lead to it, so the cost grows with the number of
versions, not with the number of ways, and no depth is too great.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from tradewind.plans.why.input_changes import Inputs, Pair, compare_inputs
from tradewind.plans.why.phrases import change_text, value_text
from tradewind.plans.why.version_graph import Lookup, Version, VersionNode, VersionTable
from tradewind.steps.values.walk import describe

MOST_IN_A_VALUE: Final = 8
"""A value that differs in more places than this is told as one difference."""
MOST_IN_A_SENTENCE: Final = 3
_LONGEST_WAY: Final = 6
_LEFT_OUT: Final = "…"
FORM_ONLY: Final = "no field differs, only the form of the records"


@dataclass(frozen=True)
class Change:
    """One root cause.

    Attributes:
        step: The name of the step whose own config holds it.
        where: Its place there, such as ``config.learning_rate``.
        what: The difference in words, such as ``config.learning_rate 0.003 → 0.001``.
        way: The inputs that lead to ``step``, from the compared step's own one on, ``step`` last; empty if the compared
            step itself holds the difference. The middle of a long one is left out.
    """

    step: str
    where: str
    what: str
    way: tuple[str, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"way": list(self.way)}


class Comparison:
    """Compares versions; whoever compares many keeps one, which remembers what it has seen."""

    def __init__(self, lookup: Lookup) -> None:
        self._table = VersionTable(lookup)
        self._opened: dict[Pair, tuple[list[Change], list[Pair]]] = {}
        self._causes: dict[Pair, dict[Change, Pair | None]] = {}

    def changes(self, old: Version, new: Version) -> list[Change]:
        """The root causes of what differs between two valid records, those of the step itself first."""
        pair = self._table.node(old), self._table.node(new)
        if pair[0] is pair[1]:
            return []
        self._visit(pair)
        return [replace(change, way=self._way(pair, change)) for change in self._causes[pair]]

    def _visit(self, root: Pair) -> None:
        """Compare ``root`` and what it leads to, inputs first; a pair that leads to itself adds nothing."""
        stack = [(root, False)]
        while stack:
            pair, is_leaving = stack.pop()
            if is_leaving:
                self._causes[pair] = self._collected(pair)
            elif pair not in self._opened:
                self._opened[pair] = self._compare(pair)
                stack.append((pair, True))
                stack.extend((child, False) for child in reversed(self._opened[pair][1]))

    def _compare(self, pair: Pair) -> tuple[list[Change], list[Pair]]:
        old, new = self._table.resolved(pair[0]), self._table.resolved(pair[1])
        if old is new:
            return [], []
        if old.record is None or new.record is None:
            return [_unknown(old, new)], []
        inputs = compare_inputs(old, new)
        return [Change(new.name, where, what) for where, what in _own_changes(old, new, inputs)], inputs.pairs

    def _collected(self, pair: Pair) -> dict[Change, Pair | None]:
        """Root cause → the input that leads to it, None for the step's own."""
        own, children = self._opened[pair]
        causes: dict[Change, Pair | None] = dict.fromkeys(own)
        for child in children:
            for change in self._causes.get(child, ()):
                causes.setdefault(change, child)
        return causes

    def _way(self, pair: Pair, change: Change) -> tuple[str, ...]:
        names: list[str] = []
        while (child := self._causes[pair][change]) is not None:
            if len(names) == _LONGEST_WAY:
                return (*names[:-1], _LEFT_OUT, change.step)
            names.append(child[1].name)
            pair = child
        return tuple(names)


def differences(old: Version, new: Version, lookup: Lookup) -> list[Change]:
    """The root causes of what differs between two versions of a step."""
    return Comparison(lookup).changes(old, new)


def sentence(changes: Sequence[Change]) -> str:
    """The differences in one short sentence, for the cell of a table."""
    if not changes:
        return FORM_ONLY
    parts = []
    for step, group in groupby(changes[:MOST_IN_A_SENTENCE], key=lambda change: change.way and change.step):
        words = ", ".join(change.what for change in group)
        parts.append(f"because input `{step}` changed: {words}" if step else words)
    more = len(changes) - MOST_IN_A_SENTENCE
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def full_text(changes: Sequence[Change]) -> list[str]:
    """The differences in lines, with the way to each."""
    if not changes:
        return [FORM_ONLY]
    lines: list[str] = []
    for way, group in groupby(changes, key=lambda change: change.way):
        if way:
            through = ", ".join(f"`{name}`" if name != _LEFT_OUT else name for name in way[:-1])
            lines.append(f"because input `{way[-1]}` changed{f' (through {through})' if through else ''}:")
        lines.extend(f"{'  ' if way else ''}{change.what}" for change in group)
    return lines


def _own_changes(old: VersionNode, new: VersionNode, inputs: Inputs) -> Iterator[tuple[str, str]]:
    """The differences between the configs themselves, as (where, in words)."""
    if old.name != new.name:
        yield "name", f"name `{old.name}` → `{new.name}`"
    for path in sorted(old.values.keys() | new.values.keys()):
        yield from _at_path(path, old, new)
    yield from inputs.own


def _at_path(path: str, old: VersionNode, new: VersionNode) -> Iterable[tuple[str, str]]:
    where = describe(path)
    if path in old.values and path in new.values:
        return _inside(where, old.values[path], new.values[path])
    if path in old.values:
        reference = new.references.get(path)
        was = value_text(old.values[path])
        return [(where, f"{where} {was} → {reference.text}" if reference else f"{where} removed (was {was})")]
    reference, now = old.references.get(path), value_text(new.values[path])
    return [(where, f"{where} {reference.text} → {now}" if reference else f"{where} added ({now})")]


def _inside(where: str, old: Any, new: Any) -> list[tuple[str, str]]:
    """The differences inside one value, or between two as a whole where there are too many."""
    found = list(_leaves(where, old, new))
    if len(found) <= MOST_IN_A_VALUE:
        return found
    return [(where, f"{where} differs in {len(found)} places, first {found[0][1]}")]


def _leaves(where: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True):  # 1 and 1.0 are two versions
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{where}.{key}"
            if key not in new:
                yield place, f"{place} removed (was {value_text(old[key])})"
            elif key not in old:
                yield place, f"{place} added ({value_text(new[key])})"
            else:
                yield from _leaves(place, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _leaves(f"{where}.[{index}]", before, after)
    else:
        yield where, f"{where} {change_text(old, new)}"


def _unknown(old: VersionNode, new: VersionNode) -> Change:
    lost = " and ".join(f"`{node.hash}`" for node in (old, new) if node.record is None)
    return Change(
        new.name, "", f"version `{old.hash}` → `{new.hash}`, with no record of {lost} at hand to compare further"
    )
