"""The files below a folder on any fsspec store, as the store has them now: listings are not cached.

A checksum is one that the store keeps and lists, so it needs no read of a file. It is ``md5:`` and 32 hex digits, or
``crc32c:`` and the Base64 text of Google Cloud Storage. Local disks, memory, and S3 for multipart uploads keep none;
``read_files`` computes one by reading.
"""

from __future__ import annotations

import base64
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from glob import has_magic
from pathlib import Path
from typing import IO, Any, Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.storage import file_system_at
from tradewind.storage.client import translated_client_errors

_CHUNK: Final = 1 << 20
_READERS: Final = 4
_PLAIN_MD5: Final = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True)
class StoredFile:
    """One file.

    Attributes:
        path: Relative to the folder that was listed, with ``/`` as separator.
        size: In bytes.
        checksum: ``md5:<hex>``, ``crc32c:<base64>``, or None if the store keeps none.
        tag: Distinguishes this file from a later one of the same name, where the store gives one.
    """

    path: str
    size: int
    checksum: str | None = None
    tag: str | None = field(default=None, compare=False)


def list_files(folder: str) -> list[StoredFile]:
    """List all files below ``folder`` at any depth, by path; empty if it is missing.

    A symbolic link to a file counts as that file. A link to a folder, or a broken one, counts as a file that holds the
    link's target: the walk never leaves ``folder``.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: It refuses access.
    """
    fs, name = file_system_at(folder)
    with translated_client_errors(folder):
        files = _local_files(name) if isinstance(fs, LocalFileSystem) else _listed_files(fs, name)
        return sorted(files, key=lambda file: file.path)


def remove_files(folder: str, relative_paths: Sequence[str]) -> None:
    """Remove these files below ``folder``, in batches where the store can; missing files are no error.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: It refuses access.
    """
    fs, name = file_system_at(folder)
    paths = [posixpath.join(name, path) for path in relative_paths]
    with translated_client_errors(folder):
        if isinstance(fs, LocalFileSystem):
            for path in paths:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)
        else:
            _remove_objects(fs, paths)


def upload_files(folder: Path, target: str) -> None:
    """Copy the files below a local folder to below ``target``, without symbolic links, which may lead elsewhere.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: It refuses access.
    """
    fs, root = file_system_at(target)
    with translated_client_errors(target):
        for file in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
            path = posixpath.join(root, file.relative_to(folder).as_posix())
            fs.makedirs(posixpath.dirname(path), exist_ok=True)
            fs.put_file(str(file), path)


def reads_without_request(folder: str) -> bool:
    """Whether reading a file there needs no request: a local or shared file system, or memory."""
    fs, _ = file_system_at(folder)
    return isinstance(fs, (LocalFileSystem, MemoryFileSystem))


def read_files(folder: str, files: Iterable[StoredFile]) -> list[StoredFile]:
    """Return ``files`` with size and MD5, read by a few threads; files that are gone are omitted.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: It refuses access.
    """
    fs, name = file_system_at(folder)

    def read(file: StoredFile) -> StoredFile | None:
        try:
            return _read(fs, posixpath.join(name, file.path), file.path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    with translated_client_errors(folder), ThreadPoolExecutor(_READERS) as pool:
        return [file for file in pool.map(read, files) if file is not None]


def stored_checksum(info: Mapping[str, Any]) -> str | None:
    """Return the checksum in a listing of Google Cloud Storage (``md5Hash``, ``crc32c``) or S3 (``ETag``)."""
    if info.get("md5Hash"):
        return f"md5:{base64.b64decode(info['md5Hash']).hex()}"
    if info.get("crc32c"):
        return f"crc32c:{info['crc32c']}"
    plain = _PLAIN_MD5.fullmatch(info.get("ETag") or "")
    return f"md5:{plain[1]}" if plain else None


def _local_files(folder: str) -> Iterator[StoredFile]:
    open_folders = [""]
    while open_folders:
        below = open_folders.pop()
        try:
            entries = list(os.scandir(posixpath.join(folder, below)))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            path = posixpath.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                open_folders.append(path)
            elif (file := _local_file(entry, path)) is not None:
                yield file


def _local_file(entry: os.DirEntry[str], path: str) -> StoredFile | None:
    """Return a file, or a broken link with its text's length; None for sockets, pipes and missing files."""
    try:
        itself = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # a link may be circular
        if entry.is_file():
            return StoredFile(path, entry.stat().st_size, tag=local_tag(itself))
    return StoredFile(path, itself.st_size, tag=local_tag(itself)) if stat.S_ISLNK(itself.st_mode) else None


def local_tag(itself: os.stat_result) -> str:
    """Compute the tag of a local file from ``lstat``: another file has another inode or a later time."""
    return f"{itself.st_ino}-{itself.st_mtime_ns}"


def _listed_files(fs: AbstractFileSystem, folder: str) -> Iterator[StoredFile]:
    fs.invalidate_cache()
    try:
        listing: Mapping[str, Mapping[str, Any]] = fs.find(folder, detail=True)
    except FileNotFoundError:
        return
    finally:
        fs.invalidate_cache()  # no later caller may use this listing
    start = folder.rstrip("/") + "/"
    for name, info in listing.items():
        if name.startswith(start) and not name.endswith("/") and info.get("type") == "file":
            tag = info.get("generation") or info.get("ETag")
            yield StoredFile(name.removeprefix(start), int(info["size"]), stored_checksum(info), tag)


def _remove_objects(fs: AbstractFileSystem, paths: Sequence[str]) -> None:
    plain = [path for path in paths if not has_magic(path)]
    if plain:
        with suppress(FileNotFoundError):  # none of them existed
            fs.rm(plain)
    for path in paths:
        if has_magic(path):  # in a list of many, fsspec would treat it as a pattern
            with suppress(FileNotFoundError):
                fs.rm_file(path)
    fs.invalidate_cache()


def _read(fs: AbstractFileSystem, name: str, path: str) -> StoredFile:
    if isinstance(fs, LocalFileSystem) and not os.path.isfile(name) and os.path.islink(name):
        target = os.fsencode(os.readlink(name))
        return StoredFile(path, len(target), f"md5:{hashlib.md5(target, usedforsecurity=False).hexdigest()}")
    with open(name, "rb", buffering=0) if isinstance(fs, LocalFileSystem) else fs.open(name, "rb") as file:
        return _digested(file, path)


def _digested(file: IO[bytes], path: str) -> StoredFile:
    md5, size = hashlib.md5(usedforsecurity=False), 0
    while chunk := file.read(_CHUNK):
        md5.update(chunk)
        size += len(chunk)
    return StoredFile(path, size, f"md5:{md5.hexdigest()}")
