"""A step's own environment, from the extras and groups of the project that its code belongs to.

The versions come from the lock beside the project's ``pyproject.toml``, so an environment is the same each time, and
its text alone decides which one it is: each machine of the cluster builds it once, on top of what its image has, and
uses it again for every job that asks for the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement

from tradewind.ray_jobs.environment.pinned_requirements import PinnedRequirements, normal
from tradewind.ray_jobs.environment.secret_signs import shown_word
from tradewind.ray_jobs.environment.uv_lock import UvLock
from tradewind.ray_jobs.errors import BadDependencyGroupError

SETUP_TIMEOUT_S: Final = 1800
"""How long building may take. Ray's own limit of 600 s is too short for a first build of jax or torch."""

_REQUIREMENTS: Final = ("requirements.lock", "requirements.txt", "requirements*.txt")


@dataclass(frozen=True)
class Project:
    """A project by its ``pyproject.toml``."""

    file: Path
    contents: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.contents.get("project", {}).get("name", ""))

    @cached_property
    def extras(self) -> dict[str, list[Any]]:
        """``[project.optional-dependencies]`` by normal names."""
        found = self.contents.get("project", {}).get("optional-dependencies", {})
        return {normal(name): list(entries) for name, entries in found.items()}

    @cached_property
    def groups(self) -> dict[str, list[Any]]:
        """``[dependency-groups]`` by normal names."""
        found = self.contents.get("dependency-groups", {})
        return {normal(name): list(entries) for name, entries in found.items()}

    def requirements(self, name: str, path: tuple[str, ...] = ()) -> Iterator[Requirement]:
        """What the extra or group ``name`` asks for, with the groups and extras of the project that it includes."""
        if name in path:
            raise BadDependencyGroupError(f"{self.file}: the group {name!r} includes itself.")
        for entry in self.extras.get(name, self.groups.get(name, [])):
            if isinstance(entry, Mapping):
                yield from self._included(normal(str(entry.get("include-group", ""))), (*path, name))
                continue
            requirement = _parsed(entry, f"{self.file}: group {name!r}")
            if normal(requirement.name) == normal(self.name):
                for extra in requirement.extras:
                    yield from self._included(normal(extra), (*path, name))
            else:
                yield requirement

    def _included(self, name: str, path: tuple[str, ...]) -> Iterator[Requirement]:
        if name not in self.extras and name not in self.groups:
            raise BadDependencyGroupError(f"{self.file}: the group {path[-1]!r} includes {name!r}, which is none.")
        yield from self.requirements(name, path)


def find_project(code: Path) -> Project | None:
    """The project that the folder ``code`` belongs to: the nearest ``pyproject.toml`` with a project or with groups.

    Raises:
        BadDependencyGroupError: The file cannot be read.
    """
    for folder in (code.absolute(), *code.absolute().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                contents = tomllib.loads(file.read_text())
            except (OSError, ValueError) as error:
                raise BadDependencyGroupError(f"{file} cannot be read: {error}") from error
            if "project" in contents or "dependency-groups" in contents:
                return Project(file, contents)
        if (folder / ".git").exists():
            return None
    return None


def environment_of(groups: Sequence[str], code: Path, uv_options: Sequence[str] = ()) -> dict[str, Any]:
    """The part of a runtime_env that gives a job these groups of the project of ``code``.

    Args:
        groups: Extras and dependency groups of the project, and requirements such as ``"scipy==1.14"``.
        code: The folder of the DAG's code.
        uv_options: What every ``uv pip install`` of this deployment needs, such as ``["--no-index", "--find-links",
            "/wheels"]``; it can be read by everybody who may ask the cluster for its jobs.

    Raises:
        BadDependencyGroupError: There is no such group, or the lock does not fit.
    """
    if isinstance(groups, str):
        raise BadDependencyGroupError(
            "pip_dependency_groups is a text (not shown, for it may hold a secret): write a list of texts, such as "
            "['scipy==1.14']."
        )
    if not groups:
        return {}
    project = find_project(code)
    names, extra_requirements = _sorted_out(groups, project, code)
    packages, is_complete = _pinned(project, names) if project is not None and names else ([], True)
    replaced = {normal(requirement.name) for requirement in extra_requirements}
    packages = [line for line in packages if normal(Requirement(line).name) not in replaced]
    packages += [str(requirement) for requirement in extra_requirements]
    if not packages:
        return {}
    # Nothing is missing from a whole lock, and what its packages say of Ray must not bring another Ray.
    options = ["--no-deps"] if is_complete and not extra_requirements else []
    return {
        "uv": {"packages": packages, "uv_pip_install_options": [*options, *uv_options]},
        "config": {"setup_timeout_seconds": SETUP_TIMEOUT_S},
    }


class Environments:
    """``environment_of`` for the steps of one code folder at one moment: each list of groups is looked up once, since
    a large project's lock takes a second to read.
    """

    def __init__(self, code: Path) -> None:
        self._code = code
        self._known: dict[str, dict[str, Any]] = {}

    def of(self, groups: Sequence[str], uv_options: Sequence[str] = ()) -> dict[str, Any]:
        """Raises ``BadDependencyGroupError`` as ``environment_of`` does."""
        asked = repr((groups, uv_options))
        if asked not in self._known:
            self._known[asked] = environment_of(groups, self._code, uv_options)
        return self._known[asked]


def _sorted_out(groups: Sequence[str], project: Project | None, code: Path) -> tuple[list[str], list[Requirement]]:
    """The names of groups, and the rest as requirements."""
    names: list[str] = []
    requirements: list[Requirement] = []
    for entry in groups:
        name = normal(str(entry))
        if project is not None and (name in project.extras or name in project.groups):
            names.append(name)
            continue
        requirement = _parsed(entry, "pip_dependency_groups")
        if not (requirement.specifier or requirement.url or requirement.extras):
            raise BadDependencyGroupError(_no_such_group(entry, project, code))
        requirements.append(requirement)
    return list(dict.fromkeys(names)), requirements


def _pinned(project: Project, names: Sequence[str]) -> tuple[list[str], bool]:
    """What the groups need, and whether that is all of it."""
    folder = project.file.parent
    lock = folder / "uv.lock"
    if lock.is_file():
        try:
            contents = tomllib.loads(lock.read_text())
        except (OSError, ValueError) as error:
            raise BadDependencyGroupError(f"{lock} cannot be read: {error}") from error
        extras = [name for name in names if name in project.extras]
        groups = [name for name in names if name not in project.extras]
        return UvLock(contents, lock, project.name).pinned(extras, groups), True
    wanted = [requirement for name in names for requirement in project.requirements(name)]
    for pattern in _REQUIREMENTS:
        for file in sorted(folder.glob(pattern)):
            pins = PinnedRequirements(file.read_text(), file)
            if pins.pins:
                return pins.pinned(wanted), False
    return PinnedRequirements("", folder).pinned(wanted), False


def _parsed(entry: object, where: str) -> Requirement:
    try:
        return Requirement(str(entry))
    except InvalidRequirement:
        raise BadDependencyGroupError(
            f"{where} holds what is neither a group nor a requirement such as 'scipy==1.14' (not shown, for it may "
            "hold a secret)."
        ) from None  # its words would show the entry


def _no_such_group(entry: str, project: Project | None, code: Path) -> str:
    if project is None:
        return (
            f"pip_dependency_groups holds {shown_word(entry, ())}, but there is no pyproject.toml at or above {code} "
            "that could have this group: add one, or name versions, such as 'scipy==1.14'."
        )
    there = sorted({*project.extras, *project.groups})
    return (
        f"pip_dependency_groups holds {shown_word(entry, there)}, which is no extra or group of {project.file}: there "
        + (f"are {', '.join(there)}" if there else "are none")
        + "; a package of its own needs a version, such as 'scipy==1.14'."
    )
