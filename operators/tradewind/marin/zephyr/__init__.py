"""Zephyr's names of November 2025 on a cluster, where they run on Tradewind's engine.

Without an installed Zephyr all names are Tradewind's. An installed one is the real one, and gets the names that it has
removed since, such as ``flow_backend``: its data sets are converted when they are executed. This module is imported
only once something imports ``zephyr``, and loads nothing of the engine before a name is asked for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

__all__ = ["NAMES", "extend_imported", "find_zephyr", "is_missing", "is_provided", "provide"]

_FLOWS: Final = "tradewind.marin.zephyr.flows"
_READERS: Final = "tradewind.datasets.readers"
_BACKENDS: Final = {
    "create_backend": _FLOWS,
    "flow_backend": _FLOWS,
    "set_flow_backend": "tradewind.datasets.backends",
}
_DATASET: Final = {"Dataset": _FLOWS, "ShardInfo": "tradewind.datasets.dataset"}
_LOADERS: Final = dict.fromkeys(("load_file", "load_jsonl", "load_parquet", "load_zip_members"), _READERS)
_WRITERS: Final = dict.fromkeys(("atomic_rename", "write_jsonl_file", "write_parquet_file"), _FLOWS)
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "zephyr": {"Backend": "tradewind.datasets.backends", **_BACKENDS, **_DATASET, **_LOADERS, **_WRITERS},
    "zephyr.backend_factory": _BACKENDS,
    "zephyr.backends": {"Backend": "tradewind.datasets.backends"},
    "zephyr.counters": {"increment": "tradewind.datasets.counters"},
    "zephyr.dataset": _DATASET,
    "zephyr.readers": {**_LOADERS, "SUPPORTED_EXTENSIONS": _FLOWS, "open_file": _FLOWS},
    "zephyr.writers": _WRITERS,
}
"""Module of Zephyr → name in it → module of Tradewind's that has it."""
_provided: set[str] = set()


def is_missing(name: str) -> bool:
    """Whether neither ``name``, such as ``zephyr.flow_backend``, nor a module of that name is in ``NAMES``."""
    module, _, last = name.rpartition(".")
    return name not in NAMES and last not in NAMES.get(module, {})


def is_provided() -> bool:
    """Whether this process uses a module or a name that Tradewind has in Zephyr's place."""
    return bool(_provided)


def provide() -> None:
    """Let this process, a worker of Ray, import Zephyr's names."""
    from tradewind.serialization.references import find_legacy_modules

    find_legacy_modules()


def find_zephyr(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module of an installed Zephyr, else one of Tradewind's."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        if name in NAMES:
            spec.loader = _Extending(spec.loader)
        return spec
    return importlib.util.spec_from_loader(name, _Absent(), is_package=True) if name in NAMES else None


def extend_imported() -> None:
    """Add the names to the modules of an installed Zephyr that this process has imported already."""
    for name in NAMES:
        if name in sys.modules:
            _extend(sys.modules[name])


class _Absent(Loader):
    """Makes a module with Tradewind's names."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _provided.add(module.__name__)
        _extend(module)


class _Extending(Loader):
    """Loads a module of the installed Zephyr and adds the names that it lacks."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _extend(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _extend(module: ModuleType) -> None:
    vars(module).setdefault("__getattr__", _lookup(module.__name__))


def _accept_old_calls() -> None:
    """Something asks for a name that an installed Zephyr has removed, so it also calls others as they were."""
    for module in [sys.modules[name] for name in NAMES if name in sys.modules]:
        if not isinstance(module.__loader__, _Absent) and "__accepts_old_calls__" not in vars(module):
            vars(module)["__accepts_old_calls__"] = True
            import_module(_FLOWS).accept_old_calls(module)


def _lookup(module: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        source = NAMES[module].get(name)
        if source is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _accept_old_calls()
        _provided.add(f"{module}.{name}")
        return getattr(import_module(source), name)

    return find
