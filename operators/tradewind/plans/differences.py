"""Differences between two versions of a step, traced to the fields that cause them.

A difference is reported once, at the step whose own config holds it. A step that only reads a changed step has no
difference of its own. Each pair of versions is compared once, so the cost grows with the number of versions, not of
paths between them; depth is unlimited.

A record numbers references, and an additional reference renumbers those after it. So references are matched by what
they read and where they occur, never by number. References to the same step name are one input whose version may have
changed. Everything else is a difference of the step's own.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Final, TypeVar

from tradewind.plans.version_records import InputReference, Lookup, Version, VersionNode, VersionTable
from tradewind.steps.config_walk import describe
from tradewind.text import format_change, format_value

T = TypeVar("T")
Pair = tuple[VersionNode, VersionNode]
"""An old version of a step and the new one that replaces it."""


@dataclass(frozen=True)
class Inputs:
    """Result of comparing references.

    Attributes:
        own: Differences of the step's own, as (where, in words).
        pairs: Inputs whose version changed.
    """

    own: list[tuple[str, str]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def add_pair(self, old: VersionNode | None, new: VersionNode | None) -> None:
        """Add an input for further comparison, unless it is unchanged."""
        if old is not None and new is not None and old is not new:
            self.pairs.append((old, new))


def compare_inputs(old: VersionNode, new: VersionNode) -> Inputs:
    """Compare the references of two versions, except at paths where the other version holds a value."""
    before = [ref for path, ref in old.references.items() if path not in new.values]
    after = [ref for path, ref in new.references.items() if path not in old.values]
    if old.is_mixed or new.is_mixed:
        return _compare_lists(old, new, before, after)
    found = Inputs()
    same_place, removed, added = _match(before, after, _KEYS)
    elsewhere, removed, added = _match(removed, added, _KEYS_ELSEWHERE)
    for past, present in [*same_place, *elsewhere]:
        found.add_pair(past.target, present.target)
        found.own.extend(_reference_changes(past, present))
    found.own.extend(_unmatched_changes(removed, added))
    indexes = [present.index for _, present in sorted(same_place, key=lambda pair: pair[0].index)]
    if not elsewhere and indexes != sorted(indexes):
        order = ", ".join(present.text for _, present in sorted(same_place, key=lambda pair: pair[1].index))
        found.own.append(("config", f"its inputs are in another order: {order}"))
    return found


_KEYS: Sequence[Callable[[InputReference], Hashable]] = (
    lambda ref: (ref.path, ref.target),
    lambda ref: (ref.pattern, ref.target, ref.inside, ref.waits),
    lambda ref: (ref.path, ref.target and ref.target.name),
    lambda ref: (ref.pattern, ref.target and ref.target.name),
)
"""Keys by which two references match, the most reliable first."""

_KEYS_ELSEWHERE: Sequence[Callable[[InputReference], Hashable]] = (
    lambda ref: (ref.target, ref.inside),
    lambda ref: ref.target and ref.target.name,
)


def _match(
    old: Sequence[T], new: Sequence[T], keys: Iterable[Callable[[T], Hashable]]
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Match by one key after another; return the pairs and the remainder of each side."""
    pairs: list[tuple[T, T]] = []
    for key in keys:
        waiting: defaultdict[Hashable, deque[T]] = defaultdict(deque)
        for item in old:
            waiting[key(item)].append(item)
        left = []
        for item in new:
            if partners := waiting.get(key(item)):
                pairs.append((partners.popleft(), item))
            else:
                left.append(item)
        unmatched = {id(item) for partners in waiting.values() for item in partners}
        old, new = [item for item in old if id(item) in unmatched], left
    return pairs, list(old), list(new)


def _reference_changes(old: InputReference, new: InputReference) -> list[tuple[str, str]]:
    """Return the differences between two forms of one reference, except the step's version."""
    changes = []
    if old.pattern != new.pattern:
        changes.append((new.where, f"reference to {old.text} moved from {old.where} to {new.where}"))
    if old.inside != new.inside:
        changes.append((new.where, f"{new.where} reads {new.text} instead of {old.text}"))
    if old.waits != new.waits:
        waits = "now waits" if new.waits else "no longer waits"
        changes.append((new.where, f"{new.where} {waits} for {new.text}"))
    return changes


def _unmatched_changes(removed: Sequence[InputReference], added: Sequence[InputReference]) -> list[tuple[str, str]]:
    replaced, removed, added = _match(removed, added, [lambda ref: ref.path])
    changes = [(new.where, f"{new.where} reads {new.text} instead of {old.text}") for old, new in replaced]
    changes += [(old.where, f"{old.where} removed (read {old.text})") for old in removed]
    return changes + [(new.where, f"{new.where} added (reads {new.text})") for new in added]


def _compare_lists(
    old: VersionNode, new: VersionNode, before: Sequence[InputReference], after: Sequence[InputReference]
) -> Inputs:
    """Compare paths and steps separately, where records do not assign references to steps."""
    found = Inputs(_changes_of_paths(before, after))
    rest: dict[bool, tuple[list[VersionNode], list[VersionNode]]] = {}
    for waits, olds, news in ((True, old.inputs, new.inputs), (False, old.pseudo_inputs, new.pseudo_inputs)):
        rest[waits] = _match_nodes(found, olds, news)
    for waits, words in ((True, "now waits"), (False, "no longer waits")):
        removed, added = rest[not waits][0], rest[waits][1]
        moved, removed, added = _match(removed, added, [lambda node: node, lambda node: node.name])
        rest[not waits], rest[waits] = (removed, rest[not waits][1]), (rest[waits][0], added)
        for past, present in moved:
            found.add_pair(past, present)
            found.own.append(("config", f"{words} for input `{present.name}`"))
    for removed, added in rest.values():
        found.own.extend(_replacements(removed, added))
    return found


def _match_nodes(
    found: Inputs, olds: Sequence[VersionNode], news: Sequence[VersionNode]
) -> tuple[list[VersionNode], list[VersionNode]]:
    keys: list[Callable[[tuple[int, VersionNode]], Hashable]] = [
        lambda item: item[1],
        lambda item: (item[0], item[1].name),
        lambda item: item[1].name,
    ]
    pairs, removed, added = _match(list(enumerate(olds)), list(enumerate(news)), keys)
    for (_, past), (_, present) in pairs:
        found.add_pair(past, present)
    return [node for _, node in removed], [node for _, node in added]


def _replacements(removed: Sequence[VersionNode], added: Sequence[VersionNode]) -> list[tuple[str, str]]:
    if len(removed) == len(added):
        both = zip(removed, added, strict=True)
        return [("config", f"input `{old.name}` replaced by `{new.name}`") for old, new in both]
    changes = [("config", f"input `{node.name}` removed") for node in removed]
    return changes + [("config", f"input `{node.name}` added") for node in added]


def _changes_of_paths(before: Sequence[InputReference], after: Sequence[InputReference]) -> list[tuple[str, str]]:
    same, removed, added = _match(before, after, [lambda ref: ref.path])
    changes = [
        (new.where, f"{new.where} reads {new.text} instead of {old.text}")
        for old, new in same
        if old.inside != new.inside
    ]
    by_number = [sorted(refs, key=lambda ref: ref.index) for refs in (removed, added)]
    for old, new in zip(*by_number, strict=False):
        changes.append((new.where, f"reference moved from {old.where} to {new.where}"))
    return changes


MAX_CHANGES_PER_VALUE: Final = 8
"""A value with more differences is reported as one difference."""
MAX_CHANGES_PER_SENTENCE: Final = 3
_MAX_WAY: Final = 6
_LEFT_OUT: Final = "…"
FORM_ONLY: Final = "no field differs, only the form of the records"


@dataclass(frozen=True)
class Change:
    """One root cause.

    Attributes:
        step: The name of the step whose own config holds it.
        where: Its config path there, such as ``config.learning_rate``.
        what: The difference in words, such as ``config.learning_rate 0.003 → 0.001``.
        way: The inputs that lead to ``step``, from the compared step's input to ``step``; empty if the compared step
            itself holds the difference. The middle of a long list is omitted.
    """

    step: str
    where: str
    what: str
    way: tuple[str, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"way": list(self.way)}


class Comparison:
    """Compares versions. Reuse one instance for many comparisons: it caches each pair."""

    def __init__(self, lookup: Lookup) -> None:
        self._table = VersionTable(lookup)
        self._opened: dict[Pair, tuple[list[Change], list[Pair]]] = {}
        self._causes: dict[Pair, dict[Change, Pair | None]] = {}

    def changes(self, old: Version, new: Version) -> list[Change]:
        """Return the root causes of the differences between two valid records, the step's own first."""
        pair = self._table.node(old), self._table.node(new)
        if pair[0] is pair[1]:
            return []
        self._visit(pair)
        return [replace(change, way=self._way(pair, change)) for change in self._causes[pair]]

    def _visit(self, root: Pair) -> None:
        """Compare ``root`` and the pairs it leads to, inputs first; a cyclic pair adds nothing."""
        stack = [(root, False)]
        while stack:
            pair, is_leaving = stack.pop()
            if is_leaving:
                self._causes[pair] = self._collect(pair)
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

    def _collect(self, pair: Pair) -> dict[Change, Pair | None]:
        """Return root cause → the input that leads to it, None for the step's own."""
        own, children = self._opened[pair]
        causes: dict[Change, Pair | None] = dict.fromkeys(own)
        for child in children:
            for change in self._causes.get(child, ()):
                causes.setdefault(change, child)
        return causes

    def _way(self, pair: Pair, change: Change) -> tuple[str, ...]:
        names: list[str] = []
        while (child := self._causes[pair][change]) is not None:
            if len(names) == _MAX_WAY:
                return (*names[:-1], _LEFT_OUT, change.step)
            names.append(child[1].name)
            pair = child
        return tuple(names)


def sentence(changes: Sequence[Change]) -> str:
    """Format the differences as one short sentence for a table cell."""
    if not changes:
        return FORM_ONLY
    parts = []
    for step, group in groupby(changes[:MAX_CHANGES_PER_SENTENCE], key=lambda change: change.way and change.step):
        words = ", ".join(change.what for change in group)
        parts.append(f"{words} in input `{step}`" if step else words)
    more = len(changes) - MAX_CHANGES_PER_SENTENCE
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def full_text(changes: Sequence[Change]) -> list[str]:
    """Format the differences as lines, each with the inputs that lead to it."""
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
    """Return the differences between the configs themselves, as (where, in words)."""
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
        was = format_value(old.values[path])
        return [(where, f"{where} {was} → {reference.text}" if reference else f"{where} removed (was {was})")]
    reference, now = old.references.get(path), format_value(new.values[path])
    return [(where, f"{where} {reference.text} → {now}" if reference else f"{where} added ({now})")]


def _inside(where: str, old: Any, new: Any) -> list[tuple[str, str]]:
    """Return the differences inside one value, or one for the whole value if there are too many."""
    found = list(_leaves(where, old, new))
    if len(found) <= MAX_CHANGES_PER_VALUE:
        return found
    return [(where, f"{where} differs in {len(found)} places, first {found[0][1]}")]


def _leaves(where: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True):  # 1 and 1.0 are different versions
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{where}.{key}"
            if key not in new:
                yield place, f"{place} removed (was {format_value(old[key])})"
            elif key not in old:
                yield place, f"{place} added ({format_value(new[key])})"
            else:
                yield from _leaves(place, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _leaves(f"{where}.[{index}]", before, after)
    else:
        yield where, f"{where} {format_change(old, new)}"


def _unknown(old: VersionNode, new: VersionNode) -> Change:
    lost = " and ".join(f"`{node.hash}`" for node in (old, new) if node.record is None)
    return Change(
        new.name, "", f"version `{old.hash}` → `{new.hash}`, with no record of {lost} at hand to compare further"
    )
