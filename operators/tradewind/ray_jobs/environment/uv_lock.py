"""What a ``uv.lock`` gives to some extras and groups of its project: all that they need, each with its version.

Conditions (markers) that hold on every Linux machine with a fitting Python are dropped, those that hold on none drop
their package, and the rest is left for the cluster to decide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

from tradewind.ray_jobs.environment.pinned_requirements import NOT_INSTALLED, normal
from tradewind.ray_jobs.errors import BadDependencyGroupError

Condition = frozenset[str]
"""Markers that must all hold; none means always."""

_MACHINES: Final = ("x86_64", "aarch64")
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(9, 16))
_LINUX: Final = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": "",
                 "implementation_name": "cpython", "platform_python_implementation": "CPython"}  # fmt: skip
_EXTRA: Final = re.compile(r"extra\s*(==|!=)\s*['\"]([^'\"]+)['\"]")
_ALWAYS: Final = "python_version >= '3'"
_NEVER: Final = "python_version < '3'"
_LOCAL: Final = ("editable", "virtual", "directory")


class UvLock:
    """A ``uv.lock`` file, as its parsed contents."""

    def __init__(self, contents: Mapping[str, Any], file: Path, project: str) -> None:
        self.file = file
        self._project = normal(project)
        self._packages: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for package in contents.get("package", []):
            self._packages[normal(package["name"])].append(package)
        fitting = SpecifierSet(contents.get("requires-python", ""))
        self._pythons = [python for python in _PYTHONS if fitting.contains(f"{python}.99")] or list(_PYTHONS)

    def pinned(self, extras: Iterable[str], groups: Iterable[str]) -> list[str]:
        """Everything that these extras and dependency groups of the project need, each with its version.

        Raises:
            BadDependencyGroupError: The lock does not know them, or names a file that only its author has.
        """
        active = {f"extra-{len(self._project)}-{self._project}-{name}" for name in extras} | {
            f"group-{len(self._project)}-{self._project}-{name}" for name in groups
        }
        reached = self._reached(self._first(extras, groups), active)
        lines = (self._line(package, conditions) for package, conditions in reached)
        return sorted(line for line in lines if line is not None)

    def _first(self, extras: Iterable[str], groups: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        root = next(iter(self._packages.get(self._project, [])), None)
        if root is None:
            raise BadDependencyGroupError(f"{self.file} does not hold project {self._project!r}: run 'uv lock' there.")
        about = root.get("metadata", {})
        # uv leaves empty ones out of the tables, but not out of what it says about the project.
        yield from self._entries(root.get("optional-dependencies", {}), about.get("provides-extras", []), extras)
        yield from self._entries(root.get("dev-dependencies", {}), about.get("requires-dev", {}), groups)

    def _entries(
        self, table: Mapping[str, Sequence[Mapping[str, Any]]], declared: Iterable[str], names: Iterable[str]
    ) -> Iterator[Mapping[str, Any]]:
        by_name = {normal(name): entries for name, entries in table.items()}
        known = {*by_name, *map(normal, declared)}
        for name in names:
            if name not in known:
                raise BadDependencyGroupError(f"{self.file} is older than the group {name!r}: run 'uv lock' there.")
            yield from by_name.get(name, [])

    def _reached(
        self, first: Iterator[Mapping[str, Any]], active: set[str]
    ) -> list[tuple[Mapping[str, Any], set[Condition]]]:
        """Every package on the way from ``first``, with the conditions under which it is needed (any of them)."""
        reached: dict[tuple[int, str | None], tuple[Mapping[str, Any], set[Condition]]] = {}
        waiting: list[tuple[Mapping[str, Any], Condition]] = [(entry, frozenset()) for entry in first]
        while waiting:
            entry, before = waiting.pop()
            condition = self._with(before, entry.get("marker"), active)
            if condition is None:
                continue
            package = self._find(entry)
            itself = () if normal(package["name"]) == self._project else (None,)  # its own needs are in the image
            for extra in (*itself, *entry.get("extra", [])):
                _, conditions = reached.setdefault((id(package), extra), (package, set()))
                if any(known <= condition for known in conditions):
                    continue
                conditions.difference_update({known for known in conditions if condition < known})
                conditions.add(condition)
                table = package.get("dependencies", []) if extra is None else _extra_of(package, extra)
                waiting.extend((dependency, condition) for dependency in table)
        return [found for (_, extra), found in reached.items() if extra is None]

    def _with(self, before: Condition, marker: str | None, active: set[str]) -> Condition | None:
        """``before`` and ``marker`` together; None when they can never hold."""
        if marker is None:
            return before
        plain = _EXTRA.sub(lambda found: _ALWAYS if (found[2] in active) == (found[1] == "==") else _NEVER, marker)
        held = [
            Marker(plain).evaluate(
                {**_LINUX, "platform_machine": machine, "python_version": python, "python_full_version": f"{python}.99"}
            )
            for machine in _MACHINES
            for python in self._pythons
        ]
        if not any(held):
            return None
        return before if all(held) else before | {plain}

    def _find(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        candidates = self._packages.get(normal(entry["name"]), [])
        for package in candidates:
            if all(entry[key] == package.get(key) for key in ("version", "source") if key in entry):
                return package
        raise BadDependencyGroupError(f"{self.file} names {entry['name']!r} and does not hold it: run 'uv lock' there.")

    def _line(self, package: Mapping[str, Any], conditions: set[Condition]) -> str | None:
        name, source = normal(package["name"]), package.get("source", {})
        if name in NOT_INSTALLED or name == self._project or any(kind in source for kind in _LOCAL):
            return None  # the project's own code travels with the job
        if "path" in source:
            raise BadDependencyGroupError(
                f"{self.file} takes {name!r} from the file {source['path']}, which no cluster has: put it into an "
                "index, or into the image."
            )
        if "git" in source:
            line = f"{name} @ {_git_url(source['git'])}"
        elif "url" in source:
            line = f"{name} @ {source['url']}"
        else:
            line = f"{name}=={package['version']}"
        if frozenset() in conditions:
            return line
        alternatives = [" and ".join(f"({marker})" for marker in sorted(condition)) for condition in conditions]
        return f"{line} ; {' or '.join(sorted(alternatives))}"


def _extra_of(package: Mapping[str, Any], extra: str) -> Iterator[Mapping[str, Any]]:
    for name, entries in package.get("optional-dependencies", {}).items():
        if normal(name) == normal(extra):
            yield from entries


def _git_url(locked: str) -> str:
    """``https://host/repo?rev=main&subdirectory=x#commit`` as a requirement names it."""
    parts = urlsplit(locked)
    folder = parse_qs(parts.query).get("subdirectory")
    plain = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    return f"git+{plain}@{parts.fragment}" + (f"#subdirectory={folder[0]}" if folder else "")
