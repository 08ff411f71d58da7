"""Fail when requirements.lock does not fit pyproject.toml: every dependency of every extra needs a pin that it allows.

Asked of the two files only, so the check is quick and needs no network. A pin that nothing needs any more is no error.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def declared(pyproject: dict[str, Any]) -> Iterator[Requirement]:
    """Every requirement of the project and its extras that holds on this platform, without the project itself."""
    project = pyproject["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        is_relevant = requirement.marker is None or requirement.marker.evaluate()
        if is_relevant and canonicalize_name(requirement.name) != canonicalize_name(project["name"]):
            yield requirement


def pins(lock: str) -> dict[str, str]:
    """Package name -> version of every line of the lock."""
    lines = (line.partition(";")[0].rstrip("\\").strip() for line in lock.splitlines() if not line.startswith(" "))
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {canonicalize_name(name.partition("[")[0]): version for name, _, version in pairs}


def problems(pyproject: dict[str, Any], lock: str) -> Iterator[str]:
    locked = pins(lock)
    for requirement in declared(pyproject):
        version = locked.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement} has no pin"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement} is pinned to {version}"
    yield from (f"option line: {line}" for line in lock.splitlines() if line.startswith("-"))


def main() -> int:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = list(problems(pyproject, (ROOT / "requirements.lock").read_text()))
    for problem in found:
        print(f"requirements.lock: {problem}")
    if found:
        print("Run `make lock`.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
