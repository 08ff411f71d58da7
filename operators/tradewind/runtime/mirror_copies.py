"""Copies of mirrored paths: find a complete source, and copy all of it as it was at one time, or nothing.

The owner of the copy's lease copies. The record of that lease is ``{prefix}/.tradewind/mirrors/{digest of the path}``.
While the lease is neither absent nor ``committed``, the files at the path are a partial copy, except on a disk, which
renames whole folders. Files in the output of a step count as that output does.

On a disk, the copy is made in the folder of its record and then renamed to the path, so that no reader sees a part. In
a bucket, which cannot rename a folder, each file appears complete at the path and counts once the lease is committed.
The copy first writes a list of its files (``LIST_FILE``). After a kill, the next attempt keeps complete files as long
as the source still matches the list, and removes them otherwise.
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
from tradewind.serialization.mirrors import MirroredPath
from tradewind.steps import truncated_repr
from tradewind.steps.paths import OWN_FOLDERS, self_and_parents
from tradewind.storage import file_system_at, resolve_location
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.client import translated_client_errors
from tradewind.storage.copying import CopyRefusedError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import list_names, read_text, write_text
from tradewind.storage.trees import StoredFile, list_files, local_tag, remove_files, stored_checksum

MIRRORS_FOLDER: Final = f"{OWN_FOLDER}/mirrors"
MIRRORED: Final = "mirrored"
"""Key in ``by`` of the lease of a copy: the path, relative to the prefix."""
LIST_FILE: Final = "files.json"
MAX_CONCURRENT_COPIES: Final = 8
NAME_PREFIXES: Final = (
    "Name the prefixes of other regions in mirror_prefixes in the [tradewind] section of airflow.cfg, or in "
    "TRADEWIND_MIRROR_PREFIXES for a script."
)
_COMPLETE: Final = frozenset({RecordState.NONE, RecordState.FINISHED})
_STAGED: Final = "copy-"
"""Prefix of a list's digest in the folder name of its copy on a disk, so that no other copy's files get into it."""
_DROPPED: Final = "dropped-"
_KINDS: Final = {"path": RAW_TEXT}


class MirrorError(StepRuntimeError):
    """A mirrored path cannot be read in the region of the run; existing files are unchanged. Names the field."""


class MirrorCopyError(MirrorError):
    """The copied files differ from those of the source, now or at the beginning."""


@dataclass(frozen=True)
class FoundSource:
    """A path that is complete below a prefix.

    Attributes:
        prefix: The prefix.
        root: The folder that the files are relative to.
        is_file: The path is one file, in ``root``.
        files: All files, without the records of steps.
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
    """Return the folder with the lease and the list of the copy of ``name`` below ``prefix``."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return posixpath.join(prefix, MIRRORS_FOLDER, digest)


def is_on_disk(path: str) -> bool:
    """Whether the path is on a disk, which can rename a whole folder."""
    return isinstance(file_system_at(path)[0], LocalFileSystem)


def is_mirrored(mirror: MirroredPath) -> bool:
    """Whether the path is complete in the run's prefix; a copy under way is not.

    Raises:
        MirrorError: A link leads the path out of the prefix.
        MirrorError: It is an output that is no result, or only parts of it were mirrored.
        StoreError: The store does not answer.
    """
    if not resolve_location(mirror.path).is_below(resolve_location(mirror.prefix)):
        raise MirrorError(
            f"{mirror.field}: {mirror.path} leads out of the prefix {mirror.prefix} by a link, which was not followed."
        )
    outputs = _states(posixpath.join(mirror.prefix, name) for name in self_and_parents(mirror.name))
    for output, state in outputs.items():
        if state not in _COMPLETE:
            raise MirrorError(
                f"{mirror.field}: {mirror.path} belongs to the output {output}, whose state is {state.value!r}: refer "
                "to its step with output_path_of(), or mirror another path."
            )
    fs, target = file_system_at(mirror.path)
    with translated_client_errors(mirror.path):
        fs.invalidate_cache()
        is_there = bool(fs.exists(target))
    if not is_there or (not is_on_disk(mirror.path) and _unfinished(mirror.prefix, mirror.name)):
        return False
    if RecordState.FINISHED not in outputs.values():
        _check_no_part(mirror)
    return True


def find_source(mirror: MirroredPath) -> FoundSource:
    """Return the first prefix below which the path is complete, with its files.

    Raises:
        MirrorError: There is none; the message has the problem of each.
        MirrorError: A link leads out of a prefix.
        StoreUnavailableError: There is none among those that answered.
    """
    problems: dict[str, str] = {}
    outage: StoreUnavailableError | None = None
    for prefix in mirror.sources:
        try:
            source = _list_source(prefix, mirror)
            problem = _problem_of(prefix, mirror.name, source.files)
        except StoreUnavailableError as error:
            outage, problem = error, str(error)
        except StoreRefusedError as error:
            problem = str(error)
        if not problem:
            return source
        problems[prefix] = problem
    if outage is not None:
        raise outage
    details = "".join(f"\n  {prefix}: {problem}" for prefix, problem in problems.items()) or f" {NAME_PREFIXES}"
    raise MirrorError(
        f"{mirror.field}: {mirror.name} is neither below the run's prefix {mirror.prefix} nor complete below another."
        + details
    )


def _list_again(source: FoundSource) -> Sequence[StoredFile]:
    """Return the current files of the source."""
    if source.is_file:
        return [file for each in source.files if (file := _single(posixpath.join(source.root, each.path)))]
    return _files(source.root)


def _states(paths: Iterable[str]) -> dict[str, RecordState]:
    return {path: record.state for path, record in read_records(list(paths)).items()}


def _unfinished(prefix: str, name: str) -> bool:
    """Whether a copy of the path, or of one of its parents, was begun and is not complete."""
    records = read_records([record_of(prefix, each) for each in self_and_parents(name)])
    return any(record.state not in _COMPLETE for record in records.values())


def _check_no_part(mirror: MirroredPath) -> None:
    """Refuse a folder that exists only because parts of it were mirrored."""
    folder = posixpath.join(mirror.prefix, MIRRORS_FOLDER)
    leases = read_leases([posixpath.join(folder, name) for name in list_names(folder)])
    names = {str(lease.by.get(MIRRORED, "")) for lease in leases.values()}
    if mirror.name in names:
        return
    if parts := sorted(name for name in names if name.startswith(f"{mirror.name}/")):
        raise MirrorError(
            f"{mirror.field}: {mirror.path} holds parts mirrored by themselves, such as {parts[0]}, so the rest may "
            "be missing: mirror those parts, or move them away."
        )


def _problem_of(prefix: str, name: str, files: Iterable[StoredFile]) -> str:
    """Return why the files cannot be copied; empty if they can."""
    files = list(files)
    if not files:
        return "it is not there"
    if _unfinished(prefix, name):
        return "a copy of it is being made there, or was left unfinished"
    path = posixpath.join(prefix, name)
    below = {posixpath.dirname(file.path) for file in list_files(path) if _is_step_record(file.path)}
    above = [posixpath.join(prefix, each) for each in self_and_parents(name)]
    for output, state in _states([*above, *(posixpath.join(path, each) for each in below if each)]).items():
        if state not in _COMPLETE:
            return f"the output {output} is no result, its state is {state.value!r}"
    return ""


def _list_source(prefix: str, mirror: MirroredPath) -> FoundSource:
    path = posixpath.join(prefix, mirror.name)
    files = _files(path)
    is_file = False
    if not files and (single := _single(path)) is not None:
        path, is_file, files = posixpath.dirname(path), True, [single]
    if invalid := [file.path for file in files if not is_relative(file.path)]:
        raise MirrorError(
            f"{mirror.field}: {prefix} has {truncated_repr(invalid[0])} below {mirror.name}, a name that leads "
            "elsewhere on a disk: rename or remove it."
        )
    if is_on_disk(path):
        _check_links(prefix, path, files, mirror.field)
    return FoundSource(prefix, path, is_file, tuple(files))


def _files(folder: str) -> list[StoredFile]:
    """Return the files below ``folder``, without records."""
    return [
        file
        for file in list_files(folder)
        if not (_is_step_record(file.path) or is_record(file.path)) and OWN_FOLDERS.isdisjoint(file.path.split("/"))
    ]


def _is_step_record(path: str) -> bool:
    return posixpath.basename(path) in RECORDS_OF_AN_OUTPUT


def _single(path: str) -> StoredFile | None:
    """Return the file at ``path`` itself, if there is one."""
    fs, name = file_system_at(path)
    try:
        with translated_client_errors(path):
            fs.invalidate_cache()
            info = fs.info(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if info.get("type") != "file":
        return None
    tag = local_tag(os.stat(name)) if isinstance(fs, LocalFileSystem) else info.get("generation") or info.get("ETag")
    return StoredFile(posixpath.basename(path), int(info["size"]), stored_checksum(info), tag)


def _check_links(prefix: str, root: str, files: Iterable[StoredFile], field: str) -> None:
    top = resolve_location(prefix)
    for file in files:
        name = posixpath.join(root, file.path)
        if not resolve_location(name).is_below(top) or not os.path.isfile(file_system_at(name)[1]):
            raise MirrorError(
                f"{field}: {name} is a link that leads out of {prefix}, or to no file, and was not followed: put there "
                "what it leads to."
            )


class MirrorCopy:
    """A copy under way.

    Args:
        lease: The lease of the copy, which its owner renews.
    """

    def __init__(self, mirror: MirroredPath, source: FoundSource, lease: LeaseHolder) -> None:
        self._mirror = mirror
        self._source = source
        self._lease = lease
        self._record = record_of(mirror.prefix, mirror.name)
        self._parts = posixpath.join(self._record, "parts")
        self._is_staged = is_on_disk(mirror.path)
        target = posixpath.dirname(mirror.path) if source.is_file else mirror.path
        self._list = json.dumps({"name": mirror.name, "from": source.prefix, "files": _rows(source.files)})
        self._root = posixpath.join(self._record, f"{_STAGED}{self.digest[:16]}") if self._is_staged else target
        self._has_ended = threading.Event()

    @property
    def digest(self) -> str:
        """The SHA-256 of the list of files."""
        return hashlib.sha256(self._list.encode()).hexdigest()

    def make(self) -> int:
        """Copy the missing files and publish all of them; return how many were copied.

        Raises:
            MirrorCopyError: The source changed, or its bytes differ from its store's checksum; the copy is removed.
            MirrorError: Other files exist at the path.
            MirrorError: A link leads the path out of the prefix.
            LeaseLostError: Another process owns the lease.
            StoreError: A store does not answer; the copied files stay for the next attempt.
        """
        missing = self._begin()
        try:
            self._copy(missing)
            if _rows(_list_again(self._source)) != _rows(self._source.files):
                raise MirrorCopyError(
                    f"{self._mirror.field}: {self._source.root} changed while it was copied: mirror a path that no "
                    "process writes to, and clear the task."
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
            self._publish()
        return len(missing)

    def check(self) -> None:
        """Check the lease; called between any two mebibytes.

        Raises:
            LeaseLostError: The copy is to end.
        """
        check_still_held(self._lease)
        if self._has_ended.is_set():
            raise LeaseLostError("The copy has ended.")

    def _begin(self) -> Sequence[StoredFile]:
        """Remove files of other copies and write this one's list; return the missing files."""
        before = read_text(posixpath.join(self._record, LIST_FILE))
        check_still_held(self._lease)
        remove_files(self._parts, [file.path for file in list_files(self._parts)])
        if before is not None and before != self._list and not self._is_staged:
            remove_files(self._root, _paths_in(before))
        existing, wanted = self._existing(), {file.path: file for file in self._source.files}
        other = [path for path, file in existing.items() if path not in wanted or not _is_copy(file, wanted[path])]
        if self._is_staged:
            self._drop_other_copies()
            remove_files(self._root, other)
            existing = {path: file for path, file in existing.items() if path not in other}
        elif other := [path for path in other if path in wanted]:
            raise MirrorError(
                f"{self._mirror.field}: {posixpath.join(self._root, other[0])} is another file than "
                f"{posixpath.join(self._source.root, other[0])}: move it away, or mirror another path."
            )
        if before != self._list:
            write_text(posixpath.join(self._record, LIST_FILE), self._list)
        return [file for file in self._source.files if file.path not in existing]

    def _drop_other_copies(self) -> None:
        """Remove copies of other lists; rename each first, so that a process that thaws publishes all of it or none."""
        _, record = file_system_at(self._record)
        own = posixpath.basename(self._root)
        for name in os.listdir(record) if os.path.isdir(record) else []:
            if name.startswith((_STAGED[:-1], _DROPPED)) and name != own:
                dropped = posixpath.join(record, f"{_DROPPED}{uuid.uuid4().hex}")
                with suppress(FileNotFoundError):  # its process has just published it
                    os.rename(posixpath.join(record, name), dropped)
                    shutil.rmtree(dropped)

    def _existing(self) -> dict[str, StoredFile]:
        if self._source.is_file and not self._is_staged:  # its folder may hold a million other files
            return {}
        return {file.path: file for file in list_files(self._root)}

    def _copy(self, files: Sequence[StoredFile]) -> None:
        with ThreadPoolExecutor(MAX_CONCURRENT_COPIES, thread_name_prefix="mirror") as threads:
            try:
                for _ in threads.map(self._copy_one, files):
                    pass
            except BaseException:  # also a stop request, which must end the other threads
                self._has_ended.set()
                raise

    def _copy_one(self, file: StoredFile) -> None:
        aside = posixpath.join(self._parts, uuid.uuid4().hex)
        copy_file(self._source.root, file, posixpath.join(self._root, file.path), aside, self.check)

    def _discard(self) -> None:
        check_still_held(self._lease)
        remove_files(self._root, [file.path for file in self._source.files])

    def _publish(self) -> None:
        """Rename the copy to the mirrored path."""
        _, root = file_system_at(self._root)
        _, target = file_system_at(self._mirror.path)
        folder = posixpath.dirname(target)
        check_still_held(self._lease)
        os.makedirs(folder, exist_ok=True)
        if not resolve_location(self._mirror.path).is_below(resolve_location(self._mirror.prefix)):
            raise MirrorError(f"{self._mirror.field}: {self._mirror.path} leads out of the prefix by a link.")
        try:
            if self._source.is_file:
                os.link(posixpath.join(root, self._source.files[0].path), target)
                shutil.rmtree(root)
            else:
                os.rename(root, target)
        except FileNotFoundError as error:
            raise LeaseLostError(f"{self._root} is gone: another process has begun another copy.") from error
        except OSError as error:
            raise MirrorError(
                f"{self._mirror.field}: the copy cannot be put at {self._mirror.path}: {error}. Move what is there "
                "away, or mirror another path."
            ) from error


def _is_copy(existing: StoredFile, file: StoredFile) -> bool:
    """Whether an existing file may be a copy of ``file``, by size, and by checksums of one kind."""
    sums = (existing.checksum or "", file.checksum or "")
    is_same_kind = sums[0].partition(":")[0] == sums[1].partition(":")[0]
    return existing.size == file.size and (not is_same_kind or sums[0] == sums[1])


def _paths_in(text: str) -> list[str]:
    """Return the paths in the list of an earlier copy; none from an invalid list."""
    try:
        paths = [str(parse_fields(each, _KINDS, _KINDS)["path"]) for each in parse_object(text).get("files", ())]
    except (RecordFormatError, TypeError):
        return []
    return [path for path in paths if is_relative(path)]


def _rows(files: Sequence[StoredFile]) -> list[dict[str, object]]:
    return [asdict(file) for file in sorted(files, key=lambda file: file.path)]
