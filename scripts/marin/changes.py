"""Write how the classes of Marin's configs differ between the legacy API and the installed Levanter.

    python -m scripts.marin.changes [--check]

The legacy side is the committed tables; the other is read as text from the installed packages, without importing them.
The output lists removed and moved classes, removed and new fields, and changed defaults. ``--check`` writes nothing and
fails if the committed file differs. ``tests/marin`` compares it with the translation.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from scripts.marin.class_rows import class_row
from scripts.marin.sources import Library, read_sources
from tradewind.marin.legacy.classes import split_declaration
from tradewind.marin.legacy.table import ClassRow, module_rows, versions

FILE: Final = Path(__file__).resolve().parents[2] / "tests/marin/changes.json"
PACKAGES: Final = {"levanter": "marin-levanter", "haliax": "marin-haliax"}


def installed_sources() -> Library:
    """Read the installed libraries as text."""
    modules = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{name} is not installed here: run this where {PACKAGES[name]} is.")
        modules.update(read_sources(Path(spec.origin).parents[1], [name]))
    return Library(modules)


def changes(library: Library) -> dict[str, Any]:
    """Return the changes by class; unchanged classes are only counted."""
    changes: dict[str, Any] = {
        "from": {name: versions()[name] for name in PACKAGES},
        "to": {name: version(package) for name, package in PACKAGES.items()},
        "same": 0, "gone": [], "changed": {},
    }  # fmt: skip
    for name, row in sorted(_rows_of_libraries()):
        now = library.canonical(name)
        found = library.class_at(now)
        if found is None:
            changes["gone"].append(name)
            continue
        change = _change(row, class_row(library, now, *found))
        if now != name:
            change = {"now": now, **change}
        if change:
            changes["changed"][name] = change
        else:
            changes["same"] += 1
    return changes


def _rows_of_libraries() -> Iterable[tuple[str, ClassRow]]:
    for module, row in module_rows().items():
        if module.partition(".")[0] in PACKAGES:
            yield from ((f"{module}.{name}", described) for name, described in row.classes.items())


def _change(then: ClassRow, now: Mapping[str, Any]) -> dict[str, Any]:
    before, after = _fields(then.fields), _fields(now.get("fields", ()))
    parts = {
        "gone": [name for name in before if name not in after],
        "new": {name: default for name, default in after.items() if name not in before},
        "defaults": {
            name: [default, after[name]] for name, default in before.items() if name in after and after[name] != default
        },
        "members": [name for name in now.get("members", ()) if name not in (then.members or {})],
    }
    return {name: part for name, part in parts.items() if part}


def _fields(declared: Iterable[str]) -> dict[str, str | None]:
    return {name: default for name, _, default in map(split_declaration, declared)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the committed file is another")
    given = parser.parse_args(arguments)
    text = json.dumps(changes(installed_sources()), indent=1) + "\n"
    if FILE.exists() and FILE.read_text() == text:
        return 0
    if given.check:
        print(f"{FILE} is another: run python -m scripts.marin.changes", file=sys.stderr)
        return 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
