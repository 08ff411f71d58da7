"""Names that Levanter had and has no more, for the user's files, which are imported on the cluster as they are.

A file imports at its top what it needs for steps, for configs and for its functions alike. A class that is gone is its
light one, a name that stood in annotations is any type, and a function that is gone is refused when it is called.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

from tradewind.calls.errors import TranslationError
from tradewind.calls.references import Reference
from tradewind.marin.era import modules
from tradewind.marin.translation.given import era, installed
from tradewind.marin.translation.old_calls import accept_old_fields

_ELSEWHERE: Final = {"levanter.utils.types.BlockFoldable": "haliax.nn.scan:BlockFoldable"}
_LIBRARIES: Final = ("levanter", "haliax")


def provide() -> None:
    """Let the installed libraries have the era's names, in this process from now on."""
    if any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _OldNames())
    for name, module in list(sys.modules.items()):
        if _is_old(name):
            _extend(module)


class _OldNames(MetaPathFinder):
    """Finds modules of the libraries as ever, and those that are gone."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_old(name):
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            found.loader = _Extending(found.loader)
            return found
        if name in _LIBRARIES:
            return None
        return importlib.util.spec_from_loader(name, _Gone(), is_package=True)


class _Extending(Loader):
    """Loads a module, and lets it have the names that it had."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _extend(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Gone(Loader):
    """Makes a module of which only the names are left."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _extend(module, _refused)


def _is_old(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES and name in modules()


def _extend(module: ModuleType, otherwise: Callable[[str], Any] | None = None) -> None:
    """Let ``module`` look a name up among the era's, if it has none of its own; ``otherwise`` makes any other."""
    if "__getattr__" in vars(module):
        return

    def old(name: str) -> Any:
        full = f"{module.__name__}.{name}"
        if full in _ELSEWHERE:
            return Reference.parse(_ELSEWHERE[full]).load()
        known = not name.startswith("__") and name in dir(modules()[module.__name__]) and full not in modules()
        if known:
            return getattr(modules()[module.__name__], name)
        if otherwise is None or name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return otherwise(full)

    vars(module)["__getattr__"] = old
    accept_old_fields(module)


def _refused(full: str) -> Any:
    """A name of a module that is gone: it may be imported, and stand in annotations."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise TranslationError(f"{full} of {era(full)} is called, and {installed(full)} on the cluster has none.")

    return type(full.rpartition(".")[2], (), {"__new__": refuse, "__module__": full.rpartition(".")[0]})


__all__ = ["provide"]
