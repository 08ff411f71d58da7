"""Sets that the second of two evaluations walks through in another order.

In which order a set of texts is walked through differs from process to process, and not between two evaluations in one.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tradewind.marin.refusals import SourceLine, notes, running_place

_COMBINED = ("or", "and", "sub", "xor", "ror", "rand", "rsub", "rxor")
_MADE = ("union", "intersection", "difference", "symmetric_difference", "copy")

walked: list[SourceLine] = []
"""The lines of the file that is evaluated which have walked through such a set."""


class _Reversed:
    """A set, walked through from its end where its order is nobody's."""

    def __iter__(self) -> Iterator[Any]:
        values: list[Any] = list(super().__iter__())  # type: ignore[misc]
        if len(values) < 2 or all(isinstance(value, numbers.Number) for value in values):
            return iter(values)
        if notes.root is not None and (place := running_place(notes.root)) is not None:
            walked.append(place)
        return iter(values[::-1])

    def __repr__(self) -> str:
        return repr(set(self)) if not self else f"{{{', '.join(map(repr, self))}}}"


class OtherSet(_Reversed, set[Any]):
    """``set``."""

    def pop(self) -> Any:
        value = next(iter(self))
        self.remove(value)
        return value


class OtherFrozenSet(_Reversed, frozenset[Any]):
    """``frozenset``."""

    def __repr__(self) -> str:
        return f"frozenset({super().__repr__() if self else ''})"


def _combining(kind: type[Any], name: str) -> Callable[..., Any]:
    def combined(self: Any, *others: Any) -> Any:
        made = getattr(super(kind, self), name)(*others)
        return made if made is NotImplemented else kind(made)

    return combined


for _kind in (OtherSet, OtherFrozenSet):
    for _name in (*(f"__{name}__" for name in _COMBINED), *_MADE):
        setattr(_kind, _name, _combining(_kind, _name))
_OTHERS: Mapping[type, type] = {set: OtherSet, frozenset: OtherFrozenSet}


def in_other_order(value: Any) -> Any:
    """``value``, or if it is a set, the same one in another order."""
    kind = _OTHERS.get(type(value))
    return value if kind is None else kind(value)
