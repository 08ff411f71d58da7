"""Bound values from outside before any recursion: depth, number, length, and no cycles.

Walking a config recurses, and copies a value wherever it occurs. A list that contains itself, a thousand levels, or
twenty lists that each contain the former ten times would end in Python's own errors, or run for hours. This module does
not recurse, and counts each container once, however often it occurs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from tradewind.steps.errors import StepConfigError
from tradewind.steps.placeholders import Lazy, MirroredValue, VersionedValue
from tradewind.text import MAX_INT_BITS, truncated_repr

PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Classes of values without contents."""
MAX_DEPTH: Final = 100
MAX_VALUES: Final = 1_000_000
MAX_CHARACTERS: Final = 64 << 20
"""Limit for texts and config paths, which are written at every value."""
_MAX_KEY_CHARS: Final = 40


def check_bounded(value: Any, where: str, *, is_json: bool = False) -> None:
    """Refuse a value that cannot be walked; ``where`` begins its config paths in messages.

    Args:
        is_json: Also refuse what Airflow's database cannot store as JSON: NaN, infinities, NULs, and lone surrogates.

    Raises:
        StepConfigError: It is too deep, too large, or cyclic.
    """
    _Count(where, is_json).add(value)


@dataclass
class _Measure:
    """Counts of a container, during and after its walk."""

    value: Any
    name: str
    rest: Iterator[tuple[str, Any]]
    height: int = 1
    values: int = 1
    characters: int = 0


@dataclass
class _Count:
    """Walks a value without recursion."""

    where: str
    is_json: bool
    _path: list[_Measure] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _done: dict[int, _Measure] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Count all of ``value``."""
        self._enter("", value)
        while self._path:
            top = self._path[-1]
            for name, inner in top.rest:
                if self._enter(name, inner):
                    break
            else:
                self._leave()

    def _enter(self, name: str, value: Any) -> bool:
        """Count an occurrence of ``value``; True if it is a container that must be walked first."""
        if value is None or isinstance(value, (str, bytes, int, float)):
            self._take(1, 1, self._leaf(name, value), name)
            return False
        known = self._done.get(id(value))
        if known is not None:
            self._take(known.height, known.values, known.characters, name)
            return False
        if id(value) in self._open:
            raise StepConfigError(f"{self._place(name)} contains itself: write what it is made from instead.")
        parts = _parts(value)
        if parts is None:
            self._take(1, 1, 0, name)
            return False
        self._open.add(id(value))
        self._path.append(_Measure(value, name, parts))
        self._check_depth(0, "")
        return True

    def _leaf(self, name: str, value: Any) -> int:
        """Return the number of characters of a plain value."""
        if isinstance(value, str) and self.is_json and (problem := _problem_of_text(value)):
            raise StepConfigError(f"{self._place(name)} holds {problem}, which no database stores: give other text.")
        if isinstance(value, (str, bytes)):
            return len(value)
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise StepConfigError(
                f"{self._place(name)} is a whole number of about {int(value.bit_length() * math.log10(2))} digits, "
                "which is too long to write: give it as text."
            )
        if self.is_json and isinstance(value, float) and not math.isfinite(value):
            raise StepConfigError(f"{self._place(name)} is {value}, which JSON has no form for: give a number.")
        return 1

    def _leave(self) -> None:
        measure = self._path.pop()
        self._open.discard(id(measure.value))
        self._done[id(measure.value)] = measure
        if self._path:
            self._take(measure.height, measure.values, measure.characters, measure.name)

    def _take(self, height: int, values: int, characters: int, name: str) -> None:
        """Add the counts to the enclosing container."""
        if not self._path:
            top = _Measure(None, "", iter(()), 0, 0)
        else:
            top = self._path[-1]
            self._check_depth(height, name)
        top.height = max(top.height, height + 1)
        top.values += values
        top.characters += characters + len(name) * values
        if top.values > MAX_VALUES:
            raise StepConfigError(
                f"{self._place('')} holds more than {MAX_VALUES} values, counting each occurrence: let the "
                "step read them from a file."
            )
        if top.characters > MAX_CHARACTERS:
            raise StepConfigError(
                f"{self._place(name)} makes more than {MAX_CHARACTERS >> 20} MiB of text: let the step read it from a "
                "file."
            )

    def _check_depth(self, height: int, name: str) -> None:
        if len(self._path) + height > MAX_DEPTH + 1:
            raise StepConfigError(f"{self._place(name)} is nested more than {MAX_DEPTH} levels deep: make it flatter.")

    def _place(self, name: str) -> str:
        names = [measure.name for measure in self._path if measure.name] + ([name] if name else [])
        shown = names if len(names) <= 6 else [*names[:3], "...", *names[-2:]]
        return ".".join([self.where, *(key[:_MAX_KEY_CHARS] for key in shown)])


def _problem_of_text(text: str) -> str:
    if "\0" in text:
        return "a NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a character (a lone surrogate)"
    return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return a container's contents by name; None for values that are not walked."""
    if isinstance(value, Lazy):
        return iter(value.kwargs.items())
    if isinstance(value, Enum):
        return iter([("value", value.value)])
    if isinstance(value, dict):
        return _items(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"[{i}]", inner) for i, inner in enumerate(value))
    if isinstance(value, (VersionedValue, MirroredValue)):
        return iter([("", value.value)])
    if (names := field_names(type(value))) is not None and not _is_placeholder(type(value)):  # type: ignore[arg-type]
        return ((name, getattr(value, name, None)) for name in names)
    return None


def _items(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Return the values of a dictionary, and its keys, which are written too."""
    for key, inner in value.items():
        yield "", key
        yield key if isinstance(key, str) else truncated_repr(key), inner


@lru_cache(maxsize=4096)
def field_names(kind: type[Any]) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, cached; None for other classes."""
    is_config = dataclasses.is_dataclass(kind) and not issubclass(kind, type)
    return tuple(spec.name for spec in dataclasses.fields(kind)) if is_config else None


@lru_cache(maxsize=4096)
def _is_placeholder(kind: type[Any]) -> bool:
    """Whether it is a step, a reference or a run value; a step's class may be Marin's."""
    is_own = any(base.__module__.startswith("tradewind.steps.") for base in kind.__mro__)
    return is_own and not issubclass(kind, (VersionedValue, MirroredValue))
