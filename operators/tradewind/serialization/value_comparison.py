"""Compare the values that two runs of the same statements give a name.

Plain data, containers, classes and data objects are compared by content, functions by name. Other objects count as the
same, since their state may differ from run to run.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import types
from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any

_PLAIN = (
    str, bytes, bytearray, int, float, complex, bool, types.NoneType, PurePath, datetime.date, datetime.time,
    datetime.timedelta, datetime.tzinfo, Decimal, range, re.Pattern,
)  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_COMPARED = (*_PLAIN, list, tuple, deque, set, frozenset, dict, types.SimpleNamespace)
_MAX_DEPTH = 40


class ValueComparison:
    """Comparison of two values that two runs of the same statements made; what it does not know counts as the same.

    Args:
        module: The module of the file.
        defined: The classes that the slice defines.
    """

    def __init__(self, module: str, defined: Iterable[str]) -> None:
        self._module = module
        self._defined = set(defined)
        self._seen: set[tuple[int, int]] = set()

    def is_same(self, one: Any, other: Any) -> bool:
        try:
            return self._same(one, other, 0)
        except Exception:  # by a method of the value's class
            return True

    def _same(self, one: Any, other: Any, depth: int) -> bool:
        if one is other or depth > _MAX_DEPTH or (id(one), id(other)) in self._seen:
            return True
        kind = self._kind(one)
        kind_of_other = self._kind(other)
        if not kind or not kind_of_other:
            return not {kind, kind_of_other} & {"plain", "list", "set", "dict"}
        if kind != kind_of_other:
            return False
        if kind == "function":
            return _name_of(one) == _name_of(other)
        if kind != "class" and type(one).__qualname__ != type(other).__qualname__:
            return False
        if kind == "plain":
            return _is_equal(one, other)
        if kind == "enum":
            return bool(one.name == other.name)
        self._seen.add((id(one), id(other)))
        return self._same_parts(kind, one, other, depth + 1)

    def _kind(self, value: Any) -> str:
        if isinstance(value, type):
            return "class"
        if isinstance(value, _FUNCTIONS):
            return "function"
        kinds: dict[str, Any] = {
            "enum": Enum,
            "plain": _PLAIN,
            "list": (list, tuple, deque),
            "set": (set, frozenset),
            "dict": dict,
        }
        for kind, classes in kinds.items():
            if isinstance(value, classes):
                return kind
        made_here = type(value).__module__ == self._module and type(value).__name__ in self._defined
        is_data = dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace)
        return "instance" if made_here or is_data else ""

    def _same_parts(self, kind: str, one: Any, other: Any, depth: int) -> bool:
        if kind == "list":
            return len(one) == len(other) and all(self._same(*pair, depth) for pair in zip(one, other, strict=True))
        if kind == "set":
            return len(one) == len(other) and _plain_of(one) == _plain_of(other)
        if kind == "dict":
            pairs = zip(one.items(), other.items(), strict=True)
            return len(one) == len(other) and all(self._same(*pair, depth) for pair in pairs)
        if kind == "class":
            return one.__qualname__ == other.__qualname__ and self._same_parts(
                "dict", _constants(one), _constants(other), depth
            )
        return self._same_parts("dict", _fields(one), _fields(other), depth)


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other or (one != one and other != other))  # NaN
    except Exception:
        return True


def _plain_of(values: Iterable[Any]) -> set[Any]:
    return {value for value in values if isinstance(value, _PLAIN) and value == value}


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", getattr(function, "__name__", "")))


def _constants(class_: type) -> dict[str, Any]:
    members = vars(class_).items()
    return {name: value for name, value in members if not name.startswith("__") and isinstance(value, _COMPARED)}


def _fields(instance: Any) -> dict[str, Any]:
    found = getattr(instance, "__dict__", None)
    if found is None and dataclasses.is_dataclass(instance):
        found = {field.name: getattr(instance, field.name, None) for field in dataclasses.fields(instance)}
    return dict(found or {})
