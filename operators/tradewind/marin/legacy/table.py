"""The committed tables: modules, their classes, fields in order and defaults as expressions.

``scripts/marin/legacy_tables.py`` writes them; here they are only read. Expressions use full names, so they mean the
same in every module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class ClassRow:
    """Table row of one class.

    Attributes:
        bases: Dotted names; those of other libraries are left out.
        dataclass: The options of its decorator, None if it is no dataclass.
        choices: Registry and name of each choice that it is, separated by a space.
        fields: ``name: type = default``, in declared order.
        members: For an enum: member -> value.
        constants: Class attributes that are no fields.
        axes: Properties that are axes: ``name = length``.
        properties: Names of its other properties.
        methods: Names of its methods, including those that Python calls, such as ``__post_init__``.
    """

    bases: tuple[str, ...] = ()
    dataclass: str | None = None
    choices: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    members: Mapping[str, Any] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    properties: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleRow:
    """Table row of one module: its classes, its constants and the names that it re-exports.

    Attributes:
        types: Names used only in annotations.
        withheld: Names of a package that hide its modules of the same name, with values outside the tables.
    """

    classes: Mapping[str, ClassRow] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    handed_on: Mapping[str, str] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _tables() -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))]


@lru_cache(maxsize=1)
def versions() -> Mapping[str, str]:
    """Return library -> the version from which the tables were generated."""
    return {file.stem: table["version"] for file, table in zip(sorted(FOLDER.glob("*.json")), _tables(), strict=True)}


@lru_cache(maxsize=1)
def own_modules() -> Mapping[str, str]:
    """Return legacy module -> the Tradewind module that rewrites its names."""
    return {name: own for table in _tables() for name, own in table.get("own", {}).items()}


@lru_cache(maxsize=1)
def module_rows() -> Mapping[str, ModuleRow]:
    """Return the row of every legacy module, by dotted name."""
    rows = {}
    for table in _tables():
        for name, row in table["modules"].items():
            classes = {key: ClassRow(**_freeze(value)) for key, value in row.get("classes", {}).items()}
            others = {key: tuple(row.get(key, ())) for key in ("withheld", "types")}
            rows[name] = ModuleRow(classes, row.get("constants", {}), row.get("handed_on", {}), **others)
    return rows


def _freeze(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
