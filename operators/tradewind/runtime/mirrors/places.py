"""What is whole, and where: a mirrored path in the run's own prefix, and below the prefixes that it may come from.

A copy is made under a lease, whose record is ``{prefix}/.tradewind/mirrors/{digest of the path}``. What lies at a path
while that lease says neither ``committed`` nor nothing is a part of a copy, unless the disk renames whole folders; what
lies in the output of a step counts as that output does.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fsspec.implementations.local import LocalFileSystem

from tradewind.calls.mirrors import OWN_FOLDERS, MirroredPath
from tradewind.records.outputs.manifests import RECORDS_OF_AN_OUTPUT, is_record
from tradewind.records.outputs.pins import OWN_FOLDER
from tradewind.records.parsing import is_relative
from tradewind.records.reading import read_leases, read_records
from tradewind.records.record import RecordState
from tradewind.runtime.mirrors.errors import MirrorMissingError, MirrorOccupiedError, MirrorOutsideError
from tradewind.steps import shortened
from tradewind.steps.paths import self_and_parents
from tradewind.storage import file_system_at, place_of
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.failures import failures_told
from tradewind.storage.files import list_names
from tradewind.storage.trees import StoredFile, kept_checksum, list_files, local_tag

MIRRORS_FOLDER: Final = f"{OWN_FOLDER}/mirrors"
MIRRORED: Final = "mirrored"
"""In ``by`` of the lease of a copy: the path, relative to the prefix."""
NAME_PREFIXES: Final = (
    "Name the prefixes of other regions in mirror_prefixes in the [tradewind] section of airflow.cfg, or in "
    "TRADEWIND_MIRROR_PREFIXES for a script."
)
_WHOLE: Final = frozenset({RecordState.NONE, RecordState.FINISHED})


@dataclass(frozen=True)
class FoundSource:
    """A path that is whole below a prefix.

    Attributes:
        prefix: Below which it is.
        root: The folder that the files are relative to.
        is_file: The path is one file, in ``root``.
        files: All of it, without the records of steps.
    """

    prefix: str
    root: str
    is_file: bool
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(file.size for file in self.files)


def record_of(prefix: str, name: str) -> str:
    """The folder with the lease and the list of the copy of ``name`` below ``prefix``."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return posixpath.join(prefix, MIRRORS_FOLDER, digest)


def is_on_disk(path: str) -> bool:
    """Whether a whole folder can be renamed there."""
    return isinstance(file_system_at(path)[0], LocalFileSystem)


def is_here(mirror: MirroredPath) -> bool:
    """Whether the path is whole in its place; a copy that somebody is making is not.

    Raises:
        MirrorOutsideError: A link leads its place out of the prefix.
        MirrorOccupiedError: It is an output that is no result, or holds only parts that were mirrored by themselves.
        StoreError: The store does not answer.
    """
    if not place_of(mirror.path).is_below(place_of(mirror.prefix)):
        raise MirrorOutsideError(
            f"{mirror.field}: {mirror.path} leads out of the prefix {mirror.prefix} by a link, which was not followed."
        )
    outputs = _states(posixpath.join(mirror.prefix, name) for name in self_and_parents(mirror.name))
    for output, state in outputs.items():
        if state not in _WHOLE:
            raise MirrorOccupiedError(
                f"{mirror.field}: {mirror.path} belongs to the output {output}, whose state is {state.value!r}: refer "
                "to its step with output_path_of(), or mirror another path."
            )
    fs, place = file_system_at(mirror.path)
    with failures_told(mirror.path):
        fs.invalidate_cache()
        is_there = bool(fs.exists(place))
    if not is_there or (not is_on_disk(mirror.path) and _unfinished(mirror.prefix, mirror.name)):
        return False
    if RecordState.FINISHED not in outputs.values():
        _check_no_part(mirror)
    return True


def found_source(mirror: MirroredPath) -> FoundSource:
    """The first prefix below which the path is whole, and its files there.

    Raises:
        MirrorMissingError: There is none; it says what is wrong with each.
        MirrorOutsideError: A link leads out of a prefix.
        StoreUnavailableError: There is none among those that answered.
    """
    why: dict[str, str] = {}
    silent: StoreUnavailableError | None = None
    for prefix in mirror.sources:
        try:
            found = _listed(prefix, mirror)
            problem = _problem_of(prefix, mirror.name, found.files)
        except StoreUnavailableError as error:
            silent, problem = error, str(error)
        except StoreRefusedError as error:
            problem = str(error)
        if not problem:
            return found
        why[prefix] = problem
    if silent is not None:
        raise silent
    told = "".join(f"\n  {prefix}: {problem}" for prefix, problem in why.items())
    cure = "" if why else f" {NAME_PREFIXES}"
    raise MirrorMissingError(
        f"{mirror.field}: {mirror.name} is neither below the run's prefix {mirror.prefix} nor whole below another."
        + cure
        + told
    )


def listed_again(found: FoundSource) -> tuple[StoredFile, ...]:
    """What the source has of these files now."""
    wanted = {file.path for file in found.files}
    if found.is_file:
        return tuple(filter(None, [_single(posixpath.join(found.root, path)) for path in wanted]))
    return tuple(_files(found.root))


def _states(paths: Iterable[str]) -> dict[str, RecordState]:
    return {path: record.state for path, record in read_records(list(paths)).items()}


def _unfinished(prefix: str, name: str) -> bool:
    """Whether a copy of the path, or of one that holds it, was begun and is not whole."""
    records = read_records([record_of(prefix, each) for each in self_and_parents(name)])
    return any(record.state not in _WHOLE for record in records.values())


def _check_no_part(mirror: MirroredPath) -> None:
    """Refuse a folder that is there only since parts of it were mirrored."""
    folder = posixpath.join(mirror.prefix, MIRRORS_FOLDER)
    leases = read_leases([posixpath.join(folder, name) for name in list_names(folder)])
    names = {str(lease.by.get(MIRRORED, "")) for lease in leases.values()}
    if mirror.name in names:
        return
    if parts := sorted(name for name in names if name.startswith(f"{mirror.name}/")):
        raise MirrorOccupiedError(
            f"{mirror.field}: {mirror.path} holds what was mirrored by itself, such as {parts[0]}, so nobody can say "
            "whether the rest is there: mirror those parts, or move them away."
        )


def _problem_of(prefix: str, name: str, files: Iterable[StoredFile]) -> str:
    """Why what is there cannot be copied; empty if it can."""
    files = list(files)
    if not files:
        return "it is not there"
    if _unfinished(prefix, name):
        return "a copy of it is being made there, or was left unfinished"
    path = posixpath.join(prefix, name)
    below = {posixpath.dirname(file.path) for file in list_files(path) if _is_step_record(file.path)}
    above = [posixpath.join(prefix, each) for each in self_and_parents(name)]
    for output, state in _states([*above, *(posixpath.join(path, each) for each in below if each)]).items():
        if state not in _WHOLE:
            return f"the output {output} is no result, its state is {state.value!r}"
    return ""


def _listed(prefix: str, mirror: MirroredPath) -> FoundSource:
    path = posixpath.join(prefix, mirror.name)
    files = _files(path)
    is_file = False
    if not files and (single := _single(path)) is not None:
        path, is_file, files = posixpath.dirname(path), True, [single]
    if odd := [file.path for file in files if not is_relative(file.path)]:
        raise MirrorOutsideError(
            f"{mirror.field}: {prefix} has {shortened(odd[0])} below {mirror.name}, a name that leads elsewhere "
            "on a disk: rename or remove it."
        )
    if is_on_disk(path):
        _check_links(prefix, path, files, mirror.field)
    return FoundSource(prefix, path, is_file, tuple(files))


def _files(folder: str) -> list[StoredFile]:
    return [file for file in list_files(folder) if not _is_own(file.path)]


def _is_own(path: str) -> bool:
    parts = path.split("/")
    return _is_step_record(path) or is_record(path) or not OWN_FOLDERS.isdisjoint(parts)


def _is_step_record(path: str) -> bool:
    return posixpath.basename(path) in RECORDS_OF_AN_OUTPUT


def _single(path: str) -> StoredFile | None:
    """The file at ``path`` itself, if there is one."""
    fs, name = file_system_at(path)
    try:
        with failures_told(path):
            fs.invalidate_cache()
            about = fs.info(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if about.get("type") != "file":
        return None
    tag = local_tag(os.stat(name)) if isinstance(fs, LocalFileSystem) else about.get("generation") or about.get("ETag")
    return StoredFile(posixpath.basename(path), int(about["size"]), kept_checksum(about), tag)


def _check_links(prefix: str, root: str, files: Iterable[StoredFile], field: str) -> None:
    top = place_of(prefix)
    for file in files:
        name = posixpath.join(root, file.path)
        if not place_of(name).is_below(top) or not os.path.isfile(file_system_at(name)[1]):
            raise MirrorOutsideError(
                f"{field}: {name} is a link that leads out of {prefix}, or to no file, and was not followed: put there "
                "what it leads to."
            )
