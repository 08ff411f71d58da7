"""What differs between the references of two versions of a step: which steps they read, and where.

References are numbered in a record, and one more of them renumbers those behind it; so they are matched by what they
read and where they stand, never by number. References that read the same step name are one input whose version may
have changed. Everything else is a difference of the step's own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from tradewind.plans.why.version_graph import InputReference, VersionNode

T = TypeVar("T")
Pair = tuple[VersionNode, VersionNode]
"""An old version of a step and the new one that stands in its place."""


@dataclass(frozen=True)
class Inputs:
    """What a comparison of references found.

    Attributes:
        own: Differences of the step's own, as (where, in words).
        pairs: Inputs whose version is another one now.
    """

    own: list[tuple[str, str]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def add_pair(self, old: VersionNode | None, new: VersionNode | None) -> None:
        """Look further at an input, unless it is the same."""
        if old is not None and new is not None and old is not new:
            self.pairs.append((old, new))


def compare_inputs(old: VersionNode, new: VersionNode) -> Inputs:
    """Compare the references of two versions; those at a path that held a value in the other are left out."""
    before = [ref for path, ref in old.references.items() if path not in new.values]
    after = [ref for path, ref in new.references.items() if path not in old.values]
    if old.is_mixed or new.is_mixed:
        return _compare_lists(old, new, before, after)
    found = Inputs()
    same_place, gone, come = _matched(before, after, _KEYS)
    elsewhere, gone, come = _matched(gone, come, _KEYS_ELSEWHERE)
    for past, present in [*same_place, *elsewhere]:
        found.add_pair(past.target, present.target)
        found.own.extend(_own_changes(past, present))
    found.own.extend(_without_partner(gone, come))
    if not elsewhere and not _is_in_order(same_place):
        order = ", ".join(present.text for _, present in sorted(same_place, key=lambda pair: pair[1].index))
        found.own.append(("config", f"its inputs are in another order: {order}"))
    return found


_KEYS: Sequence[Callable[[InputReference], Hashable]] = (
    lambda ref: (ref.path, ref.target),
    lambda ref: (ref.pattern, ref.target, ref.inside, ref.waits),
    lambda ref: (ref.path, ref.target and ref.target.name),
    lambda ref: (ref.pattern, ref.target and ref.target.name),
)
"""What tells that two references are the same one, the surest sign first."""

_KEYS_ELSEWHERE: Sequence[Callable[[InputReference], Hashable]] = (
    lambda ref: (ref.target, ref.inside),
    lambda ref: ref.target and ref.target.name,
)


def _matched(
    old: Sequence[T], new: Sequence[T], keys: Iterable[Callable[[T], Hashable]]
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Pairs with equal keys, by one key after another, and what is left on each side."""
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


def _own_changes(old: InputReference, new: InputReference) -> list[tuple[str, str]]:
    """What differs between two forms of one reference, apart from the version of the step."""
    changes = []
    if old.pattern != new.pattern:
        changes.append((new.where, f"reference to {old.text} moved from {old.where} to {new.where}"))
    if old.inside != new.inside:
        changes.append((new.where, f"{new.where} reads {new.text} instead of {old.text}"))
    if old.waits != new.waits:
        waits = "now waits" if new.waits else "no longer waits"
        changes.append((new.where, f"{new.where} {waits} for {new.text}"))
    return changes


def _without_partner(gone: Sequence[InputReference], come: Sequence[InputReference]) -> list[tuple[str, str]]:
    replaced, gone, come = _matched(gone, come, [lambda ref: ref.path])
    changes = [(new.where, f"{new.where} reads {new.text} instead of {old.text}") for old, new in replaced]
    changes += [(old.where, f"{old.where} removed (read {old.text})") for old in gone]
    return changes + [(new.where, f"{new.where} added (reads {new.text})") for new in come]


def _is_in_order(pairs: Iterable[tuple[InputReference, InputReference]]) -> bool:
    numbers = [new.index for _, new in sorted(pairs, key=lambda pair: pair[0].index)]
    return all(first < second for first, second in pairwise(numbers))


def _compare_lists(
    old: VersionNode, new: VersionNode, before: Sequence[InputReference], after: Sequence[InputReference]
) -> Inputs:
    """Compare where the records do not say which reference means which step: paths here, steps there."""
    found = Inputs(_changes_of_paths(before, after))
    rest: dict[bool, tuple[list[VersionNode], list[VersionNode]]] = {}
    for waits, olds, news in ((True, old.inputs, new.inputs), (False, old.pseudo_inputs, new.pseudo_inputs)):
        rest[waits] = _match_nodes(found, olds, news)
    for waits, words in ((True, "now waits"), (False, "no longer waits")):
        gone, come = rest[not waits][0], rest[waits][1]
        moved, gone, come = _matched(gone, come, [lambda node: node, lambda node: node.name])
        rest[not waits], rest[waits] = (gone, rest[not waits][1]), (rest[waits][0], come)
        for past, present in moved:
            found.add_pair(past, present)
            found.own.append(("config", f"{words} for input `{present.name}`"))
    for gone, come in rest.values():
        found.own.extend(_replacements(gone, come))
    return found


def _match_nodes(
    found: Inputs, olds: Sequence[VersionNode], news: Sequence[VersionNode]
) -> tuple[list[VersionNode], list[VersionNode]]:
    keys: list[Callable[[tuple[int, VersionNode]], Hashable]] = [
        lambda item: item[1],
        lambda item: (item[0], item[1].name),
        lambda item: item[1].name,
    ]
    pairs, gone, come = _matched(list(enumerate(olds)), list(enumerate(news)), keys)
    for (_, past), (_, present) in pairs:
        found.add_pair(past, present)
    return [node for _, node in gone], [node for _, node in come]


def _replacements(gone: Sequence[VersionNode], come: Sequence[VersionNode]) -> list[tuple[str, str]]:
    if len(gone) == len(come):
        both = zip(gone, come, strict=True)
        return [("config", f"input `{old.name}` replaced by `{new.name}`") for old, new in both]
    removed = [("config", f"input `{node.name}` removed") for node in gone]
    return removed + [("config", f"input `{node.name}` added") for node in come]


def _changes_of_paths(before: Sequence[InputReference], after: Sequence[InputReference]) -> list[tuple[str, str]]:
    same, gone, come = _matched(before, after, [lambda ref: ref.path])
    changes = [
        (new.where, f"{new.where} reads {new.text} instead of {old.text}")
        for old, new in same
        if old.inside != new.inside
    ]
    by_number = [sorted(refs, key=lambda ref: ref.index) for refs in (gone, come)]
    for old, new in zip(*by_number, strict=False):
        changes.append((new.where, f"reference moved from {old.where} to {new.where}"))
    return changes
