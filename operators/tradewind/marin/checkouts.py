"""Find a Marin checkout from the path in a DAG file, and check which version of Marin it is."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Final

from tradewind.marin.refusals import RefusedFileError
from tradewind.storage.bounded_read import SMALL, read_local
from tradewind.storage.toml_files import read_toml

CHECKOUT_VARIABLE: Final = "TRADEWIND_MARIN_CHECKOUT"
_EXPERIMENTS = "experiments"
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXECUTOR_FOLDERS: Final = ("src/marin/execution", "lib/marin/src/marin/execution")


def find_given(given: str | os.PathLike[str], dag_file: str | None) -> Path:
    """Return the file or folder that a DAG file names, in any supported position of the checkout.

    Raises:
        RefusedFileError: There is none; the text names the places.
    """
    path = Path(given).expanduser()
    if path.is_absolute():
        places = [path]
    else:
        around = Path(dag_file).resolve().parent if dag_file else Path.cwd()
        named = os.environ.get(CHECKOUT_VARIABLE)
        folders = [Path(named).expanduser()] if named else []
        folders += [around, around.parent, around / "marin", around.parent / "marin"]
        places = [folder / path for folder in dict.fromkeys(folders)]
    for place in places:
        if place.exists():
            return _behind_links(place)
    raise RefusedFileError(
        f"No {given} of a Marin checkout in {', '.join(str(place.parent) for place in places)}: put the checkout "
        f"there, give the absolute path, or set {CHECKOUT_VARIABLE}."
    )


def _behind_links(place: Path) -> Path:
    """Resolve links in ``place``; a link inside a checkout belongs to that checkout."""
    path = Path(os.path.abspath(place))
    root = _root_of(path, None)
    return root.resolve() / path.relative_to(root) if (root / _EXPERIMENTS).is_dir() else place.resolve()


def checkout_of(path: Path, given: str | os.PathLike[str] | None) -> Path:
    """Return the checkout that contains ``path``.

    Raises:
        RefusedFileError: ``given`` is no folder around it, or the checkout is of another version of Marin.
    """
    root = _root_of(path, given)
    check_executor_version(root)
    return root


def check_executor_version(root: Path) -> None:
    """Refuse a checkout whose executor is not the legacy API's: it gives steps other versions.

    A checkout without Marin's executor is accepted: then only its experiments are needed.

    Raises:
        RefusedFileError: The executor differs; the text names what is missing or new, and since when.
    """
    for folder in _EXECUTOR_FOLDERS:
        executor = root / folder / "executor.py"
        if executor.is_file():
            defined, imported = _names_in(executor)
            if "executor_main" not in defined:
                what = "has no executor_main, which Marin took out between June and October 2026"
            elif "fray" in imported:
                what = "imports fray, which steps run on since the end of 2025"
            else:
                continue
            raise _unsupported(root, f"its {folder}/executor.py {what}")
        if (root / folder / "step_spec.py").is_file():
            raise _unsupported(
                root, f"its {folder} has no executor.py, and in step_spec.py StepSpec, which came in 2026"
            )


def requirement_files(root: Path) -> list[Path]:
    """Return the files of a checkout that may list required libraries."""
    return [root / "pyproject.toml", *sorted(root.glob("lib/*/pyproject.toml"))]


def required_libraries(root: Path) -> frozenset[str]:
    """Return the libraries installed with the checkout, by import name where it equals the package name."""
    found: set[str] = set()
    for file in requirement_files(root):
        try:
            listed = read_toml(file).get("project", {}).get("dependencies", [])
            names = [_PACKAGE.match(each) for each in listed if ";" not in each]  # a marker limits it to some machines
        except (OSError, ValueError, AttributeError, TypeError):
            continue
        found |= {name.group().lower().replace("-", "_") for name in names if name is not None}
    return frozenset(found)


def _unsupported(root: Path, what: str) -> RefusedFileError:
    return RefusedFileError(
        f"{root} is a Marin checkout of an unsupported version: {what}. Use an earlier one, such as that of November "
        "3, 2025 (commit 1237e82a)."
    )


def _names_in(file: Path) -> tuple[set[str], set[str]]:
    """Return a file's names and the packages it imports; both empty if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(read_local(file, SMALL).text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()
    imported = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    imported |= {(node.module or "").partition(".")[0] for node in froms}
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return defined | {alias.name for node in froms for alias in node.names}, imported


def _root_of(path: Path, given: str | os.PathLike[str] | None) -> Path:
    if given is not None:
        root = Path(given).expanduser().resolve()
        if not root.is_dir() or not path.is_relative_to(root):
            raise RefusedFileError(f"checkout={str(given)!r} is no folder around {path}.")
        return root
    around = [path, *path.parents]
    roots = [folder.parent for folder in around if folder.name == _EXPERIMENTS and folder.is_dir()]
    with_sources = [folder for folder in (*roots, *around) if (folder / "src" / "marin").is_dir()]
    return next(iter([*with_sources, *roots]), path if path.is_dir() else path.parent)
