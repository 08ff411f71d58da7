"""Second implementation of versions for the property test: naive, recursive, no shared code.

It reads descriptions of steps instead of steps, so it does not depend on the placeholders that users write. A graph is
a list of descriptions; a reference names another step by its index in that list.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

DEEPEST_WHOLE = 4
SEQUENCES = ("list", "tuple", "namedtuple", "set")


@dataclass(frozen=True)
class Noise:
    """A value outside the version."""

    value: Any


@dataclass(frozen=True)
class Counted:
    """A value under ``versioned``."""

    value: Any


@dataclass(frozen=True)
class Reference:
    """A path in a step's output; if ``step`` is None, a hard-coded path. ``style`` is the user's spelling."""

    step: int | None
    parts: tuple[str, ...]
    blocking: bool = True
    style: int = 0


@dataclass(frozen=True)
class OwnOutput:
    """A path in the step's own output."""

    name: str | None


@dataclass(frozen=True)
class Mirrored:
    """A path that may come from another region."""

    inner: Counted | Reference


@dataclass(frozen=True)
class Group:
    """Container of nodes: a dataclass, dict, list, tuple, namedtuple, set, or lazy object."""

    kind: str
    items: tuple[tuple[str, Node], ...]


Node = Noise | Counted | Reference | OwnOutput | Mirrored | Group


@dataclass(frozen=True)
class Described:
    name: str
    config: Node
    override: str | None = None


Graph = Sequence[Described]


def joined(parts: Sequence[str]) -> str:
    """Return the name that a chain of ``/`` makes."""
    return functools.reduce(lambda name, part: os.path.join(name, part) if name else part, parts, "")


def leaves(node: Node, path: str = "") -> Iterator[tuple[str, Counted | Reference]]:
    """Return the versioned values and references with their config paths, in walk order."""
    if isinstance(node, Mirrored):
        yield from leaves(node.inner, path)
    elif isinstance(node, Group):
        for i, (key, item) in enumerate(node.items):
            last = f"[{i}]" if node.kind in SEQUENCES else key
            yield from leaves(item, f"{path}.{last}" if path else last)
    elif isinstance(node, (Counted, Reference)):
        yield path, node


def references(graph: Graph, index: int, blocking: bool) -> list[int]:
    """Return the indices of the steps that step ``index`` refers to, with repetitions, in walk order."""
    found = [leaf for _, leaf in leaves(graph[index].config) if isinstance(leaf, Reference)]
    return [leaf.step for leaf in found if leaf.step is not None and leaf.blocking is blocking]


def depth(graph: Graph, index: int) -> int:
    """Return the length of the longest chain of blocking references below a step."""
    below = [depth(graph, step) for step in references(graph, index, blocking=True)]
    return 1 + max(below) if below else 0


def version(graph: Graph, index: int) -> dict[str, Any]:
    """Return the data that the version hashes."""
    config: dict[str, Any] = {}
    number = 0
    for path, leaf in leaves(graph[index].config):
        if isinstance(leaf, Counted):
            config[path] = leaf.value
            continue
        config[path] = name = joined(leaf.parts)
        if leaf.step is not None:
            config[path] = f"DEP[{number}]/{name}" if name else f"DEP[{number}]"
            number += 1
    found = {
        "name": graph[index].name,
        "config": config,
        "dependencies": [as_dependency(graph, step) for step in references(graph, index, blocking=True)],
    }
    pseudo = [as_dependency(graph, step) for step in references(graph, index, blocking=False)]
    return found | {"pseudo_dependencies": pseudo} if pseudo else found


def as_dependency(graph: Graph, index: int) -> dict[str, Any] | str:
    """Return a step's entry in the version of a step that refers to it."""
    if depth(graph, index) <= DEEPEST_WHOLE:
        return version(graph, index)
    return f"{graph[index].name}-{short_hash(graph, index)}"


def version_text(graph: Graph, index: int) -> str:
    """Return the text that the version hashes."""
    return json.dumps(version(graph, index), sort_keys=True, default=as_data)


def short_hash(graph: Graph, index: int) -> str:
    """Return the hash in the output path."""
    return hashlib.md5(version_text(graph, index).encode()).hexdigest()[:6]


def output_path(graph: Graph, index: int, prefix: str) -> str:
    """Return the output path of a step."""
    path = graph[index].override or f"{graph[index].name}-{short_hash(graph, index)}"
    return path if "://" in path else os.path.join(prefix, path)


def order(graph: Graph, roots: Sequence[int]) -> list[str]:
    """Return version texts in execution order: references before their step, blocking ones first."""
    texts: dict[str, None] = {}

    def visit(index: int) -> None:
        for step in references(graph, index, blocking=True) + references(graph, index, blocking=False):
            visit(step)
        texts.setdefault(version_text(graph, index))

    for root in roots:
        visit(root)
    return [*texts]


def needed(graph: Graph, roots: Sequence[int]) -> set[str]:
    """Return the version texts of the roots and of the steps that they wait for."""
    texts: set[str] = set()
    for root in roots:
        texts |= {version_text(graph, root)} | needed(graph, references(graph, root, blocking=True))
    return texts


def as_data(value: Any) -> Any:
    """Return JSON data for a value that JSON lacks."""
    if isinstance(value, datetime.timedelta):
        return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)
