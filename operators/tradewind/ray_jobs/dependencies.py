"""Environment of a step, from extras and dependency groups of the project that its code belongs to.

The versions come from the lock beside the project's ``pyproject.toml``, so an environment is reproducible and
identified by its text alone. Each machine of the cluster builds it once, on top of its image, and reuses it for every
job with the same text.

A ``requirements.lock`` or ``requirements.txt`` holds versions. It holds dependencies only as far as its ``# via``
comments name them, which pip-tools, ``uv pip compile`` and ``uv export`` write.

A ``uv.lock`` holds all packages that extras and groups need, each with its version. Conditions (markers) that hold on
every Linux machine with a matching Python are dropped. Packages whose conditions never hold are dropped. The cluster
evaluates all other conditions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tradewind.ray_jobs.errors import BadDependencyGroupError
from tradewind.ray_jobs.secret_patterns import redacted_name
from tradewind.storage.bounded_read import LARGE, read_local
from tradewind.storage.toml_files import read_toml

NOT_INSTALLED: Final = frozenset({"ray"})
"""The cluster's own packages. Ray refuses an environment that brings another version of them."""


def normalized_name(name: str) -> str:
    """Return the normalized name of a package, extra or group: ``Foo_Bar`` becomes ``foo-bar``."""
    return str(canonicalize_name(name))


class PinnedRequirements:
    """A file of pinned requirements."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.pins: dict[str, list[Requirement]] = defaultdict(list)
        self._needs: dict[str, set[str]] = defaultdict(set)
        current = None
        in_via = False
        for line in text.replace("\\\n", " ").splitlines():
            code, _, note = line.partition("#") if not line.startswith(" ") else ("", "", line.strip().lstrip("#"))
            requirement = _requirement(code)
            if requirement is not None:
                current, in_via = normalized_name(requirement.name), False
                if _is_pin(requirement):
                    self.pins[current].append(requirement)
            note = note.strip()
            in_via = bool(re.match(r"via\b", note)) or (in_via and requirement is None and bool(note))
            if in_via and current is not None:
                for name in re.split(r"[,\s]+", note.removeprefix("via")):
                    self._needs[normalized_name(name)].add(current)

    def pinned(self, requirements: Sequence[Requirement]) -> list[str]:
        """Return the requirements with the file's versions, and the dependencies that the file names.

        Raises:
            BadDependencyGroupError: A pinned version does not match its requirement.
        """
        lines = {self._line(requirement) for requirement in requirements}
        waiting = [normalized_name(requirement.name) for requirement in requirements]
        direct, seen = set(waiting), set(waiting)
        while waiting:
            new = self._needs.get(waiting.pop(), set()) - seen
            seen |= new
            waiting.extend(new)
        lines |= {str(pin) for name in seen - direct for pin in self.pins.get(name, ())}
        return sorted(line for line in lines if normalized_name(Requirement(line).name) not in NOT_INSTALLED)

    def _line(self, wanted: Requirement) -> str:
        pins = self.pins.get(normalized_name(wanted.name), [])
        if len(pins) != 1 or wanted.url:
            return str(wanted)  # unpinned, or pinned differently per machine: the cluster decides
        version = next(iter(pins[0].specifier)).version
        if not wanted.specifier.contains(version, prereleases=True):
            raise BadDependencyGroupError(
                f"{self.file} pins {wanted.name}=={version}, and the project wants {wanted.name}{wanted.specifier}: "
                "update the lock."
            )
        pinned = Requirement(str(wanted))
        pinned.specifier = pins[0].specifier
        return str(pinned)


def _requirement(code: str) -> Requirement | None:
    text = re.split(r"\s--?[a-z]", " " + code, maxsplit=1)[0].strip()
    try:
        return Requirement(text) if text else None
    except InvalidRequirement:
        return None


def _is_pin(requirement: Requirement) -> bool:
    return len(requirement.specifier) == 1 and all(
        each.operator in ("==", "===") and not each.version.endswith("*") for each in requirement.specifier
    )


Condition = frozenset[str]
"""Markers that must all hold; an empty set always holds."""

_MACHINES: Final = ("x86_64", "aarch64")
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(9, 16))
_LINUX: Final = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": "",
                 "implementation_name": "cpython", "platform_python_implementation": "CPython"}  # fmt: skip
_EXTRA: Final = re.compile(r"extra\s*(==|!=)\s*['\"]([^'\"]+)['\"]")
_ALWAYS: Final = "python_version >= '3'"
_NEVER: Final = "python_version < '3'"
_MAX_CONDITIONS: Final = 200
_LOCAL: Final = ("editable", "virtual", "directory")


class UvLock:
    """Parsed contents of a ``uv.lock`` file."""

    def __init__(self, contents: Mapping[str, Any], file: Path, project: str) -> None:
        self.file = file
        self._project = normalized_name(project)
        self._packages: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for package in contents.get("package", []):
            self._packages[normalized_name(package["name"])].append(package)
        fitting = SpecifierSet(contents.get("requires-python", ""))
        self._pythons = [python for python in _PYTHONS if fitting.contains(f"{python}.99")] or list(_PYTHONS)

    def pinned(self, extras: Iterable[str], groups: Iterable[str]) -> list[str]:
        """Return all packages that these extras and dependency groups need, each with its version.

        Raises:
            BadDependencyGroupError: The lock does not have them, or names a file that exists only on its author's
                machine.
        """
        active = {f"extra-{len(self._project)}-{self._project}-{name}" for name in extras} | {
            f"group-{len(self._project)}-{self._project}-{name}" for name in groups
        }
        reached = self._reachable(self._first(extras, groups), active)
        lines = (self._line(package, conditions) for package, conditions in reached)
        return sorted(line for line in lines if line is not None)

    def _first(self, extras: Iterable[str], groups: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        root = next(iter(self._packages.get(self._project, [])), None)
        if root is None:
            raise BadDependencyGroupError(f"{self.file} does not hold project {self._project!r}: run 'uv lock' there.")
        about = root.get("metadata", {})
        # uv omits empty ones from the tables, but declares them in the project's metadata.
        yield from self._entries(root.get("optional-dependencies", {}), about.get("provides-extras", []), extras)
        yield from self._entries(root.get("dev-dependencies", {}), about.get("requires-dev", {}), groups)

    def _entries(
        self, table: Mapping[str, Sequence[Mapping[str, Any]]], declared: Iterable[str], names: Iterable[str]
    ) -> Iterator[Mapping[str, Any]]:
        by_name = {normalized_name(name): entries for name, entries in table.items()}
        known = {*by_name, *map(normalized_name, declared)}
        for name in names:
            if name not in known:
                raise BadDependencyGroupError(f"{self.file} is older than the group {name!r}: run 'uv lock' there.")
            yield from by_name.get(name, [])

    def _reachable(
        self, first: Iterator[Mapping[str, Any]], active: set[str]
    ) -> list[tuple[Mapping[str, Any], set[Condition]]]:
        """Return every package reachable from ``first``, with its alternative conditions."""
        reached: dict[tuple[int, str | None], tuple[Mapping[str, Any], set[Condition]]] = {}
        waiting: list[tuple[Mapping[str, Any], Condition]] = [(entry, frozenset()) for entry in first]
        while waiting:
            entry, before = waiting.pop()
            condition = self._with(before, entry.get("marker"), active)
            if condition is None:
                continue
            package = self._find(entry)
            is_project = normalized_name(package["name"]) == self._project  # its base dependencies are in the image
            for extra in (*(() if is_project else (None,)), *entry.get("extra", [])):
                _, conditions = reached.setdefault((id(package), extra), (package, set()))
                if any(known <= condition for known in conditions):
                    continue
                conditions.difference_update({known for known in conditions if condition < known})
                conditions.add(condition)
                if len(conditions) > _MAX_CONDITIONS:
                    raise BadDependencyGroupError(f"{self.file}: {package['name']!r} has too many conditions.")
                tables = [package.get("dependencies", [])]
                if extra is not None:
                    named = package.get("optional-dependencies", {}).items()
                    tables = [table for name, table in named if normalized_name(name) == normalized_name(extra)]
                waiting.extend((dependency, condition) for table in tables for dependency in table)
        return [found for (_, extra), found in reached.items() if extra is None]

    def _with(self, before: Condition, marker: str | None, active: set[str]) -> Condition | None:
        """Combine ``before`` and ``marker``; None if they can never hold together."""
        if marker is None:
            return before
        plain = _EXTRA.sub(lambda found: _ALWAYS if (found[2] in active) == (found[1] == "==") else _NEVER, marker)
        holds = [
            Marker(plain).evaluate(
                {**_LINUX, "platform_machine": machine, "python_version": python, "python_full_version": f"{python}.99"}
            )
            for machine in _MACHINES
            for python in self._pythons
        ]
        if not any(holds):
            return None
        return before if all(holds) else before | {plain}

    def _find(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        candidates = self._packages.get(normalized_name(entry["name"]), [])
        for package in candidates:
            if all(entry[key] == package.get(key) for key in ("version", "source") if key in entry):
                return package
        raise BadDependencyGroupError(f"{self.file} names {entry['name']!r} and does not hold it: run 'uv lock' there.")

    def _line(self, package: Mapping[str, Any], conditions: set[Condition]) -> str | None:
        name, source = normalized_name(package["name"]), package.get("source", {})
        if name in NOT_INSTALLED or name == self._project or any(kind in source for kind in _LOCAL):
            return None  # the project's own code is uploaded with the job
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


def _git_url(locked: str) -> str:
    """Convert ``https://host/repo?rev=main&subdirectory=x#commit`` to the URL of a requirement."""
    parts = urlsplit(locked)
    folder = parse_qs(parts.query).get("subdirectory")
    plain = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    return f"git+{plain}@{parts.fragment}" + (f"#subdirectory={folder[0]}" if folder else "")


SETUP_TIMEOUT_S: Final = 1800
"""Time limit of a build. Ray's own limit of 600 s is too short for a first build of jax or torch."""

_REQUIREMENTS: Final = ("requirements.lock", "requirements.txt", "requirements*.txt")


@dataclass(frozen=True)
class Project:
    """A project, described by its ``pyproject.toml``."""

    file: Path
    contents: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.contents.get("project", {}).get("name", ""))

    @cached_property
    def extras(self) -> dict[str, list[Any]]:
        """``[project.optional-dependencies]`` by normalized names."""
        found = self.contents.get("project", {}).get("optional-dependencies", {})
        return {normalized_name(name): list(entries) for name, entries in found.items()}

    @cached_property
    def groups(self) -> dict[str, list[Any]]:
        """``[dependency-groups]`` by normalized names."""
        found = self.contents.get("dependency-groups", {})
        return {normalized_name(name): list(entries) for name, entries in found.items()}

    def requirements(
        self, name: str, path: tuple[str, ...] = (), done: set[str] | None = None
    ) -> Iterator[Requirement]:
        """Yield the requirements of the extra or group ``name``, those of included groups and extras once as well."""
        done = set() if done is None else done
        if name in path:
            raise BadDependencyGroupError(f"{self.file}: the group {name!r} includes itself.")
        if name in done:
            return
        for entry in self.extras.get(name, self.groups.get(name, [])):
            if isinstance(entry, Mapping):
                yield from self._include(normalized_name(str(entry.get("include-group", ""))), (*path, name), done)
                continue
            if not isinstance(entry, str):
                raise TypeError(entry)
            requirement = _parse(entry, f"{self.file}: group {name!r}")
            if normalized_name(requirement.name) == normalized_name(self.name):
                for extra in requirement.extras:
                    yield from self._include(normalized_name(extra), (*path, name), done)
            else:
                yield requirement
        done.add(name)

    def _include(self, name: str, path: tuple[str, ...], done: set[str]) -> Iterator[Requirement]:
        if name not in self.extras and name not in self.groups:
            raise BadDependencyGroupError(f"{self.file}: group {path[-1]!r} includes {name!r}, which does not exist.")
        yield from self.requirements(name, path, done)


def find_project(code: Path) -> Project | None:
    """Return the project of the folder ``code``: the nearest ``pyproject.toml`` with a project or groups.

    Raises:
        BadDependencyGroupError: The file cannot be read.
    """
    for folder in (code.absolute(), *code.absolute().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            contents = _read_toml(file)
            if "project" in contents or "dependency-groups" in contents:
                return Project(file, contents)
        if (folder / ".git").exists():
            return None
    return None


def _read(file: Path) -> str:
    content = read_local(file)
    if content.flaw is not None:
        raise BadDependencyGroupError(f"{file} cannot be read: {content.flaw}.")
    return content.text


def _read_toml(file: Path, **bound: int) -> dict[str, Any]:
    try:
        return read_toml(file, **bound)
    except (OSError, ValueError) as error:
        raise BadDependencyGroupError(f"{file} cannot be read: {error}") from error


def environment_of(groups: Sequence[str], code: Path, uv_options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of a runtime_env that gives a job these groups of the project of ``code``.

    Args:
        groups: Extras and dependency groups of the project, and requirements such as ``"scipy==1.14"``.
        code: The folder of the DAG's code.
        uv_options: Options of every ``uv pip install`` of this deployment, such as ``["--no-index", "--find-links",
            "/wheels"]``. Every client that may list the cluster's jobs can read them.

    Raises:
        BadDependencyGroupError: There is no such group, or the lock does not match.
    """
    if isinstance(groups, str):
        raise BadDependencyGroupError(
            "pip_dependency_groups is a text (not shown, as it may hold a secret): write a list of texts, such as "
            "['scipy==1.14']."
        )
    if not groups:
        return {}
    project = find_project(code)
    try:
        names, extra_requirements = _split(groups, project, code)
        packages, is_complete = _pinned(project, names) if project is not None and names else ([], True)
    except BadDependencyGroupError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        file = code if project is None else project.file
        raise BadDependencyGroupError(
            f"{file}, or the lock beside it, does not have the form that uv reads ({type(error).__name__}): run 'uv "
            "lock' there."
        ) from None
    replaced = {normalized_name(requirement.name) for requirement in extra_requirements}
    packages = [line for line in packages if normalized_name(Requirement(line).name) not in replaced]
    packages += [str(requirement) for requirement in extra_requirements]
    if not packages:
        return {}
    # A complete lock needs no dependencies, and its packages' requirements must not bring another Ray.
    options = ["--no-deps"] if is_complete and not extra_requirements else []
    return {
        "uv": {"packages": packages, "uv_pip_install_options": [*options, *uv_options]},
        "config": {"setup_timeout_seconds": SETUP_TIMEOUT_S},
    }


class Environments:
    """``environment_of`` for the steps of one code folder at one moment, cached per list of groups.

    A large project's lock takes a second to read.
    """

    def __init__(self, code: Path) -> None:
        self._code = code
        self._known: dict[str, dict[str, Any]] = {}

    def of(self, groups: Sequence[str], uv_options: Sequence[str] = ()) -> dict[str, Any]:
        """Return the environment of ``groups``; raises ``BadDependencyGroupError`` as ``environment_of`` does."""
        key = repr((groups, uv_options))
        if key not in self._known:
            self._known[key] = environment_of(groups, self._code, uv_options)
        return self._known[key]


def _split(groups: Sequence[str], project: Project | None, code: Path) -> tuple[list[str], list[Requirement]]:
    """Split ``groups`` into names of groups and requirements."""
    names: list[str] = []
    requirements: list[Requirement] = []
    for entry in groups:
        name = normalized_name(str(entry))
        if project is not None and (name in project.extras or name in project.groups):
            names.append(name)
            continue
        requirement = _parse(entry, "pip_dependency_groups")
        if not (requirement.specifier or requirement.url or requirement.extras):
            raise BadDependencyGroupError(_no_such_group(entry, project, code))
        requirements.append(requirement)
    return list(dict.fromkeys(names)), requirements


def _pinned(project: Project, names: Sequence[str]) -> tuple[list[str], bool]:
    """Return the pinned requirements of the groups, and whether they are complete."""
    folder = project.file.parent
    lock = folder / "uv.lock"
    if lock.is_symlink() or lock.exists():
        extras = [name for name in names if name in project.extras]
        groups = [name for name in names if name not in project.extras]
        return UvLock(_read_toml(lock, max_bytes=LARGE), lock, project.name).pinned(extras, groups), True
    wanted = [requirement for name in names for requirement in project.requirements(name)]
    for pattern in _REQUIREMENTS:
        for file in sorted(folder.glob(pattern)):
            pins = PinnedRequirements(_read(file), file)
            if pins.pins:
                return pins.pinned(wanted), False
    return PinnedRequirements("", folder).pinned(wanted), False


def _parse(entry: object, where: str) -> Requirement:
    try:
        return Requirement(str(entry))
    except InvalidRequirement:
        raise BadDependencyGroupError(
            f"{where} holds an entry that is neither a group nor a requirement such as 'scipy==1.14' (not shown, as it "
            "may hold a secret)."
        ) from None  # the cause would show the entry


def _no_such_group(entry: str, project: Project | None, code: Path) -> str:
    if project is None:
        return (
            f"pip_dependency_groups holds {redacted_name(entry, ())}, but there is no pyproject.toml at or above "
            f"{code} that could have this group: add one, or name versions, such as 'scipy==1.14'."
        )
    known = sorted({*project.extras, *project.groups})
    return (
        f"pip_dependency_groups holds {redacted_name(entry, known)}, which is no extra or group of {project.file}: "
        f"there are {', '.join(known) or 'none'}; a package of its own needs a version, such as 'scipy==1.14'."
    )
