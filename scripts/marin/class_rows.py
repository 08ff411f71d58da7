"""Table rows of legacy classes: fields with their defaults, bases, choices, members, axes, methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from scripts.marin.sources import VERSIONS, Library, Module

ENUMS: Final = frozenset({"enum.Enum", "enum.IntEnum", "enum.StrEnum"})
HOLDER: Final = "haliax.util.StringHolderEnum"
"""Metaclass whose members are plain texts."""
SPECIAL: Final = frozenset({"__init__", "__post_init__", "__repr__", "__str__", "__eq__", "__hash__"})
"""Python's own methods that define how values behave."""
PROPERTIES: Final = frozenset({"property", "functools.cached_property"})
CHOICES: Final = frozenset({"draccus.ChoiceRegistry", "draccus.choice_types.ChoiceRegistry", "draccus.PluginRegistry"})
PLAIN_BASES: Final = frozenset({"abc.ABC", "typing.Generic", "str", "object", "int", "typing.Protocol"})
ARRAYS: Final = frozenset({"haliax.core.NamedArray", "haliax.ref.NamedRef", "haliax.core.NamedArrayAxes"})
"""Dataclasses with arrays: no config has them, and parsing must not make one."""


class _Expanded(ast.NodeTransformer):
    """Expands names, inlines constants of modules, and drops copies in an expression."""

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


def bases_of(library: Library, module: Module, node: ast.ClassDef) -> list[str]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [library.resolve(module, ast.unparse(base)) for base in bases]


def _is_enum(library: Library, module: Module, node: ast.ClassDef) -> bool:
    return any(base in ENUMS for base in bases_of(library, module, node))


def _dataclass_options(library: Library, module: Module, node: ast.ClassDef) -> str | None:
    """Return the options of the dataclass decorator as written, ``""`` with none, None if it is no dataclass."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if library.resolve(module, ast.unparse(called)) == "dataclasses.dataclass":
            if not isinstance(decorator, ast.Call):
                return ""
            return ", ".join(f"{option.arg}={ast.unparse(option.value)}" for option in decorator.keywords)
    return None


def wanted_classes(library: Library) -> dict[str, tuple[Module, ast.ClassDef]]:
    """Return dataclasses, enums, choices, classes of constants, and their bases."""
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
        for base in bases_of(library, module, node):
            found = library.class_at(base)
            if found:
                pending.append((base, *found))
    return {name: wanted[name] for name in sorted(wanted)}


def _is_wanted(library: Library, module: Module, node: ast.ClassDef) -> bool:
    bases = bases_of(library, module, node)
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
    """Return the table row of one class."""
    expand = _Expanded(library, module)
    row: dict[str, Any] = {}
    options = _dataclass_options(library, module, node)
    bases = [base for base in bases_of(library, module, node) if base not in PLAIN_BASES - {"str", "int"}]
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
    constants = {key: constant.value for key, constant in _plain_attributes(expand, node)}
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
        constant = expand.visit(_copy(value)) if isinstance(value, ast.Name) else value
        if isinstance(constant, ast.Constant):
            yield key, constant


def _members(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the members of an enum; ``auto()`` counts from one."""
    for number, (key, value) in enumerate(_assigned(node), start=1):
        is_counted = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("auto")
        yield key, number if is_counted else ast.literal_eval(value)


def _declaration(expand: _Expanded, statement: ast.AnnAssign) -> str:
    """Return ``name: type = default``, with full names in the default."""
    declared = f"{ast.unparse(statement.target)}: {ast.unparse(statement.annotation)}"
    if statement.value is None:
        return declared
    return f"{declared} = {ast.unparse(expand.visit(_copy(statement.value)))}"


def _choices(library: Library, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """Yield each ``registry name`` of the class, registered by decorator or by a call below it."""
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
    """Yield the properties that are axes: name, and length in terms of fields."""
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
