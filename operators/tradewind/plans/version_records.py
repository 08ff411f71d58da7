"""Version records as a graph, and how they are read from the store.

A record holds its dependencies whole down to depth 4 and names deeper ones as ``name-hash``; those are looked up only
when needed. Each version is one node, however often records repeat it: nodes with equal contents are equal, whatever
their hash.

Records are read in rounds, each record once, within a number of requests: each round reads all inputs that the last one
named. Broken, foreign or missing records are skipped, since only explanations depend on them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

from tradewind.records.info_files import INFO_FILE, BadInfoError, parse_info
from tradewind.steps.config_walk import describe
from tradewind.steps.paths import version_name
from tradewind.storage import Roots
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.bounded_read import Content
from tradewind.storage.confinement import confined_threads
from tradewind.storage.files import list_names, read_contents

logger = logging.getLogger(__name__)

_MAX_INFO_BYTES: Final = 2 << 20
"""Of an info; 32 are in memory together."""

T = TypeVar("T")
Version = Mapping[str, Any]
"""A version record in E20's format: name, config, dependencies and, if there are any, pseudo_dependencies."""

Lookup = Callable[[str, str], Version | None]
"""Returns the record of a version by the name and hash of its step."""


class CurrentVersion(Protocol):
    """A step in the version that others are compared with: resolved in this process, or as a record states it."""

    @property
    def name(self) -> str: ...

    @property
    def version_name(self) -> str: ...

    @property
    def output_path(self) -> str: ...

    @property
    def version(self) -> Version: ...


@dataclass(frozen=True)
class RecordedVersion:
    """A version as a record states it; ``hash`` may differ from that of ``version``, which can name its inputs."""

    name: str
    hash: str
    output_path: str
    version: Version

    @property
    def version_name(self) -> str:
        """Name and hash of the step, as shown to users."""
        return version_name(self.name, self.hash)


MAX_CONCURRENT_READS: Final = 32
_HASH: Final = re.compile("[0-9a-f]{6}")
_REFERENCE: Final = re.compile(r"DEP\[(\d+)\](?:/(.*))?", re.DOTALL)
_INDEX: Final = re.compile(r"\[\d+\]")


@dataclass(frozen=True, eq=False)
class VersionNode:
    """One version of a step.

    Attributes:
        record: Its contents; None if only the hash is known.
        given_hash: The hash, if a record names it.
        inputs: The steps that it waits for, one per reference.
        pseudo_inputs: The steps that it refers to without waiting.
    """

    name: str
    record: Version | None
    given_hash: str = ""
    inputs: tuple[VersionNode, ...] = ()
    pseudo_inputs: tuple[VersionNode, ...] = ()

    @property
    def hash(self) -> str:
        """The first six digits of the version's MD5."""
        return self.given_hash or version_hash(self.record or {})

    @cached_property
    def references(self) -> dict[str, InputReference]:
        """Config path → its reference."""
        return {reference.path: reference for reference in self._find_references()}

    @cached_property
    def values(self) -> dict[str, Any]:
        """Config path → value, for all paths without a reference."""
        config = self.record["config"] if self.record else {}
        return {path: value for path, value in config.items() if path not in self.references}

    @property
    def is_mixed(self) -> bool:
        """Whether the record does not assign references to steps.

        References are numbered together, but the record lists awaited steps apart from the others.
        """
        return bool(self.inputs and self.pseudo_inputs)

    def _find_references(self) -> Iterator[InputReference]:
        targets = self.inputs + self.pseudo_inputs
        waits = bool(self.inputs)
        unseen = dict.fromkeys(range(len(targets)))
        for path, value in (self.record or {"config": {}})["config"].items():
            found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if found and int(found[1]) < len(targets):
                index = int(found[1])
                unseen.pop(index, None)
                yield InputReference(path, index, found[2] or "", None if self.is_mixed else targets[index], waits)
        for index in unseen:  # another field has the same path; the record holds only the last
            yield InputReference(f"(input {index})", index, "", None if self.is_mixed else targets[index], waits)


@dataclass(frozen=True, eq=False)
class InputReference:
    """A config path that reads a step's output.

    Attributes:
        index: Its number among the references of the config.
        inside: The path inside the output; empty for the whole output.
        target: The step; None if the record does not assign it.
        waits: Whether the step is waited for.
    """

    path: str
    index: int
    inside: str
    target: VersionNode | None
    waits: bool

    @property
    def where(self) -> str:
        """The config path as shown to users."""
        return describe(self.path)

    @property
    def pattern(self) -> str:
        """The config path without list indexes."""
        return _INDEX.sub("[]", self.path)

    @property
    def text(self) -> str:
        """What is read, in words."""
        if self.target is None:
            return f"{self.inside} inside an input" if self.inside else "all of an input"
        return f"`{self.target.name}`/{self.inside}" if self.inside else f"`{self.target.name}`"


class VersionTable:
    """The nodes known so far."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._nodes: dict[object, VersionNode] = {}
        self._resolved: dict[VersionNode, VersionNode] = {}

    def node(self, record: Version) -> VersionNode:
        """Return the node of a valid record; builds dependencies first, without recursion."""
        pending, found = [record], []
        while pending:
            found.append(pending.pop())
            pending.extend(child for child in _children(found[-1]) if not isinstance(child, str))
        made: dict[int, VersionNode] = {}
        for version in reversed(found):
            made[id(version)] = self._node_of(version, made)
        return made[id(record)]

    def resolved(self, node: VersionNode) -> VersionNode:
        """Return the node with its record, or the same node if no record is known."""
        if node.record is not None:
            return node
        if node not in self._resolved:
            record = self._lookup(node.name, node.hash)
            self._resolved[node] = node if record is None else self.node(record)
        return self._resolved[node]

    def _node_of(self, version: Version, made: Mapping[int, VersionNode]) -> VersionNode:
        groups = [version["dependencies"], version.get("pseudo_dependencies", [])]
        inputs, pseudo_inputs = (
            tuple(self._node_of_name(child) if isinstance(child, str) else made[id(child)] for child in group)
            for group in groups
        )
        key = (version["name"], json.dumps(version["config"], sort_keys=True), inputs, pseudo_inputs)
        return self._nodes.setdefault(key, VersionNode(version["name"], version, "", inputs, pseudo_inputs))

    def _node_of_name(self, text: str) -> VersionNode:
        name, _, hash_ = text.rpartition("-")
        return self._nodes.setdefault(text, VersionNode(name, None, hash_))


def version_hash(version: Version) -> str:
    """Return the hash of a record, valid if its text is still the hashed one."""
    text = json.dumps(version, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:6]


def flat_version(version: Version, inputs: Sequence[str], pseudo_inputs: Sequence[str] = ()) -> Version:
    """Return the record with its inputs as ``name-hash`` texts, so that its size does not grow with its depth."""
    pseudo = {"pseudo_dependencies": list(pseudo_inputs)} if pseudo_inputs else {}
    return {"name": version["name"], "config": version["config"], "dependencies": list(inputs), **pseudo}


def deep_inputs(version: Version) -> set[str]:
    """Return the ``name-hash`` texts in a valid record, at any depth."""
    pending, deep = [version], set()
    while pending:
        for child in _children(pending.pop()):
            if isinstance(child, str):
                deep.add(child)
            else:
                pending.append(child)
    return deep


def is_version(value: Any) -> bool:
    """Whether a parsed text is a version record, including all its dependencies."""
    pending = [value]
    while pending:
        version = pending.pop()
        if isinstance(version, str):
            if "-" not in version:
                return False
            continue
        if not isinstance(version, dict) or not isinstance(version.get("name"), str):
            return False
        groups = [version.get("dependencies"), version.get("pseudo_dependencies", [])]
        if not isinstance(version.get("config"), dict) or not all(isinstance(group, list) for group in groups):
            return False
        pending.extend(_children(version))
    return True


def _children(version: Version) -> list[Any]:
    return [*version["dependencies"], *version.get("pseudo_dependencies", [])]


@dataclass
class Budget:
    """Remaining number of requests."""

    left: int

    def take(self, wanted: Sequence[T]) -> Sequence[T]:
        """Return the part of ``wanted`` that the budget allows, and count it."""
        taken = wanted[: self.left]
        self.left -= len(taken)
        return taken


class StoredVersions:
    """The records read so far and those of the current steps, by name and hash.

    Args:
        roots: Where paths that records name may be read; records elsewhere count as gone.
    """

    def __init__(self, budget: Budget, roots: Roots, steps: Iterable[CurrentVersion] = ()) -> None:
        self._budget = budget
        self._roots = roots
        self._steps = {step.version_name: step for step in steps}
        self._versions: dict[str, Version] = {}
        self._places: dict[str, str] = {}
        """``name-hash`` → the output path expected to have its record, for all that a record named."""
        self._requested: set[str] = set()

    def read(self, output_paths: Iterable[str]) -> dict[str, Version]:
        """Read the records beside these outputs; outputs without one are omitted."""
        infos = read_infos(self._budget.take(list(output_paths)))
        for path, info in infos.items():
            self._store(path, info)
        return {path: info["version"] for path, info in infos.items()}

    def read_deeper(self) -> None:
        """Read the records that records name, repeatedly, until none or no request is left."""
        while wanted := [text for text in self._places if text not in self._steps and text not in self._requested]:
            batch = self._budget.take(wanted)
            if not batch:
                return
            self._requested.update(batch)
            infos = read_infos([self._places[text] for text in batch])
            for text in batch:
                info = infos.get(self._places[text])
                if info is not None and _is_of(info["version"], text, self._places[text]):
                    self._store(self._places[text], info, text)

    def expect(self, output_paths: Mapping[str, str]) -> None:
        """Note where the records of these ``name-hash`` texts are expected."""
        for text, path in output_paths.items():
            self._expect(text, path)

    def lookup(self, name: str, hash_: str) -> Version | None:
        """Return the record of one version, if known."""
        text = version_name(name, hash_)
        step = self._steps.get(text)
        return step.version if step is not None else self._versions.get(text)

    def _store(self, output_path: str, info: Mapping[str, Any], text: str | None = None) -> None:
        """Store the record of ``text``, and note where the inputs that it only names are expected.

        They are below its own prefix, or where its info says.
        """
        version, paths = info["version"], info.get("dependencies")
        prefix = _prefix_of(output_path, version["name"])
        if text is None and prefix is not None:
            text = output_path.removeprefix(prefix)
        if text is not None:
            self._versions[text] = version
            self._requested.add(text)
        if prefix is not None:
            for text in deep_inputs(version):
                self._expect(text, prefix + text)
        if isinstance(paths, list) and len(paths) == len(version["dependencies"]):
            for text, path in zip(version["dependencies"], paths, strict=True):
                if isinstance(text, str) and text not in self._requested:
                    self._expect(text, path, instead=True)

    def _expect(self, text: str, path: Any, *, instead: bool = False) -> None:
        """Note where the record of ``text`` is expected, if that path may be read."""
        if (instead or text not in self._places) and self._roots.allow(path):
            self._places[text] = path


def read_infos(output_paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read what step infos say of versions, by output path: ``version`` and ``dependencies``, without the config.

    Incomplete and very long ones are omitted.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    files, infos = [posixpath.join(path, INFO_FILE) for path in output_paths], {}
    for start in range(0, len(files), MAX_CONCURRENT_READS):
        for file, content in read_contents(files[start : start + MAX_CONCURRENT_READS], _MAX_INFO_BYTES).items():
            if (info := _parse_info(file, content)) is not None:
                infos[posixpath.dirname(file)] = info
    return infos


def list_folders(folders: Sequence[str]) -> dict[str, list[str]]:
    """List the names directly below each folder, concurrently.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    with confined_threads(MAX_CONCURRENT_READS) as pool:
        return dict(zip(folders, pool.map(_names_below, folders), strict=True))


def _names_below(folder: str) -> list[str]:
    try:
        return list_names(folder)
    except (NotADirectoryError, StoreRefusedError) as error:
        logger.debug("Left out %s, which cannot be listed: %s", folder, error)
        return []


def _parse_info(file: str, found: Content) -> dict[str, Any] | None:
    try:
        info = parse_info(file, found)
    except BadInfoError as error:
        logger.debug("%s", error)
        return None
    if is_version(info.get("version")):
        return {name: info[name] for name in ("version", "dependencies") if name in info}
    logger.debug("Left out %s, which has no version record.", file)
    return None


def _prefix_of(output_path: str, name: str) -> str | None:
    """Return the part before ``name-hash`` of an output path; None if the step overrides the path."""
    head, _, digits = output_path.rpartition("-")
    return head.removesuffix(name) if head.endswith(name) and _HASH.fullmatch(digits) else None


def _is_of(version: Version, text: str, place: str) -> bool:
    """Whether the record at ``place`` is that of ``text``; an overridden path may hold any version."""
    name, _, hash_ = text.rpartition("-")
    return version["name"] == name and (place.endswith(text) or version_hash(version) == hash_)
