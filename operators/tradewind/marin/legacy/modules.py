"""Modules of the legacy API as an experiment imports them, created from the tables on first access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from tradewind.marin.legacy.classes import NAMES, Builder, ChoiceRegistry, PluginRegistry, builder
from tradewind.marin.legacy.table import module_rows, own_modules

_CHOICES: Final = {"ChoiceRegistry": ChoiceRegistry, "PluginRegistry": PluginRegistry}


class LegacyModule(ModuleType):
    """A module whose names are looked up in the tables on first access."""

    def __init__(self, name: str, made: Builder, all_names: frozenset[str]) -> None:
        super().__init__(name, f"{name} of November 2025, as far as configs hold its values.")
        self.__path__: list[str] = []
        self._builder = made
        self._names = all_names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        try:
            value = self._builder.find(full)
        except KeyError as error:
            if error.args != (full,):
                raise
            row = module_rows().get(self.__name__)
            if full not in modules() or (row and name in row.withheld):
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} in the tables") from None
            value = modules()[full]
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted(self._names)


class _Modules(Mapping[str, ModuleType]):
    def __init__(self) -> None:
        self._made: dict[str, ModuleType] = {}
        self._names = _names_of_modules()

    def __getitem__(self, name: str) -> ModuleType:
        if name not in self._made:
            self._made[name] = LegacyModule(name, builder(), self._names[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _names_of_modules() -> dict[str, frozenset[str]]:
    """Return every module with its names, including packages above the modules of the rows."""
    names: dict[str, set[str]] = {"draccus": set(_CHOICES), "draccus.choice_types": set(_CHOICES)}
    for module, row in module_rows().items():
        names.setdefault(module, set()).update(row.classes, row.constants, row.handed_on, row.types)
    for full in NAMES:
        module, _, name = full.rpartition(".")
        names.setdefault(module, set()).add(name)
    for module in [*names, *own_modules()]:
        parts = module.split(".")
        for cut in range(1, len(parts)):
            names.setdefault(".".join(parts[:cut]), set()).add(parts[cut])
        names.setdefault(module, set())
    withheld = {module: row.withheld for module, row in module_rows().items()}
    return {name: frozenset(names[name].difference(withheld.get(name, ()))) for name in sorted(names)}


@lru_cache(maxsize=1)
def modules() -> Mapping[str, ModuleType]:
    """Return module name -> module; each is created once, on first access.

    The modules contain only the classes, enums and constants whose values can reach a version. Reading any other name
    raises AttributeError. ``sys.modules`` does not contain them.
    """
    return _Modules()
