"""Libraries of Marin's that a step's function names and that Tradewind's clusters lack.

A step whose function imports one of them fails on the cluster, so the loader tells the user when it makes the DAG.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tradewind.marin.names.steps import replacement_for
from tradewind.marin.sandbox.stubs import Stub, StubModule, stub_origin
from tradewind.steps import ModuleReference, RemoteFunction, cluster_reference

_OF_THEN: Final = "which runs from the checkout, with libraries of its time that the step must bring to the cluster"
_NEEDS: Final[Mapping[str, str]] = {
    "zephyr": "of Marin's library of data flows, which the step must bring to the cluster",
    "fray": "of Marin's library of clusters, which the step must bring to the cluster",
    "marin.evaluation": _OF_THEN,
    "marin.generation": _OF_THEN,
    "marin.rl": _OF_THEN,
    "marin.post_training": _OF_THEN,
}
"""Package → why a function of it fails on the cluster."""
_MAX_FUNCTIONS: Final = 500


def need_of(function: Any) -> str | None:
    """Return what a step's function needs that the cluster lacks, as a clause; None if nothing is known of it."""
    if replacement_for(function) is not None:
        return None
    pending, seen = [function], set[int]()
    while pending and len(seen) < _MAX_FUNCTIONS:
        each = pending.pop()
        if isinstance(each, RemoteFunction):
            each = each.function
        if id(each) in seen:
            continue
        seen.add(id(each))
        if (name := _name_of(each)) and (package := _package_of(name)):
            return f"it uses {name}, {_NEEDS[package]}"
        if isinstance(each, types.FunctionType):
            pending += _used_by(each)
    return None


def _package_of(name: str) -> str | None:
    return next((package for package in _NEEDS if name == package or name.startswith(f"{package}.")), None)


def _name_of(value: Any) -> str:
    """Return the full name of a function, a module, or a value of a library."""
    if isinstance(value, str):
        return value
    if isinstance(value, Stub):
        found = cluster_reference(value)
        return f"{found.module}.{found.path}" if isinstance(found, ModuleReference) else stub_origin(value).module
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return value.__name__ if isinstance(value, StubModule) else ""


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield the global values that the code of ``function`` names, and its other names: imports are among them."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        yield from (function.__globals__.get(name, name) for name in code.co_names)
