"""One copy of a mirrored path, made by whoever holds its lease: all of it as the source had it at one time, or none.

On a disk it is made in the folder of its record and renamed to its place, so that nobody ever sees a part of it. In a
bucket, which cannot rename a folder, each file appears in its place whole, and counts once the lease is committed. What
is to be copied is written down first (``LIST_FILE``): an attempt after a kill leaves the whole files that are there, as
long as the source is still what the list says, and removes them otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
import threading
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from fsspec.implementations.local import LocalFileSystem

from tradewind.records.lease_store import LeaseHolder, check_still_held
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT, is_record
from tradewind.records.parsing import RAW_TEXT, RecordFormatError, is_relative, parse_fields, parse_object
from tradewind.records.pins import OWN_FOLDER
from tradewind.records.record import RecordState, read_leases, read_records
from tradewind.serialization.errors import StepRuntimeError
from tradewind.serialization.mirrors import OWN_FOLDERS, MirroredPath
from tradewind.steps import truncated_repr
from tradewind.steps.paths import self_and_parents
from tradewind.storage import file_system_at, resolve_location
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.client import translated_client_errors
from tradewind.storage.copying import CopyRefusedError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import list_names, read_text, write_text
from tradewind.storage.trees import StoredFile, list_files, local_tag, remove_files, stored_checksum

# Why a step's mirrored path cannot be read in the region of its run. Each message names the field.


class MirrorError(StepRuntimeError):
    """A mirrored path cannot be had. What was there before is as it was."""


class MirrorCopyError(MirrorError):
    """What was copied is not what the source has, or had at the beginning."""


# What is whole, and where: a mirrored path in the run's own prefix, and below the prefixes that it may come from.
#
# A copy is made under a lease, whose record is ``{prefix}/.tradewind/mirrors/{digest of the path}``. What lies at a
# path while that lease says neither ``committed`` nor nothing is a part of a copy, unless the disk renames whole
# folders; what lies in the output of a step counts as that output does.

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


def is_mirrored(mirror: MirroredPath) -> bool:
    """Whether the path is whole in its place; a copy that somebody is making is not.

    Raises:
        MirrorError: A link leads its place out of the prefix.
        MirrorError: It is an output that is no result, or holds only parts that were mirrored by themselves.
        StoreError: The store does not answer.
    """
    if not resolve_location(mirror.path).is_below(resolve_location(mirror.prefix)):
        raise MirrorError(
            f"{mirror.field}: {mirror.path} leads out of the prefix {mirror.prefix} by a link, which was not followed."
        )
    outputs = _states(posixpath.join(mirror.prefix, name) for name in self_and_parents(mirror.name))
    for output, state in outputs.items():
        if state not in _WHOLE:
            raise MirrorError(
                f"{mirror.field}: {mirror.path} belongs to the output {output}, whose state is {state.value!r}: refer "
                "to its step with output_path_of(), or mirror another path."
            )
    fs, place = file_system_at(mirror.path)
    with translated_client_errors(mirror.path):
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
        MirrorError: There is none; it says what is wrong with each.
        MirrorError: A link leads out of a prefix.
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
    raise MirrorError(
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
        raise MirrorError(
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
        raise MirrorError(
            f"{mirror.field}: {prefix} has {truncated_repr(odd[0])} below {mirror.name}, a name that leads elsewhere "
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
        with translated_client_errors(path):
            fs.invalidate_cache()
            about = fs.info(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if about.get("type") != "file":
        return None
    tag = local_tag(os.stat(name)) if isinstance(fs, LocalFileSystem) else about.get("generation") or about.get("ETag")
    return StoredFile(posixpath.basename(path), int(about["size"]), stored_checksum(about), tag)


def _check_links(prefix: str, root: str, files: Iterable[StoredFile], field: str) -> None:
    top = resolve_location(prefix)
    for file in files:
        name = posixpath.join(root, file.path)
        if not resolve_location(name).is_below(top) or not os.path.isfile(file_system_at(name)[1]):
            raise MirrorError(
                f"{field}: {name} is a link that leads out of {prefix}, or to no file, and was not followed: put there "
                "what it leads to."
            )


LIST_FILE: Final = "files.json"
MAX_CONCURRENT_COPIES: Final = 8
_STAGED: Final = "copy-"
"""Before the digest of a list: the folder with its copy, on a disk. So what is shown is no part of another copy."""
_DROPPED: Final = "dropped-"
_KINDS: Final = {"path": RAW_TEXT}


class MirrorCopy:
    """A copy under way.

    Args:
        found: The source.
        turn: The lease of the copy, which is held and renewed.
    """

    def __init__(self, mirror: MirroredPath, found: FoundSource, turn: LeaseHolder) -> None:
        self._mirror = mirror
        self._found = found
        self._turn = turn
        self._record = record_of(mirror.prefix, mirror.name)
        self._parts = posixpath.join(self._record, "parts")
        self._is_staged = is_on_disk(mirror.path)
        place = posixpath.dirname(mirror.path) if found.is_file else mirror.path
        self._list = json.dumps({"name": mirror.name, "from": found.prefix, "files": _told(found.files)})
        self._root = posixpath.join(self._record, f"{_STAGED}{self.digest[:16]}") if self._is_staged else place
        self._has_ended = threading.Event()

    @property
    def digest(self) -> str:
        """The SHA-256 of the list of what is copied."""
        return hashlib.sha256(self._list.encode()).hexdigest()

    def make(self) -> int:
        """Copy what is not there yet, and put all in its place; how many files were copied.

        Raises:
            MirrorCopyError: The source changed, or gave other bytes than its store says; what was copied is removed.
            MirrorError: Something else lies in its place.
            MirrorError: A link leads its place out of the prefix.
            LeaseLostError: Somebody else holds the lease.
            StoreError: A store does not answer; what was copied stays for the next attempt.
        """
        todo = self._begin()
        try:
            self._copy(todo)
            if _told(listed_again(self._found)) != _told(self._found.files):
                raise MirrorCopyError(
                    f"{self._mirror.field}: {self._found.root} changed while it was copied: mirror what nobody writes "
                    "to, and clear the task."
                )
        except TargetOccupiedError as error:
            raise MirrorError(f"{self._mirror.field}: {error} Move it away, or mirror another path.") from error
        except CopyRefusedError as error:
            self._discard()
            raise MirrorCopyError(f"{self._mirror.field}: {error} Nothing of it was kept.") from error
        except MirrorCopyError:
            self._discard()
            raise
        if self._is_staged:
            self._show()
        return len(todo)

    def go_on(self) -> None:
        """Asked between any two mebibytes.

        Raises:
            LeaseLostError: The copy is to end.
        """
        check_still_held(self._turn)
        if self._has_ended.is_set():
            raise LeaseLostError("The copy has ended.")

    def _begin(self) -> Sequence[StoredFile]:
        """Remove what is no part of this copy, and write its list down; the files that are not there yet."""
        before = read_text(posixpath.join(self._record, LIST_FILE))
        check_still_held(self._turn)
        remove_files(self._parts, [file.path for file in list_files(self._parts)])
        if before is not None and before != self._list and not self._is_staged:
            remove_files(self._root, _paths_in(before))
        there, wanted = self._there(), {file.path: file for file in self._found.files}
        other = [path for path, file in there.items() if path not in wanted or not _is_copy(file, wanted[path])]
        if self._is_staged:
            self._drop_other_copies()
            remove_files(self._root, other)
            there = {path: file for path, file in there.items() if path not in other}
        elif other := [path for path in other if path in wanted]:
            raise MirrorError(
                f"{self._mirror.field}: {posixpath.join(self._root, other[0])} is another file than "
                f"{posixpath.join(self._found.root, other[0])}: move it away, or mirror another path."
            )
        if before != self._list:
            write_text(posixpath.join(self._record, LIST_FILE), self._list)
        return [file for file in self._found.files if file.path not in there]

    def _drop_other_copies(self) -> None:
        """Remove those of other lists; renamed first, so that whoever wakes up to show one shows all of it or none."""
        _, record = file_system_at(self._record)
        mine = posixpath.basename(self._root)
        for name in os.listdir(record) if os.path.isdir(record) else []:
            if name.startswith((_STAGED[:-1], _DROPPED)) and name != mine:
                dropped = posixpath.join(record, f"{_DROPPED}{uuid.uuid4().hex}")
                with suppress(FileNotFoundError):  # it has just been shown
                    os.rename(posixpath.join(record, name), dropped)
                    shutil.rmtree(dropped)

    def _there(self) -> dict[str, StoredFile]:
        if self._found.is_file and not self._is_staged:  # its folder may hold a million others
            return {}
        return {file.path: file for file in list_files(self._root)}

    def _copy(self, files: Sequence[StoredFile]) -> None:
        with ThreadPoolExecutor(MAX_CONCURRENT_COPIES, thread_name_prefix="mirror") as threads:
            try:
                for _ in threads.map(self._copy_one, files):
                    pass
            except BaseException:  # also a request to stop, after which nobody waits for the others
                self._has_ended.set()
                raise

    def _copy_one(self, file: StoredFile) -> None:
        aside = posixpath.join(self._parts, uuid.uuid4().hex)
        copy_file(self._found.root, file, posixpath.join(self._root, file.path), aside, self.go_on)

    def _discard(self) -> None:
        check_still_held(self._turn)
        remove_files(self._root, [file.path for file in self._found.files])

    def _show(self) -> None:
        """Rename the copy to its place."""
        _, root = file_system_at(self._root)
        _, place = file_system_at(self._mirror.path)
        folder = posixpath.dirname(place)
        check_still_held(self._turn)
        os.makedirs(folder, exist_ok=True)
        if not resolve_location(self._mirror.path).is_below(resolve_location(self._mirror.prefix)):
            raise MirrorError(f"{self._mirror.field}: {self._mirror.path} leads out of the prefix by a link.")
        try:
            if self._found.is_file:
                os.link(posixpath.join(root, self._found.files[0].path), place)
                shutil.rmtree(root)
            else:
                os.rename(root, place)
        except FileNotFoundError as error:
            raise LeaseLostError(f"{self._root} is gone: somebody else has begun another copy.") from error
        except OSError as error:
            raise MirrorError(
                f"{self._mirror.field}: the copy cannot be put at {self._mirror.path}: {error}. Move what is there "
                "away, or mirror another path."
            ) from error


def _is_copy(there: StoredFile, file: StoredFile) -> bool:
    """Whether what is there may be a copy of ``file``, by size, and by checksums of one kind."""
    sums = (there.checksum or "", file.checksum or "")
    is_same_kind = sums[0].partition(":")[0] == sums[1].partition(":")[0]
    return there.size == file.size and (not is_same_kind or sums[0] == sums[1])


def _paths_in(text: str) -> list[str]:
    """The paths in a list that an earlier copy wrote; of one that somebody else wrote, nothing is believed."""
    try:
        paths = [str(parse_fields(each, _KINDS, _KINDS)["path"]) for each in parse_object(text).get("files", ())]
    except (RecordFormatError, TypeError):
        return []
    return [path for path in paths if is_relative(path)]


def _told(files: Sequence[StoredFile]) -> list[dict[str, object]]:
    return [asdict(file) for file in sorted(files, key=lambda file: file.path)]
