"""References to functions and classes of the DAG's repository that a cluster can import.

Airflow loads a DAG file under a generated module name. Its definitions are named by the file's module below the code
folder, which travels to the cluster as Ray's working directory. All other references keep their module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tradewind.serialization import absent_airflow
from tradewind.serialization.errors import FunctionImportError, SpecError
from tradewind.steps import ClusterValue, ModuleReference, cluster_reference, plain_function
from tradewind.steps.stable_json import SYNTHETIC_MODULES

_INSTALL_ADVICE: Final = (
    "Install the module in the cluster's image, or keep it in the DAGs folder, which travels with the job."
)
_MARIN_ADVICE: Final = (
    "It is Marin's own and runs from the checkout, with the libraries of that time: give the cluster an image with "
    "those, or the step a function of your own."
)
_OLD_LIBRARIES: Final = ("levanter.", "haliax.")
_LIBRARIES: Final = ("levanter", "haliax", "marin")
_OLD_NAMES: Final = "tradewind.marin.old_names"
"""Gives the installed libraries the names that Marin's experiments import; a text, since that module imports this one.
"""
_ZEPHYR: Final = "tradewind.marin.zephyr"
"""Gives Zephyr's names of November 2025, as a text likewise."""
_MODULE_ENDS: Final = (".py", "/__init__.py")
_registered_files: dict[str, list[str]] = {}
"""Module -> its files: two checkouts in one deployment may each have a module of that name."""


def register_module_file(module_name: str, file: str) -> None:
    """Register the file of a module that is not in ``sys.modules``, like those of a Marin checkout."""
    files = _registered_files.setdefault(module_name, [])
    if file not in files:
        files.append(file)


@dataclass(frozen=True)
class CodeFolder:
    """The root of the DAG's bundle, from which the DAG's own code is imported."""

    path: Path

    def relative_file(self, module_name: str) -> Path | None:
        """Return the module's file relative to this folder, or None if it is elsewhere."""
        imported = getattr(sys.modules.get(module_name), "__file__", None)
        root = Path(os.path.realpath(self.path))
        for file in [imported] if imported else _registered_files.get(module_name, []):
            path = Path(os.path.realpath(file))
            if path.is_relative_to(root) and "site-packages" not in path.parts:
                return path.relative_to(root)
        return None

    def sources(self) -> list[str]:
        """Further import folders below this one: those of a Marin checkout."""
        if not (self.path / "experiments").is_dir() or not (self.path / "src" / "marin").is_dir():
            return []
        folders = (self.path / "src", *sorted(self.path.glob("lib/*/src")))
        return [str(each.relative_to(self.path)) for each in folders if each.parent.name != "zephyr"]  # see _ZEPHYR

    def files_of(self, modules: Iterable[str]) -> list[str]:
        """Return the files of the modules in this folder, relative to it."""
        names = [module.replace(".", "/") for module in modules]
        files = [Path(root, f"{name}{end}") for root in ("", *self.sources()) for name in names for end in _MODULE_ENDS]
        return [str(file) for file in files if (self.path / file).is_file()]

    def commit(self) -> str | None:
        """Return the checked-out Git commit, read without Git; None outside a repository."""
        root = next((parent for parent in (self.path, *self.path.parents) if (parent / ".git").is_dir()), None)
        if root is None:
            return None
        try:
            head = (root / ".git" / "HEAD").read_text().strip()
            if not head.startswith("ref: "):
                return head
            name = head.removeprefix("ref: ")
            loose = root / ".git" / name
            if loose.exists():
                return loose.read_text().strip()
            packed = (root / ".git" / "packed-refs").read_text().splitlines()
        except OSError:
            return None
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)


@dataclass(frozen=True)
class Reference:
    """An importable ``module:qualname``; ``travels`` means that it is in the code folder."""

    module: str
    qualname: str
    travels: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"

    @staticmethod
    def parse(text: str) -> Reference:
        """Parse ``module:qualname``."""
        module, _, qualname = text.partition(":")
        return Reference(module, qualname)

    def load(self) -> Any:
        """Import what this refers to.

        Raises:
            FunctionImportError: The module is missing, fails on import, or lacks the name.
        """
        try:
            return self._import_anywhere()
        except Exception as error:
            if not _needs_old_names(error) or self.module.partition(".")[0] in _LIBRARIES:
                raise self._unimportable(error) from error
        importlib.import_module(_OLD_NAMES).provide()
        try:
            return self._import()
        except Exception as error:
            raise self._unimportable(error) from error

    def _import_anywhere(self) -> Any:
        try:
            return self._import()
        except ModuleNotFoundError as error:
            if not absent_airflow.is_absent(error):
                raise
        absent_airflow.provide()
        return self._import()

    def _import(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for name in self.qualname.split("."):
            found = getattr(found, name)
        return found

    def _unimportable(self, error: Exception) -> FunctionImportError:
        advice = _MARIN_ADVICE if self.module.partition(".")[0] == "marin" else _INSTALL_ADVICE
        return FunctionImportError(
            f"{self.qualname!r} of module {self.module!r} cannot be imported on the cluster "
            f"({type(error).__name__}: {error}). {advice}"
        )


def _needs_old_names(error: Exception) -> bool:
    """Whether a file may use a name or a class field that the installed Levanter lacks."""
    if isinstance(error, TypeError):
        return any(name.startswith(_OLD_LIBRARIES) for name in sys.modules)
    return isinstance(error, ImportError) and (error.name or "").startswith(_OLD_LIBRARIES)


class _LegacyModules(MetaPathFinder):
    """Finds modules that Marin's experiments import and that neither the checkout nor an installed library has."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in _LIBRARIES:
            return None
        found: ModuleSpec | None = importlib.import_module(_OLD_NAMES).find_absent(name, path)
        return found


class _Zephyr(MetaPathFinder):
    """Finds Zephyr, with names that an installed one lacks."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "zephyr":
            return None
        found: ModuleSpec | None = importlib.import_module(_ZEPHYR).find_zephyr(name, path)
        return found


def uses_legacy_names() -> bool:
    """Whether this process has imported legacy names."""
    return _OLD_NAMES in sys.modules


def find_legacy_modules(*, with_names: bool = False) -> None:
    """Let this process import such modules, and names that installed modules lack; nothing is loaded before that."""
    if with_names:
        importlib.import_module(_OLD_NAMES).provide()
    elif not any(isinstance(finder, _LegacyModules) for finder in sys.meta_path):
        sys.meta_path.append(_LegacyModules())
        sys.meta_path.insert(0, _Zephyr())
        if "zephyr" in sys.modules:
            importlib.import_module(_ZEPHYR).extend_imported()


def worker_setup() -> dict[str, str] | None:
    """Return a ``runtime_env`` whose Ray workers import what this process does: legacy names, or absent modules."""
    zephyr = sys.modules.get(_ZEPHYR)
    names = _OLD_NAMES if uses_legacy_names() else _ZEPHYR if zephyr is not None and zephyr.is_provided() else None
    absent = absent_airflow.__name__ if absent_airflow.is_provided() else None
    hook = f"{__name__}.provide_all" if names and absent else f"{names or absent}.provide"
    return {"worker_process_setup_hook": hook} if names or absent else None


def provide_all() -> None:
    """Let this process, a worker of Ray, import legacy names and modules of Airflow, which it lacks."""
    absent_airflow.provide()
    find_legacy_modules(with_names=True)


def reference_to(target: Any, code: CodeFolder) -> Reference:
    """Return how a cluster can import ``target``, a function or a class.

    Raises:
        SpecError: It is a lambda or local to a function, or its file's name is not a module name.
    """
    target = plain_function(target)
    if isinstance(target, ClusterValue):
        value = cluster_reference(target)
        module, qualname = (value.module, value.path) if isinstance(value, ModuleReference) else (None, None)
    else:
        module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise SpecError(
            f"{qualname or target!r} cannot be imported on a cluster, because it is a lambda, a local function or no "
            "plain function at all: define it at the top level of a module."
        )
    file = code.relative_file(module)
    if file is None:
        if module.startswith(SYNTHETIC_MODULES):
            raise SpecError(f"{qualname!r} is defined in a file outside the DAGs folder {code.path}: move it there.")
        return Reference(module, qualname)
    if not module.startswith(SYNTHETIC_MODULES):
        return Reference(module, qualname, travels=True)
    parts = file.with_suffix("").parts
    if not all(part.isidentifier() for part in parts):
        raise SpecError(f"{qualname!r} is defined in {file}, whose path is no Python module name: rename the file.")
    return Reference(".".join(parts), qualname, travels=True)


def function_name(function: Any, code: CodeFolder) -> str:
    """Return ``module.qualname`` of a step's function for records; ``"None"`` for a step without one.

    The function of a step that does not run may be impossible to import: its name is used unchanged.
    """
    if function is None:
        return "None"
    try:
        reference = reference_to(function, code)
        return f"{reference.module}.{reference.qualname}"
    except SpecError:
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
