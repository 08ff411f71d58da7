"""Import a DAG file on a cluster without Airflow: modules of Airflow without contents.

A step's function and its config's class may be in a file that also makes a DAG with Airflow. Only they are used on a
cluster; what the file makes with Airflow is never looked at there. Ray's workers run ``provide`` by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from tradewind.serialization.file_statements import is_of_airflow


class Nothing:
    """Value of any name of Airflow: what a DAG file makes with it is nothing again, and has no text, size or truth."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):  # Python and libraries look for their own methods
            raise AttributeError(name)
        return self

    def _nothing(self, *_: Any, **__: Any) -> Nothing:
        return self

    __call__ = __getitem__ = __enter__ = _nothing
    __add__ = __radd__ = __rshift__ = __rrshift__ = __lshift__ = __rlshift__ = __or__ = __ror__ = __and__ = _nothing
    __sub__ = __rsub__ = __mul__ = __truediv__ = __mod__ = _nothing

    def __exit__(self, *_: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def _refuse(self, *_: Any) -> NoReturn:
        raise ImportError(
            "This file reads a value that it has from Airflow, which this cluster lacks: put what steps need into a "
            "module of its own, without Airflow."
        )

    # A made-up value would make a wrong output in silence.
    __bool__ = __iter__ = __len__ = __int__ = __float__ = __index__ = __fspath__ = __contains__ = _refuse
    __str__ = __format__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return () if any(isinstance(base, type) for base in bases) else (object,)


class _Module(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class _AbsentAirflow(MetaPathFinder, Loader):
    """Finds the modules of Airflow, and those of this package that import it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if is_of_airflow(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def is_absent(error: Exception) -> bool:
    """Whether an import failed since Airflow is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "airflow"


def provide() -> None:
    """Let this process import modules of Airflow, which it lacks."""
    if not is_provided():
        for name in [*filter(is_of_airflow, sys.modules)]:
            del sys.modules[name]  # a part of one that failed
        sys.meta_path.insert(0, _AbsentAirflow())


def is_provided() -> bool:
    """Whether this process has such modules."""
    return any(isinstance(finder, _AbsentAirflow) for finder in sys.meta_path)
