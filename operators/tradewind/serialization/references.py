"""How a function or a class of the DAG's repository is named so that a cluster can import it.

Airflow loads a DAG file under a made-up module name. What is defined there is named by the module that the file is
below the code folder, which travels to the cluster as Ray's working directory. Everything else is named as it is.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.serialization.errors import FunctionImportError, SpecError
from tradewind.steps import ClusterValue, ModuleReference, RemoteFunction, cluster_reference
from tradewind.steps.stable_json import SYNTHETIC_MODULES

_FOR_OTHERS: Final = (
    "Install the module in the cluster's image, or keep it in the DAGs folder, which travels with the job."
)
_FOR_MARIN: Final = (
    "It is Marin's own and runs from the checkout, with the libraries of that time: give the cluster an image with "
    "those, or the step a function of your own."
)
_OLD_LIBRARIES: Final = ("levanter.", "haliax.")
_NOT_USERS: Final = ("levanter", "haliax", "marin")
_OLD_NAMES: Final = "tradewind.marin.old_names"
"""What gives the installed libraries the names that Marin's experiments import; named here, since it is built on this.
"""
_loaded_apart: dict[str, list[str]] = {}
"""Module -> its files: each of two checkouts in one deployment may have a module of that name."""


def register_module_file(module_name: str, file: str) -> None:
    """Remember the file of a module that is not in ``sys.modules``: those of a Marin checkout are loaded apart."""
    files = _loaded_apart.setdefault(module_name, [])
    if file not in files:
        files.append(file)


@dataclass(frozen=True)
class CodeFolder:
    """The folder that the DAG's own code is imported from: the root of its DAG bundle."""

    path: Path

    def contains_module(self, module_name: str) -> bool:
        """Whether the module was loaded from this folder (rather than installed)."""
        return self.relative_file(module_name) is not None

    def relative_file(self, module_name: str) -> Path | None:
        """The module's file below this folder, or None when it lies elsewhere."""
        imported = getattr(sys.modules.get(module_name), "__file__", None)
        root = Path(os.path.realpath(self.path))
        for file in [imported] if imported else _loaded_apart.get(module_name, []):
            path = Path(os.path.realpath(file))
            if path.is_relative_to(root) and "site-packages" not in path.parts:
                return path.relative_to(root)
        return None

    def sources(self) -> list[str]:
        """Folders below this one that modules are found in, besides itself: those of a Marin checkout."""
        if not (self.path / "experiments").is_dir() or not (self.path / "src" / "marin").is_dir():
            return []
        return [str(each.relative_to(self.path)) for each in (self.path / "src", *sorted(self.path.glob("lib/*/src")))]

    def commit(self) -> str | None:
        """The Git commit that is checked out around this folder, read without Git; None outside a repository."""
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
    """``module:qualname`` of something that can be imported; ``travels`` says that it lies in the code folder."""

    module: str
    qualname: str
    travels: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"

    @staticmethod
    def parse(text: str) -> Reference:
        """The reference in ``module:qualname``."""
        module, _, qualname = text.partition(":")
        return Reference(module, qualname)

    def load(self) -> Any:
        """Import what this refers to.

        Raises:
            FunctionImportError: The module is not there, breaks on import, or lacks the name.
        """
        try:
            return self._found()
        except Exception as error:
            if _needs_old_names(error) and self.module.partition(".")[0] not in _NOT_USERS:
                importlib.import_module(_OLD_NAMES).provide()
                return self._found_again()
            raise self._unimportable(error) from error

    def _found_again(self) -> Any:
        try:
            return self._found()
        except Exception as error:
            raise self._unimportable(error) from error

    def _found(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for name in self.qualname.split("."):
            found = getattr(found, name)
        return found

    def _unimportable(self, error: Exception) -> FunctionImportError:
        advice = _FOR_MARIN if self.module.partition(".")[0] == "marin" else _FOR_OTHERS
        return FunctionImportError(
            f"{self.qualname!r} of module {self.module!r} cannot be imported on the cluster "
            f"({type(error).__name__}: {error}). {advice}"
        )


def _needs_old_names(error: Exception) -> bool:
    """Whether a file may want what the installed Levanter has no more: a name, or a field of a class."""
    if isinstance(error, TypeError):
        return any(name.startswith(_OLD_LIBRARIES) for name in sys.modules)
    return isinstance(error, ImportError) and (error.name or "").startswith(_OLD_LIBRARIES)


def reference_to(target: Any, code: CodeFolder) -> Reference:
    """How a cluster can import ``target``, a function or a class.

    Raises:
        SpecError: It is a lambda or local to a function, or its file cannot be a module.
    """
    if isinstance(target, RemoteFunction):
        target = target.function
    elif type(target).__module__ == "ray.remote_function":  # Ray's own, told without importing Ray
        target = target._function
    if isinstance(target, ClusterValue):
        way = cluster_reference(target)
        module, qualname = (way.module, way.path) if isinstance(way, ModuleReference) else (None, None)
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
    """``module.qualname`` of a step's function, as records name it; ``"None"`` for a step without one.

    A step that is not run may have one that no cluster could import: it is named as it is.
    """
    if function is None:
        return "None"
    try:
        reference = reference_to(function, code)
        return f"{reference.module}.{reference.qualname}"
    except SpecError:
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
