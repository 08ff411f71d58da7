"""Write the tables of the classes that Marin's experiments of November 2025 build their configs from.

    python -m scripts.marin_era --sources DIR [--marin DIR --facts FACTS.md] [--check | --names]

``--sources`` is a folder with the unpacked wheels that ``VERSIONS`` names (``pip download --no-deps``, then
``unzip``), ``--marin`` the ``src`` of a checkout of Marin of the era. They are read as text and never imported. Of
Marin only those classes are taken that FACTS.md describes, and only if both agree on every field.

What is written is facts: modules, names, fields with their defaults, bases, the names of choices, members of enums,
and what axes are called and how long they are. ``--check`` writes nothing and fails if a committed table is another.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tradewind.marin.era.behaviour import NAMES

TABLES: Final = Path(__file__).resolve().parents[1] / "operators/tradewind/marin/era/tables"
VERSIONS: Final = {"levanter": "1.2.dev1644", "haliax": "1.4.dev450"}
ENUMS: Final = frozenset({"enum.Enum", "enum.IntEnum", "enum.StrEnum"})
HOLDER: Final = "haliax.util.StringHolderEnum"
"""A metaclass under which members are plain texts."""
SPECIAL: Final = frozenset({"__init__", "__post_init__", "__repr__", "__str__", "__eq__", "__hash__"})
"""Methods of Python's own that say something of values."""
PROPERTIES: Final = frozenset({"property", "functools.cached_property"})
CHOICES: Final = frozenset({"draccus.ChoiceRegistry", "draccus.choice_types.ChoiceRegistry", "draccus.PluginRegistry"})
PLAIN_BASES: Final = frozenset({"abc.ABC", "typing.Generic", "str", "object", "int", "typing.Protocol"})
ARRAYS: Final = frozenset({"haliax.core.NamedArray", "haliax.ref.NamedRef", "haliax.core.NamedArrayAxes"})
"""Dataclasses that hold arrays: no config has them, and parsing must not make one."""
LONGEST_CONSTANT: Final = 400
MARIN: Final = "1237e82af34d205948fa32127fd5ac38504b9c09"
OWN: Final = {
    "levanter.infra.ray_tpu": "tradewind.marin.names.slices",
    "marin.processing.tokenize.data_configs": "tradewind.marin.names.data_configs",
    "marin.processing.tokenize.tokenize": "tradewind.marin.names.tokenizing",
    "marin.resources": "tradewind.marin.names.resources",
    "marin.resources_utils": "tradewind.marin.names.accelerators",
    "marin.speedrun.speedrun": "tradewind.marin.names.speedruns",
}
"""Modules whose names are written anew -> where they stand."""
LEFT_TO_MARIN: Final = frozenset({"marin.execution.executor", "marin.scaling_laws.scaling_laws"})
"""Modules whose classes do more than hold values, which the loader answers."""


@dataclass
class Module:
    """One source file: what each of its names is.

    Attributes:
        name: ``levanter.models.llama``.
        names: Local name -> the dotted name that it stands for, through imports.
        stars: Modules that it takes all names of.
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
    """Every module of the libraries below ``folder``, by its dotted name."""
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
    """Statements of a module, those under ``if`` and ``try`` too."""
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
    kept = above[: len(above) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


@dataclass
class Library:
    """All modules together, so that a name can be followed to where it is defined."""

    modules: Mapping[str, Module]

    def resolve(self, module: Module, dotted: str, seen: frozenset[str] = frozenset()) -> str:
        """The dotted name of what ``dotted`` means in ``module``: of where it is defined."""
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
        """A dotted name of any module, followed through re-exports."""
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


class _Expanded(ast.NodeTransformer):
    """An expression with every name in full, constants of modules put in, and copies left out."""

    def __init__(self, library: Library, module: Module) -> None:
        self._library = library
        self._module = module

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._expanded(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._expanded(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name | ast.Attribute) and ast.unparse(node.func) == "copy.deepcopy":
            return node.args[0]
        return node

    def _expanded(self, node: ast.expr) -> ast.expr:
        full = self._library.resolve(self._module, ast.unparse(node))
        owner, _, last = full.rpartition(".")
        defined = self._library.modules.get(owner)
        if defined and last in defined.values:
            expanded: ast.expr = _Expanded(self._library, defined).visit(_copy(defined.values[last]))
            return expanded
        found = self._library.class_at(owner)
        if found and not _is_enum(self._library, found[0], found[1]):
            for statement in found[1].body:
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == last:
                    return _copy(statement.value)
        return ast.parse(full, mode="eval").body


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _bases(library: Library, module: Module, node: ast.ClassDef) -> list[str]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [library.resolve(module, ast.unparse(base)) for base in bases]


def _is_enum(library: Library, module: Module, node: ast.ClassDef) -> bool:
    return any(base in ENUMS for base in _bases(library, module, node))


def _dataclass_options(library: Library, module: Module, node: ast.ClassDef) -> str | None:
    """The options of the dataclass decorator as written, ``""`` with none, None if it is no dataclass."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if library.resolve(module, ast.unparse(called)) == "dataclasses.dataclass":
            if not isinstance(decorator, ast.Call):
                return ""
            return ", ".join(f"{option.arg}={ast.unparse(option.value)}" for option in decorator.keywords)
    return None


def wanted_classes(library: Library) -> dict[str, tuple[Module, ast.ClassDef]]:
    """Dataclasses, enums, choices, classes of constants, and what these inherit from."""
    wanted: dict[str, tuple[Module, ast.ClassDef]] = {}
    pending = [
        (f"{module.name}.{node.name}", module, node)
        for module in library.modules.values()
        if module.name.split(".")[0] in VERSIONS
        for node in module.classes.values()
        if not node.name.startswith("_") and _is_wanted(library, module, node)
    ]
    while pending:
        name, module, node = pending.pop()
        if name in wanted or name in ARRAYS:
            continue
        wanted[name] = (module, node)
        for base in _bases(library, module, node):
            found = library.class_at(base)
            if found:
                pending.append((base, *found))
    return {name: wanted[name] for name in sorted(wanted)}


def _is_wanted(library: Library, module: Module, node: ast.ClassDef) -> bool:
    bases = _bases(library, module, node)
    if any(base.startswith(("equinox.", "flax.")) for base in bases):
        return False
    is_choice = any(base in CHOICES or base == HOLDER for base in bases)
    is_constants = not bases and bool(node.body) and all(_is_constant(statement) for statement in node.body)
    return (
        is_choice
        or is_constants
        or _is_enum(library, module, node)
        or _dataclass_options(library, module, node) is not None
    )


def _is_constant(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)


def class_row(library: Library, name: str, module: Module, node: ast.ClassDef) -> dict[str, Any]:
    """What the table says of one class."""
    expand = _Expanded(library, module)
    row: dict[str, Any] = {}
    options = _dataclass_options(library, module, node)
    bases = [base for base in _bases(library, module, node) if base not in PLAIN_BASES - {"str", "int"}]
    if bases:
        row["bases"] = bases
    if options is not None:
        row["dataclass"] = options
    choices = list(_choices(library, module, node))
    if choices:
        row["choices"] = choices
    if _is_enum(library, module, node):
        row["members"] = dict(_members(node))
        return row
    fields = [
        _declaration(expand, statement)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation)
    ]
    if options is not None:
        row["fields"] = fields
    constants = {key: told.value for key, told in _plain_attributes(expand, node)}
    if constants:
        row["constants"] = constants
    axes = dict(_axes(library, module, node))
    if axes:
        row["axes"] = axes
    for key, are_properties in (("properties", True), ("methods", False)):
        names = sorted(_functions(library, module, node, are_properties))
        if names:
            row[key] = names
    return row


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value


def _plain_attributes(expand: _Expanded, node: ast.ClassDef) -> Iterator[tuple[str, ast.Constant]]:
    for key, value in _assigned(node):
        told = expand.visit(_copy(value)) if isinstance(value, ast.Name) else value
        if isinstance(told, ast.Constant):
            yield key, told


def _members(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """The members of an enum; ``auto()`` counts from one."""
    for number, (key, value) in enumerate(_assigned(node), start=1):
        is_counted = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("auto")
        yield key, number if is_counted else ast.literal_eval(value)


def _declaration(expand: _Expanded, statement: ast.AnnAssign) -> str:
    """``name: type = default``, the default with every name in full."""
    declared = f"{ast.unparse(statement.target)}: {ast.unparse(statement.annotation)}"
    if statement.value is None:
        return declared
    return f"{declared} = {ast.unparse(expand.visit(_copy(statement.value)))}"


def _choices(library: Library, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """Each ``registry name`` that the class is registered under, by decorator or by a call below it."""
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    for statement in module.tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if len(call.args) == 2 and ast.unparse(call.args[1]) == node.name:
                calls.append(call)
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "register_subclass":
            yield f"{library.resolve(module, ast.unparse(call.func.value))} {ast.literal_eval(call.args[0])}"


def _axes(library: Library, module: Module, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Properties that are axes: their name and their length in terms of fields."""
    lengths: dict[str, str] = {}
    for name, value in _assigned(node):
        if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "property"):
            continue
        made = value.args[0]
        if not (isinstance(made, ast.Lambda) and isinstance(made.body, ast.Call)):
            continue
        call = made.body
        if library.resolve(module, ast.unparse(call.func)) == "haliax.axis.Axis":
            given = dict(zip(("name", "size"), call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg}
            lengths[name] = ast.unparse(given["size"]).replace("self.", "")
            yield name, f"{ast.literal_eval(given['name'])} = {lengths[name]}"
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "alias":
            of = ast.unparse(call.func.value).removeprefix("self.")
            yield name, f"{ast.literal_eval(call.args[0])} = {lengths.get(of, of + '.size')}"


def _functions(library: Library, module: Module, node: ast.ClassDef, are_properties: bool) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            is_told = not statement.name.startswith("_") or statement.name in SPECIAL
            by = {library.resolve(module, ast.unparse(decorator)) for decorator in statement.decorator_list}
            if is_told and bool(by & PROPERTIES) is are_properties:
                yield statement.name


def library_table(library: Library, root: str, wanted: Mapping[str, tuple[Module, ast.ClassDef]]) -> dict[str, Any]:
    """The table of one library: each module's classes, constants, and names that it hands on."""
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
    """Names that stand for types in annotations and have no values of their own."""
    for name, value in module.values.items():
        is_alias = isinstance(value, ast.Subscript) or (
            isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
        )
        if is_alias and not name.startswith("_"):
            yield name


def _withheld(library: Library, module: Module, told: Iterable[str]) -> list[str]:
    """Names that a package gives to something else than to its module of that name, and that are not told."""
    here = {*module.names, *module.functions, *module.values}
    names = {local for local in here if f"{module.name}.{local}" in library.modules and local not in told}
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
    """The table of Marin: the configs that FACTS.md describes, and where the names stand that are written anew."""
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
        is_told = name.split(".")[0] == "marin" and (module.is_package or name in OWN or name in rows)
        if is_told and handed_on:
            withheld = _withheld(library, module, handed_on)
            rows[name] = {"handed_on": handed_on, "withheld": withheld, **rows.get(name, {})}
    return {"version": MARIN, "own": OWN, "modules": dict(sorted(rows.items()))}


def _described(library: Library, facts: str) -> Iterator[tuple[str, tuple[Module, ast.ClassDef] | None]]:
    """The classes of FACTS.md that are plain configs, each with the source that has the same fields."""
    for block in facts.split("\n## ")[1:]:
        module, _, name = block.split()[0].partition(":")
        told = next((line for line in block.splitlines() if line.startswith("- fields: ")), None)
        if told is None or not module.startswith("marin.") or module in OWN or module in LEFT_TO_MARIN:
            continue
        found = library.class_at(f"{module}.{name}")
        described = told.removeprefix("- fields: ").split("; methods ")[0].split("; bases ")[0].removeprefix("; ")
        if found is None or described != _fields_as_told(found[1]):
            print(f"{module}.{name} is left out: the sources have other fields than FACTS.md", file=sys.stderr)
            continue
        yield f"{module}.{name}", found
        for base in _bases(library, *found):
            yield base, library.class_at(base)


def _fields_as_told(node: ast.ClassDef) -> str:
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
    """Whether the committed table is this; if not, and unless it is only a check, it is from now on."""
    file = TABLES / f"{name}.json"
    if file.exists() and file.read_text() == text:
        return True
    if not is_check:
        file.write_text(text)
    return False


if __name__ == "__main__":
    sys.exit(main())
