"""Config of a version as rows for a page, beside that of another version: one row per value, with a mark.

A row is a leaf of the versioned config: values inside lists and objects have rows of their own, so that a page can show
a tree and mark what changed. ``differences`` finds root causes across inputs; a row only compares one config path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tradewind.plans.version_records import InputReference, Version, VersionNode, VersionTable
from tradewind.steps.paths import version_name
from tradewind.text import truncate_middle

MAX_ROWS: Final = 2000
MAX_VALUE_CHARS: Final = 2000
MAX_LEAF_DEPTH: Final = 16
"""Deeper values are one row."""
_INDEX: Final = re.compile(r"\[(\d+)\]")
Keys = tuple[str, ...]


class Mark(Enum):
    """How a row differs between two versions."""

    SAME = "SAME"
    CHANGED = "CHANGED"
    ADDED = "ADDED"
    REMOVED = "REMOVED"
    INPUT = "INPUT"
    """The same input in another version: the difference is in that step."""


@dataclass(frozen=True)
class ConfigValue:
    """A value of a config.

    Attributes:
        text: The value as JSON, or the path inside the input that is read; truncated.
        reads: ``name-hash`` of the step whose output is read; None for a plain value.
    """

    text: str
    reads: str | None = None


@dataclass(frozen=True)
class ConfigRow:
    """A leaf of a config.

    Attributes:
        keys: Its config path, such as ``("optimizer", "betas", "[0]")``.
        old: Its value in the earlier version; None if it has none, or without an earlier version.
        new: Its value in the newer version.
    """

    keys: tuple[str, ...]
    mark: Mark
    old: ConfigValue | None
    new: ConfigValue | None


@dataclass(frozen=True)
class ConfigComparison:
    """The versioned config of one version, or two beside each other.

    Attributes:
        rows: The leaves, by config path.
        left_out: How many unchanged rows, or changed ones beyond the limit, are missing.
    """

    rows: tuple[ConfigRow, ...]
    left_out: int = 0


def compare_configs(old: Version | None, new: Version) -> ConfigComparison:
    """Compare the config of ``new`` with that of ``old``; without ``old``, all rows are unchanged.

    At most ``MAX_ROWS`` rows are returned, changed ones first.
    """
    table = VersionTable(lambda name, hash_: None)  # a config states which inputs it reads, not what they hold
    after = _leaves_of(table.node(new))
    before = _leaves_of(table.node(old)) if old is not None else after
    found = [_row(keys, before.get(keys), after.get(keys)) for keys in sorted(before.keys() | after.keys(), key=_order)]
    if old is None:
        found = [ConfigRow(row.keys, Mark.SAME, None, row.new) for row in found]
    changed = sum(row.mark is not Mark.SAME for row in found)
    room = max(0, MAX_ROWS - changed)
    rows: list[ConfigRow] = []
    for row in found:
        if row.mark is Mark.SAME:
            if room == 0:
                continue
            room -= 1
        if len(rows) < MAX_ROWS:
            rows.append(row)
    return ConfigComparison(tuple(rows), len(found) - len(rows))


def _row(keys: Keys, old: ConfigValue | None, new: ConfigValue | None) -> ConfigRow:
    return ConfigRow(keys, _mark(old, new), old, new)


def _mark(old: ConfigValue | None, new: ConfigValue | None) -> Mark:
    if old is None:
        return Mark.ADDED
    if new is None:
        return Mark.REMOVED
    if old == new:
        return Mark.SAME
    is_input = old.text == new.text and old.reads is not None and new.reads is not None
    return Mark.INPUT if is_input and _name_of(old.reads) == _name_of(new.reads) else Mark.CHANGED


def _name_of(version: str | None) -> str:
    return (version or "").rpartition("-")[0]


def _leaves_of(node: VersionNode) -> dict[Keys, ConfigValue]:
    found: dict[Keys, ConfigValue] = {}
    for path, value in node.values.items():
        found.update(_leaves(tuple(path.split(".")) if path else (), value))
    for path, reference in node.references.items():
        found[tuple(path.split("."))] = _reference(reference)
    return found


def _leaves(keys: Keys, value: Any) -> Iterator[tuple[Keys, ConfigValue]]:
    children: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        children = {str(key): child for key, child in value.items()}
    elif isinstance(value, list):
        children = {f"[{index}]": child for index, child in enumerate(value)}
    if not children or len(keys) > MAX_LEAF_DEPTH:
        yield keys, ConfigValue(truncate_middle(json.dumps(value, ensure_ascii=False), MAX_VALUE_CHARS))
        return
    for key, child in children.items():
        yield from _leaves((*keys, key), child)


def _reference(reference: InputReference) -> ConfigValue:
    target = reference.target
    reads = version_name(target.name, target.hash) if target is not None else "an input"
    return ConfigValue(reference.inside, reads)


def _order(keys: Keys) -> tuple[tuple[int, int, str], ...]:
    """Sort list indexes by number, other keys by text."""
    return tuple((0, int(found[1]), "") if (found := _INDEX.fullmatch(key)) else (1, 0, key) for key in keys)
