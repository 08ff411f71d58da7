"""Let installed classes accept legacy fields, because the user's files create some at import.

Also restore names that Levanter has removed, for the user's files, which the cluster imports unchanged. A file imports
at its top what it needs for steps, configs and functions alike. So a removed class becomes its light one, a name from
annotations any type, and a removed function is Tradewind's (``run_on_pod``) or raises an error when called.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

from tradewind.marin import utils
from tradewind.marin.legacy import modules
from tradewind.marin.legacy.classes import builder
from tradewind.marin.legacy.table import module_rows
from tradewind.marin.translation import (
    NO_CODE,
    WrittenConfig,
    default_of,
    installed_version,
    known_fields,
    renamed_fields,
    translate_fields,
    written_version,
)
from tradewind.serialization.errors import TranslationError
from tradewind.serialization.references import Reference, find_legacy_modules
from tradewind.serialization.spec import Encoder, decode

__all__ = ["accept_legacy_fields", "find_absent", "provide"]


class LegacyCall(WrittenConfig):
    """Arguments of a call of a class: plain values, and legacy defaults for the rest."""

    def read(self, name: str) -> Any:
        return self._fields[name]

    def take(self, name: str) -> Any:
        return self._fields.pop(name)

    def is_default(self, name: str) -> bool:
        has_default, default = default_of(self.of, name)
        return has_default and type(default) is type(self._fields[name]) and bool(default == self._fields[name])


def accept_legacy_fields(module: ModuleType) -> None:
    """Let the classes of ``module`` whose fields changed accept their former fields."""
    row = module_rows().get(module.__name__)
    for name in row.classes if row else ():
        made = vars(module).get(name)
        light = builder().find(f"{module.__name__}.{name}")
        if not isinstance(made, type) or not (dataclasses.is_dataclass(made) and dataclasses.is_dataclass(light)):
            continue
        of = f"{module.__name__}.{name}"
        if {spec.name for spec in dataclasses.fields(light)} - known_fields(made):
            _accept_legacy_fields(made, of)


def _accept_legacy_fields(made: Any, of: str) -> None:
    init, known, renamed = made.__init__, known_fields(made), renamed_fields(of)

    @functools.wraps(init)
    def accepting(self: Any, *args: Any, **words: Any) -> None:
        if type(self) is made and set(words) - known:
            words, args = current_fields(of, args, words, known), ()
        init(self, *args, **words)

    def old_name(self: Any, name: str) -> Any:
        if name in renamed and renamed[name] in known:
            return getattr(self, renamed[name])
        if name == "configs" and "components" in known:
            return {key: component.source for key, component in self.components.items()}
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    made.__init__ = accepting
    if not hasattr(made, "__getattr__"):
        made.__getattr__ = old_name
    if "flops_per_token" in vars(made) and "max_seq_len" in known:
        made.flops_per_token = _of_whole_length(made.flops_per_token)


def _of_whole_length(flops: Callable[[Any, int, int], Any]) -> Callable[..., Any]:
    """Compute the cost per token for the model's full length, unless the caller gives a length."""

    @functools.wraps(flops)
    def of_length(self: Any, vocab_size: int, context_length: int | None = None) -> Any:
        return flops(self, vocab_size, self.max_seq_len if context_length is None else context_length)

    return of_length


def current_fields(of: str, args: tuple[Any, ...], words: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Convert the arguments of a legacy call to fields of the installed class.

    Raises:
        TranslationError: A value has no counterpart.
    """
    specs = [spec for spec in dataclasses.fields(builder().find(of)) if spec.init]
    given = {**dict(zip((spec.name for spec in specs if not spec.kw_only), args, strict=False)), **words}
    for old, new in renamed_fields(of).items():
        if old in words:  # dataclasses.replace() passes the other one, too
            given.pop(new, None)
    for spec in specs:
        has_default, default = default_of(of, spec.name)
        if spec.name not in given and has_default:
            is_light = dataclasses.is_dataclass(default) and spec.name in known
            given[spec.name] = decode(Encoder(NO_CODE).encode(default, spec.name)) if is_light else default
    return translate_fields(LegacyCall(of, of.rpartition(".")[2], given), known)


_ELSEWHERE: Final = {
    "levanter.utils.types.BlockFoldable": "haliax.nn.scan:BlockFoldable",
    "levanter.infra.ray_tpu.run_on_pod": "tradewind.runtime:run_on_pod_multislice_resumable",
    "levanter.infra.ray_tpu.run_on_pod_multislice_resumable": "tradewind.runtime:run_on_pod_multislice_resumable",
    "levanter.infra.ray_tpu.run_on_pod_resumable": "tradewind.runtime:run_on_pod_resumable",
    "marin.utils.remove_tpu_lockfile_on_exit": "tradewind.runtime:remove_tpu_lockfile_on_exit",
    **{f"marin.utils.{name}": f"{utils.__name__}:{name}" for name in utils.__all__},
}
_LIBRARIES: Final = ("levanter", "haliax")
_OF_MARIN: Final = ("marin", "marin.resources", "marin.utils")
"""Modules of Marin that a cluster without a checkout's own has."""


def provide() -> None:
    """Add the legacy names to the installed libraries, for the rest of this process."""
    if any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _OldNames())
    find_legacy_modules()
    for name, module in list(sys.modules.items()):
        if _is_old(name):
            _extend(module)


def find_absent(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module that Marin's experiments import and that is not installed."""
    if name in _OF_MARIN:
        return importlib.util.spec_from_loader(name, _Gone(), is_package=True)
    if not _is_old(name):
        return None
    provide()
    return _OldNames().find_spec(name, path)


class _OldNames(MetaPathFinder):
    """Finds the libraries' modules as usual, and the removed ones."""

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
    """Loads a module and adds its former names."""

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
    """Creates a removed module, with names only."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _extend(module, None if module.__name__ in _OF_MARIN else _refused_name)


def _is_old(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES and name in modules()


def _extend(module: ModuleType, otherwise: Callable[[str], Any] | None = None) -> None:
    """Let ``module`` look up missing names among the legacy ones; ``otherwise`` creates any other."""
    if "__getattr__" in vars(module):
        return

    def old(name: str) -> Any:
        full = f"{module.__name__}.{name}"
        if full in _ELSEWHERE:
            return Reference.parse(_ELSEWHERE[full]).load()
        legacy = modules().get(module.__name__)
        if not name.startswith("__") and full not in modules() and hasattr(legacy, name):
            return getattr(legacy, name)
        if otherwise is None or name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return otherwise(full)

    vars(module)["__getattr__"] = old
    accept_legacy_fields(module)


def _refused_name(full: str) -> Any:
    """Return a name of a removed module: it can be imported and used in annotations."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise TranslationError(
            f"{full} of {written_version(full)} is called, and {installed_version(full)} on the cluster lacks it."
        )

    return type(full.rpartition(".")[2], (), {"__new__": refuse, "__module__": full.rpartition(".")[0]})
