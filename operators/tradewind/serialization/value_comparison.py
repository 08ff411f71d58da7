"""Compare a value of a file with those that two runs of the statements behind it give.

Values are compared by their type and their parts, never by a method of their own such as ``__eq__``: by the items of
plain data, by what a function or a class consists of, else by what ``pickle`` would store. A part that differs between
the two runs is made anew each time, so any other value of its kind counts as the same.
"""

from __future__ import annotations

import pickle
import re
import types
import warnings
from enum import Enum
from itertools import islice
from typing import Any, Final

_SCALARS: Final = (types.NoneType, bool, int, float, complex, str, bytes, types.EllipsisType)
DEFINED: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, Enum, re.Pattern)
_MAX_OBJECTS: Final = 250_000
Pairs = dict[tuple[int, int], tuple[Any, Any]]
"""Pairs of objects by their ids; holding the objects keeps each id in use."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class Verdict(Enum):
    SAME = "same"
    UNKNOWN = "unknown"
    """A part cannot be compared, such as a lock or an open file."""
    OTHER = "other"


def is_fixed(value: Any) -> bool:
    """Whether the value has no parts that could change."""
    return type(value) in _SCALARS or (type(value) in (tuple, frozenset) and not value)


def compare(actual: Any, one: Any, two: Any, module: str, known: Pairs) -> tuple[Verdict, list[Any]]:
    """Compare ``actual`` with what the two runs gave; also return the objects that the runs share with the file.

    What classes of ``module``, the file's, keep from ``pickle`` counts too. ``known`` has the pairs of objects that are
    the same by earlier calls, and gets those of this one.
    """
    verdict = Verdict.SAME
    shared = [actual] if actual is one else []
    seen: Pairs = {}
    pending = [whole := (actual, one, two)]
    while pending:
        three = actual, one, two = pending.pop()
        if is_fixed(actual) and actual is one:
            continue
        if not is_fixed(actual):
            key = id(actual), id(one)
            if key in seen or key in known or _is_flat_and_same(actual, one):
                continue
            seen[key] = actual, one
        if actual is one:
            if not isinstance(actual, DEFINED):
                shared.append(actual)
            if type(actual) in (list, tuple, dict):
                pending += [(each, each, each) for each in _items(actual)]
            continue
        if isinstance(actual, type) and three is not whole:  # its own name is compared by itself
            actual, one, two = (_name_of(each) if isinstance(each, type) else each for each in three)
        (kind, parts), (kind_of_one, parts_of_one), (kind_of_two, parts_of_two) = (
            _taken_apart(each, module) for each in (actual, one, two)
        )
        if kind_of_one != kind_of_two or _length(parts_of_one) != _length(parts_of_two):
            verdict = verdict if is_fixed(one) else Verdict.UNKNOWN
        elif kind != kind_of_one or _length(parts) != _length(parts_of_one):
            return Verdict.OTHER, shared
        elif parts is None or parts_of_one is None or parts_of_two is None or len(seen) > _MAX_OBJECTS:
            verdict = Verdict.UNKNOWN
            shared.append(whole[0])
        else:
            pending += zip(parts, parts_of_one, parts_of_two, strict=True)
    if verdict is Verdict.SAME:
        known.update(seen)
    return verdict, shared


def _length(parts: list[Any] | None) -> int:
    return -1 if parts is None else len(parts)


def _is_flat_and_same(actual: Any, one: Any) -> bool:
    """Whether both hold the same plain values only, which is known soon even if there are millions."""
    if type(actual) not in (list, tuple, dict) or type(one) is not type(actual) or actual is one:
        return False
    return all(type(item) in _SCALARS for item in _items(actual)) and pickle.dumps(actual) == pickle.dumps(one)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _taken_apart(value: Any, module: str) -> tuple[Any, list[Any] | None]:
    """Return what distinguishes the value from others of its size, and its parts; None if they are not known."""
    kind = _name_of(type(value))
    try:
        return _parts(value, kind, module)
    except Exception:  # by a method of its class, or since nothing can be known of it
        return kind, None


def _parts(value: Any, kind: str, module: str) -> tuple[Any, list[Any] | None]:
    if type(value) in _SCALARS:
        return (kind, repr(value) if isinstance(value, (float, complex)) else value), []
    if type(value) in (list, tuple):
        return kind, list(value)
    if type(value) in (dict, types.MappingProxyType):
        return kind, _items(dict(value))
    if type(value) in (set, frozenset):
        return kind, None if _ADDRESS.search(repr(value)) else sorted(value, key=repr)
    if isinstance(value, type):
        members = [(name, member) for name, member in vars(value).items() if _counts(name, member)]
        return (kind, _name_of(value)), [part for item in members for part in item]
    if isinstance(value, types.FunctionType):
        is_own = value.__globals__.get("__name__") == module  # libraries keep annotations in their functions
        cells = [cell.cell_contents for cell in value.__closure__ or () if is_own]
        code = value.__code__
        place = code.co_name, max(line for *_, line in code.co_lines() if line is not None)
        return (kind, *place), [value.__defaults__, value.__kwdefaults__, vars(value), *cells]
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return (kind, frame and frame.f_lasti), [dict(frame.f_locals)] if frame else []
    if isinstance(value, Enum):
        return (kind, value.name), [vars(value)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterators of some Pythons
        reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):  # found by its name
        return (kind, reduced), [getattr(value, "__dict__", None)]
    hidden = object.__getstate__(value) if type(value).__module__ == module else None
    return kind, [
        hidden,
        *reduced[:3],
        *(list(islice(each, _MAX_OBJECTS)) for each in reduced[3:5] if each is not None),
    ]


def _counts(name: str, member: Any) -> bool:
    """Whether a member of a class can change what its users get; annotations are texts in one of the runs."""
    is_own = name.startswith("__") and name.endswith("__") or name == "_abc_impl"
    return isinstance(member, types.FunctionType) if is_own else True


def _name_of(type_: type) -> str:
    return f"{type.__getattribute__(type_, '__module__')}.{type.__getattribute__(type_, '__qualname__')}"
