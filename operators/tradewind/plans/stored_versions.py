"""One step as the store describes it: its config and inputs, its other versions, and in what two of them differ.

All of it is read from records beside outputs, which any writer to the bucket controls. So each answer is bounded, and
paths that records name are followed only below the allowed roots.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.plans.config_rows import ConfigRow, Mark, compare_configs
from tradewind.plans.differences import Change, Comparison
from tradewind.plans.version_records import Budget, StoredVersions, Version, is_version, read_infos
from tradewind.records.info_files import INFO_FILE, BadInfoError, parse_info
from tradewind.records.manifests import RESULT_FILE
from tradewind.records.parsing import RecordFormatError, parse
from tradewind.records.record import RecordState, read_leases, read_records
from tradewind.storage import Roots
from tradewind.storage.bounded_read import value_count
from tradewind.storage.files import list_names, read_contents
from tradewind.text import format_producer, truncate_middle

MAX_ENTRIES: Final = 3_000
"""Lines of a config."""
MAX_VERSIONS: Final = 200
"""Other versions whose time is read."""
MAX_SHOWN: Final = 50
"""Versions that are listed, the newest first."""
_MAX_INFO_BYTES: Final = 4 << 20
_MAX_INFO_VALUES: Final = 200_000
_MAX_TEXT: Final = 1_000
_MAX_SHORT_LIST: Final = 8
_MAX_COMPARED: Final = 20
"""Versions of which a list says in what they differ."""
_MAX_DIFFERENCES: Final = 2
_MAX_DIFFERENCE: Final = 100
_MANGLED: Final = re.compile(r"\bunusual_prefix_[0-9a-f]{40}_")
"""What Airflow puts before the module name of a DAG file."""
_MAX_DEPTH: Final = 24
_MAX_PATH: Final = 10_000
"""Deeper values, and those whose path has more characters, are one line."""
_MAX_INPUTS: Final = 500
_MAX_REQUESTS: Final = 500
"""Reads for one comparison."""
_HASH: Final = re.compile("[0-9a-f]{6}")
_VERSIONED_NAME: Final = re.compile(r"(.*)-([0-9a-f]{6})", re.DOTALL)
_REFERENCE: Final = re.compile(r"DEP\[\d+\](?:/.*)?", re.DOTALL)


@dataclass(frozen=True)
class ConfigEntry:
    """A line of a config as a tree, in the order in which it is read.

    Attributes:
        depth: 0 for the config's own fields.
        path: Its config path, such as ``optimizer.betas.[0]``.
        text: Its value as JSON; None for a list or an object with lines of its own.
        size: How many lines below it belong to it.
        is_versioned: The version covers it: another value makes another output.
        is_input: It is a path inside the output of another step.
    """

    depth: int
    path: str
    key: str
    text: str | None
    size: int
    is_versioned: bool = False
    is_input: bool = False


@dataclass(frozen=True)
class StepInput:
    """A step whose output is read.

    Attributes:
        version: Its name and hash; empty if the record does not say.
        output_path: Where its output is; None if that is unknown, or outside the allowed roots.
        waits: Whether the step waits for it.
    """

    version: str
    output_path: str | None
    waits: bool = True


@dataclass(frozen=True)
class StepConfig:
    """What the info beside an output says of its step.

    Attributes:
        function: ``module.qualname`` of its function.
        left_out: How many lines, with all that is below them, are missing.
        problem: Why there is no config, or none that can be read.
    """

    function: str | None = None
    entries: tuple[ConfigEntry, ...] = ()
    left_out: int = 0
    inputs: tuple[StepInput, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class StepResult:
    """What a step's function returned, as the lines of a tree; ``problem`` says why it cannot be shown."""

    entries: tuple[ConfigEntry, ...] = ()
    left_out: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class StoredVersion:
    """A version of a step whose output, or its record, is in the store.

    Attributes:
        made_at: When its lease was last written, in seconds since 1970; None if unknown.
        producer: The run or script that made it.
        is_this: It is the version that was asked about.
        differs: Its values that are others in that version, in words; empty if they are not known.
    """

    hash: str
    output_path: str
    made_at: float | None
    state: RecordState
    producer: str
    is_this: bool
    differs: str = ""


@dataclass(frozen=True)
class StoredVersionList:
    """Versions of one step, the newest first; ``left_out`` counts those that are not listed."""

    versions: tuple[StoredVersion, ...]
    left_out: int


@dataclass(frozen=True)
class VersionDifference:
    """In what two versions differ.

    Attributes:
        changes: Root causes, the step's own first.
        rows: The versioned config of both.
        left_out: How many rows are missing.
        problem: Why they cannot be compared.
    """

    changes: tuple[Change, ...] = ()
    rows: tuple[ConfigRow, ...] = ()
    left_out: int = 0
    problem: str | None = None


def read_step_config(output_path: str, roots: Roots) -> StepConfig:
    """Read the config and the inputs of the step that writes ``output_path``.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    info = _read_info(output_path)
    if isinstance(info, str):
        return StepConfig(problem=info)
    version = info.get("version")
    version = version if is_version(version) else None
    tree = _Tree(version)
    lines = tree.lines(info.get("config"))
    function = info.get("fn_name")
    return StepConfig(
        function[:_MAX_TEXT] if isinstance(function, str) else None,
        tuple(lines),
        tree.left_out,
        tuple(_inputs(info, version, roots))[:_MAX_INPUTS],
    )


def result_path(output_path: str) -> str:
    """Return the path of what the step's function returned."""
    return posixpath.join(output_path, RESULT_FILE)


def read_step_result(output_path: str) -> StepResult | None:
    """Read what the step's function returned; None if that is nothing.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    file = result_path(output_path)
    content = read_contents([file], _MAX_INFO_BYTES).get(file)
    if content is None:
        return None
    try:
        if content.flaw is not None or value_count(content.text) > _MAX_INFO_VALUES:
            raise RecordFormatError(content.flaw or f"it has more than {_MAX_INFO_VALUES:,} values")
        value = parse(content.text)
    except RecordFormatError as flaw:
        return StepResult(problem=f"{truncate_middle(file, _MAX_TEXT)} is not shown, because {flaw}.")
    tree = _Tree(None)
    lines = tree.lines(value, "result")
    return None if value is None else StepResult(tuple(lines), tree.left_out)


def list_versions(output_path: str) -> StoredVersionList:
    """List the versions of a step that are beside its output, itself included.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    folder, own = posixpath.split(output_path.rstrip("/"))
    found = _VERSIONED_NAME.fullmatch(own)
    names = [own]
    if found is not None:  # an overridden output path has no other versions beside it
        alike = [name for name in list_names(folder) if _name_of(name) == found[1]]
        names = list(dict.fromkeys([own, *alike]))
    paths = [posixpath.join(folder, name) for name in names[: MAX_VERSIONS + 1]]
    leases = read_leases(paths)
    newest = sorted(paths, key=lambda path: leases[path].timestamp if path in leases else 0.0, reverse=True)
    kept = newest[:MAX_SHOWN]
    kept += [paths[0]] if paths[0] not in kept else []
    records = read_records(kept)
    differs = _differences(paths[0], kept)
    versions = []
    for path in kept:
        lease = records[path].lease
        made_at = lease.timestamp if lease is not None and lease.timestamp > 0 else None
        producer = format_producer(lease.by)[:_MAX_TEXT] if lease is not None else ""
        hash_ = path[-6:] if found is not None else ""
        is_this, state = path == paths[0], records[path].state
        versions.append(StoredVersion(hash_, path, made_at, state, producer, is_this, differs.get(path, "")))
    return StoredVersionList(tuple(versions), len(names) - len(kept))


def _differences(own: str, others: Sequence[str]) -> dict[str, str]:
    """Return output path → values by which another version differs from that at ``own``, of the first few."""
    versions = {path: info["version"] for path, info in read_infos([own, *others[:_MAX_COMPARED]]).items()}
    mine = versions.pop(own, None)
    if mine is None:
        return {}
    return {path: _difference(version, mine) for path, version in versions.items()}


def _difference(other: Version, own: Version) -> str:
    rows = [row for row in compare_configs(other, own).rows if row.mark is not Mark.SAME]
    parts = [
        f"{'.'.join(row.keys)} {'unset' if row.old is None else row.old.reads or row.old.text}"
        for row in rows[:_MAX_DIFFERENCES]
    ]
    more = len(rows) - len(parts)
    return truncate_middle(", ".join(parts) + (f" and {more} more" if more else ""), _MAX_DIFFERENCE)


def path_of_version(output_path: str, hash_: str) -> str | None:
    """Return the output path of another version of the same step; None if it cannot have one."""
    head, dash, own = output_path.rstrip("/").rpartition("-")
    return f"{head}-{hash_}" if dash and _HASH.fullmatch(own) and _HASH.fullmatch(hash_) else None


def compare_stored_versions(old_path: str, new_path: str, roots: Roots) -> VersionDifference:
    """Compare the versions at two output paths.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    stored = StoredVersions(Budget(_MAX_REQUESTS), roots)
    versions = stored.read([old_path, new_path])
    for path in (old_path, new_path):
        if path not in versions:
            return VersionDifference(problem=f"{path} has no version record, so there is nothing to compare.")
    stored.read_deeper()
    old, new = versions[old_path], versions[new_path]
    compared = compare_configs(old, new)
    changes = tuple(Comparison(stored.lookup).changes(old, new))
    return VersionDifference(changes, compared.rows, compared.left_out)


def _read_info(output_path: str) -> dict[str, Any] | str:
    """Return the info of a step, or why there is none."""
    file = posixpath.join(output_path, INFO_FILE)
    content = read_contents([file], _MAX_INFO_BYTES).get(file)
    if content is None:
        return "The output has no record of its config: no attempt has started, or the output was removed."
    if value_count(content.text) > _MAX_INFO_VALUES:
        return f"{file} has more than {_MAX_INFO_VALUES:,} values, and a page reads no more."
    try:
        return parse_info(file, content)
    except BadInfoError as error:
        return truncate_middle(str(error), _MAX_TEXT)


class _Tree:
    """Lines of a config, with the marks that its version record gives."""

    def __init__(self, version: Version | None) -> None:
        config = version["config"] if version is not None else {}
        references = (path for path, value in config.items() if isinstance(value, str) and _REFERENCE.fullmatch(value))
        self._inputs = set(references)
        self._versioned = config.keys() - self._inputs
        self._room = MAX_ENTRIES
        self.left_out = 0

    def lines(self, config: Any, name: str = "config") -> list[ConfigEntry]:
        """Return the lines of ``config``; a config that is one value has one line with this name."""
        children = _children(config)
        if not children:
            return self._lines(config, "", name, 0, is_versioned=False)
        is_whole = "" in self._versioned
        return [line for key, child in children for line in self._lines(child, key, key, 0, is_versioned=is_whole)]

    def _lines(self, value: Any, path: str, key: str, depth: int, *, is_versioned: bool) -> list[ConfigEntry]:
        if self._room <= 0:
            self.left_out += 1
            return []
        self._room -= 1
        is_versioned = is_versioned or path in self._versioned
        is_leaf = depth >= _MAX_DEPTH or len(path) > _MAX_PATH or self._is_short(value, path)
        children = [] if is_leaf else _children(value)
        below: list[ConfigEntry] = []
        for name, child in children:
            below += self._lines(child, f"{path}.{name}", name, depth + 1, is_versioned=is_versioned)
        text = None if children else _text(value)
        own = ConfigEntry(
            depth,
            truncate_middle(path, _MAX_TEXT),
            truncate_middle(key, _MAX_TEXT),
            text,
            len(below),
            is_versioned,
            path in self._inputs,
        )
        return [own, *below]

    def _is_short(self, value: Any, path: str) -> bool:
        """Whether a value is a list that fits on one line, such as ``[0.9, 0.95]``."""
        if not isinstance(value, list) or len(value) > _MAX_SHORT_LIST:
            return False
        marked = self._inputs | self._versioned if value else ()
        if any(f"{path}.[{index}]" in marked for index in range(len(value))):
            return False
        return all(isinstance(item, (int, float)) or (isinstance(item, str) and len(item) < 20) for item in value)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()]
    return [(f"[{index}]", child) for index, child in enumerate(value)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    if isinstance(value, str):
        value = _MANGLED.sub("", value)
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{json.dumps(value[:_MAX_TEXT], ensure_ascii=False)[:-1]}…"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 2 * _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _inputs(info: Mapping[str, Any], version: Version | None, roots: Roots) -> Iterator[StepInput]:
    """Yield the inputs: awaited ones with their output paths, then those that are only referred to."""
    paths: Sequence[Any] = info.get("dependencies") or ()
    names = version["dependencies"] if version is not None else []
    if len(names) != len(paths):
        names = [None] * len(paths)
    seen = set()
    for name, path in zip(names, paths, strict=True):
        if path not in seen:
            seen.add(path)
            yield StepInput(_version_text(name, path), path if roots.allow(path) else None)
    for name in version.get("pseudo_dependencies", []) if version is not None else []:
        yield StepInput(_version_text(name, ""), None, waits=False)


def _version_text(version: Any, path: str) -> str:
    """Return ``name-hash`` of an input, or its name if the record does not say its hash."""
    if isinstance(version, str):
        return truncate_middle(version, _MAX_TEXT)
    name = str(version["name"]) if isinstance(version, Mapping) else ""
    hash_ = path[-6:] if name and path.rpartition("-")[0].endswith(name) and _HASH.fullmatch(path[-6:]) else ""
    return truncate_middle(f"{name}-{hash_}" if hash_ else name or posixpath.basename(path), _MAX_TEXT)


def _name_of(versioned: str) -> str | None:
    found = _VERSIONED_NAME.fullmatch(versioned)
    return found[1] if found is not None else None
