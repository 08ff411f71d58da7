"""Write the tables of the classes that Marin's experiments of November 2025 build their configs from.

    python -m scripts.marin.legacy_tables --sources DIR [--marin DIR --facts FACTS.md] [--check | --names]

``--sources`` is a folder with the unpacked wheels that ``scripts/marin/sources.py`` names (``pip download --no-deps``,
then ``unzip``), ``--marin`` the ``src`` of a checkout of Marin of that time. They are read as text and never imported.
Of Marin the tables have only the classes that FACTS.md describes, and only if both agree on every field.

The tables hold modules, names, fields with their defaults, bases, names of choices, members of enums, and names and
lengths of axes. ``--check`` writes nothing and fails if a committed table differs.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.marin.class_rows import bases_of, class_row, wanted_classes
from scripts.marin.sources import MARIN, VERSIONS, Library, Module, read_sources
from tradewind.marin.legacy.classes import NAMES

TABLES: Final = Path(__file__).resolve().parents[2] / "operators/tradewind/marin/legacy"
LONGEST_CONSTANT: Final = 400
OWN: Final = {
    "levanter.infra.ray_tpu": "tradewind.marin.names.slices",
    "marin.evaluation.log_probs": "tradewind.marin.names.log_probs",
    "marin.processing.tokenize.data_configs": "tradewind.marin.names.data_configs",
    "marin.processing.tokenize.tokenize": "tradewind.marin.names.tokenizing",
    "marin.resources": "tradewind.marin.names.resources",
    "marin.resources_utils": "tradewind.marin.names.accelerators",
    "marin.speedrun.speedrun": "tradewind.marin.names.speedruns",
}
"""Modules whose names Tradewind reimplements -> the modules that define them."""
LEFT_TO_MARIN: Final = frozenset({"marin.execution.executor", "marin.scaling_laws.scaling_laws"})
"""Modules whose classes do more than hold values; the loader provides them."""


def library_table(library: Library, root: str, wanted: Mapping[str, tuple[Module, ast.ClassDef]]) -> dict[str, Any]:
    """Return the table of one library: each module's classes, constants, and re-exported names."""
    table: dict[str, Any] = {"version": VERSIONS[root], "modules": {}}
    types = (f"{module.name}.{name}" for module in library.modules.values() for name in _types(module))
    known = {*wanted, *types, *NAMES}
    for name, module in library.modules.items():
        if name.split(".")[0] != root:
            continue
        classes = {
            node.name: class_row(library, f"{name}.{node.name}", module, node)
            for dotted, (owner, node) in wanted.items()
            if owner is module
        }
        constants = dict(_constants(library, module))
        handed_on = {local: full for local, full in _handed_on(library, module) if full in known}
        parts = (
            ("constants", constants), ("types", sorted(_types(module))), ("handed_on", handed_on),
            ("withheld", _withheld(library, module, handed_on)), ("classes", classes),
        )  # fmt: skip
        row = {key: value for key, value in parts if value}
        if row:
            table["modules"][name] = row
    return table


def _types(module: Module) -> Iterator[str]:
    """Yield names of types for annotations that have no values of their own."""
    for name, value in module.values.items():
        is_alias = isinstance(value, ast.Subscript) or (
            isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
        )
        if is_alias and not name.startswith("_"):
            yield name


def _withheld(library: Library, module: Module, described: Iterable[str]) -> list[str]:
    """Return names that a package gives to another object than its module of that name, and that it hides."""
    here = {*module.names, *module.functions, *module.values}
    names = {local for local in here if f"{module.name}.{local}" in library.modules and local not in described}
    return sorted(local for local in names if library.resolve(module, local) != f"{module.name}.{local}")


def _constants(library: Library, module: Module) -> Iterator[tuple[str, Any]]:
    for name, value in module.values.items():
        text = ast.unparse(value)
        if name.startswith("_") or len(text) > LONGEST_CONSTANT:
            continue
        try:
            constant = ast.literal_eval(value)
        except ValueError:
            continue
        if not isinstance(constant, set) and json.loads(json.dumps(constant)) == constant:
            yield name, constant


def _handed_on(library: Library, module: Module) -> Iterator[tuple[str, str]]:
    for local in sorted(module.names):
        yield local, library.resolve(module, local)
    for star in module.stars:
        owner = library.modules.get(star)
        for local in sorted({*owner.classes, *owner.names} if owner else ()):
            if not local.startswith("_"):
                yield local, library.resolve(owner, local) if owner else local


def marin_table(library: Library, facts: str) -> dict[str, Any]:
    """Return the table of Marin: the configs that FACTS.md describes, and the modules of reimplemented names."""
    wanted = {name: found for name, found in _described(library, facts) if found}
    provided = {f"{module}.{name}" for module, own in OWN.items() for name in importlib.import_module(own).__all__}
    rows: dict[str, Any] = {}
    for full, (module, node) in sorted(wanted.items()):
        row = class_row(library, full, module, node)
        rows.setdefault(module.name, {"constants": dict(_constants(library, module)), "classes": {}})
        rows[module.name]["classes"][node.name] = row
    known = provided | set(wanted) | set(wanted_classes(library))
    for name, module in sorted(library.modules.items()):
        handed_on = {local: full for local, full in _handed_on(library, module) if full in known}
        is_described = name.split(".")[0] == "marin" and (module.is_package or name in OWN or name in rows)
        if is_described and handed_on:
            withheld = _withheld(library, module, handed_on)
            rows[name] = {"handed_on": handed_on, "withheld": withheld, **rows.get(name, {})}
    return {"version": MARIN, "own": OWN, "modules": dict(sorted(rows.items()))}


def _described(library: Library, facts: str) -> Iterator[tuple[str, tuple[Module, ast.ClassDef] | None]]:
    """Yield the classes of FACTS.md that are plain configs, each with the source that has the same fields."""
    for block in facts.split("\n## ")[1:]:
        module, _, name = block.split()[0].partition(":")
        fields = next((line for line in block.splitlines() if line.startswith("- fields: ")), None)
        if fields is None or not module.startswith("marin.") or module in OWN or module in LEFT_TO_MARIN:
            continue
        found = library.class_at(f"{module}.{name}")
        described = fields.removeprefix("- fields: ").split("; methods ")[0].split("; bases ")[0].removeprefix("; ")
        if found is None or described != _described_fields(found[1]):
            print(f"{module}.{name} is left out: the sources have other fields than FACTS.md", file=sys.stderr)
            continue
        yield f"{module}.{name}", found
        for base in bases_of(library, *found):
            yield base, library.class_at(base)


def _described_fields(node: ast.ClassDef) -> str:
    return "; ".join(ast.unparse(statement) for statement in node.body if isinstance(statement, ast.AnnAssign))


def text_of(table: Mapping[str, Any]) -> str:
    return json.dumps(table, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sources", type=Path, required=True, help="folder with the unpacked wheels")
    parser.add_argument("--marin", type=Path, help="src of a checkout of Marin; without it Marin's table stays")
    parser.add_argument("--facts", type=Path, help="FACTS.md, which describes Marin's names")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table is another")
    parser.add_argument("--names", action="store_true", help="write nothing; print the names of all classes as JSON")
    given = parser.parse_args(arguments)
    modules = read_sources(given.sources, VERSIONS)
    if given.marin:
        modules |= read_sources(given.marin, ["marin"])
    library = Library(modules)
    wanted = wanted_classes(library)
    if given.names:
        print(json.dumps(list(wanted)))
        return 0
    tables = {root: library_table(library, root, wanted) for root in VERSIONS}
    if given.marin:
        tables["marin"] = marin_table(library, given.facts.read_text())
    differing = [name for name, table in tables.items() if not _is_written(name, text_of(table), given.check)]
    print(f"{len(differing)} tables {'differ' if given.check else 'written'}: {', '.join(differing) or 'none'}")
    return 1 if given.check and differing else 0


def _is_written(name: str, text: str, is_check: bool) -> bool:
    """Return whether the committed table is up to date; write it if not, unless this is a check."""
    file = TABLES / f"{name}.json"
    if file.exists() and file.read_text() == text:
        return True
    if not is_check:
        file.write_text(text)
    return False


if __name__ == "__main__":
    sys.exit(main())
