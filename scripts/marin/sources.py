"""Read the sources of the legacy libraries as text, and resolve the names of each module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

VERSIONS: Final = {"levanter": "1.2.dev1644", "haliax": "1.4.dev450"}
MARIN: Final = "1237e82af34d205948fa32127fd5ac38504b9c09"


@dataclass
class Module:
    """Names of one source file.

    Attributes:
        name: For example ``levanter.models.llama``.
        names: Local name -> its dotted name, through imports.
        stars: Modules of its star imports.
    """

    name: str
    is_package: bool
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    values: dict[str, ast.expr] = field(default_factory=dict)


def read_sources(folder: Path, libraries: Iterable[str]) -> dict[str, Module]:
    """Read every module of the libraries below ``folder``; return them by dotted name."""
    found = {}
    for library in libraries:
        if not (folder / library).is_dir():
            raise SystemExit(f"{folder} holds no {library}: unpack {library}=={VERSIONS.get(library, MARIN)} there.")
        for file in sorted((folder / library).rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            module = Module(name, is_package, ast.parse(file.read_text()))
            _read_names(module)
            found[name] = module
    return found


def _read_names(module: Module) -> None:
    for node in _top_level(module.tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(module, node)
            for alias in node.names:
                if alias.name == "*":
                    module.stars.append(origin)
                else:
                    module.names[alias.asname or alias.name] = f"{origin}.{alias.name}"
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
        elif isinstance(node, ast.FunctionDef):
            module.functions.add(node.name)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            module.values[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            module.values[node.target.id] = node.value


def _top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those under ``if`` and ``try``."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _top_level(node.body)
        else:
            yield node


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = parts if module.is_package else parts[:-1]
    folders = above[: len(above) - (node.level - 1)]
    return ".".join([*folders, *([node.module] if node.module else [])])


@dataclass
class Library:
    """All modules, to resolve a name to its definition."""

    modules: Mapping[str, Module]

    def resolve(self, module: Module, dotted: str, seen: frozenset[str] = frozenset()) -> str:
        """Return the dotted name of the definition of ``dotted`` in ``module``."""
        head, _, rest = dotted.partition(".")
        if head in module.classes or head in module.values or head in module.functions:
            return f"{module.name}.{dotted}"
        if head in module.names:
            return self.canonical(module.names[head] + ("." + rest if rest else ""), seen)
        for star in module.stars:
            if star in self.modules and star not in seen:
                found = self.resolve(self.modules[star], dotted, seen | {module.name})
                if "." in found and found.rpartition(".")[0] in self.modules:
                    return found
        return dotted

    def canonical(self, dotted: str, seen: frozenset[str] = frozenset()) -> str:
        """Resolve a dotted name of any module through re-exports."""
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            name = ".".join(parts[:cut])
            if name in self.modules and cut < len(parts):
                if name in seen:
                    return dotted
                return self.resolve(self.modules[name], ".".join(parts[cut:]), seen | {name})
            if name in self.modules:
                return dotted
        return dotted

    def class_at(self, dotted: str) -> tuple[Module, ast.ClassDef] | None:
        name, _, last = dotted.rpartition(".")
        module = self.modules.get(name)
        return (module, module.classes[last]) if module and last in module.classes else None
