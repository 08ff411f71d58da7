"""Names of ``marin.utils`` for files in Marin's style without a checkout: they read and write through the storage."""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress
from datetime import datetime
from typing import Any

from tradewind.storage import file_system_at
from tradewind.text import truncated_repr

OF_FILES = (
    "fsspec_cp", "fsspec_cpdir", "fsspec_dir_only_contains_files", "fsspec_exists", "fsspec_get_atomic_directories",
    "fsspec_get_curr_subdirectories", "fsspec_glob", "fsspec_isdir", "fsspec_mkdirs", "fsspec_mtime", "fsspec_rm",
    "fsspec_size",
)  # fmt: skip
OF_TEXTS = ("get_directory_friendly_name", "rebase_file_path")
"""Names that read nothing."""
__all__ = [*OF_FILES, *OF_TEXTS]


def fsspec_exists(file_path: str) -> bool:
    """Return whether a file or a folder exists."""
    fs, name = file_system_at(file_path)
    return bool(fs.exists(name))


def fsspec_isdir(dir_path: str) -> bool:
    """Return whether a folder exists."""
    fs, name = file_system_at(dir_path)
    return bool(fs.isdir(name))


def fsspec_glob(file_path: str) -> list[str]:
    """Return the paths that match a glob, with the scheme of the glob; ``{a,b}`` matches both, one after the other."""
    from braceexpand import braceexpand

    found = []
    for pattern in braceexpand(file_path):
        fs, name = file_system_at(pattern)
        found += [_with_scheme(fs, path, pattern) for path in fs.glob(name)]
    return found


def fsspec_mkdirs(dir_path: str, exist_ok: bool = True) -> None:
    """Make a folder and those around it."""
    fs, name = file_system_at(dir_path)
    fs.makedirs(name, exist_ok=exist_ok)


def fsspec_rm(path: str) -> bool:
    """Remove a file, or a folder with all in it; return whether it was there."""
    fs, name = file_system_at(path)
    if not fs.exists(name):
        return False
    with suppress(FileNotFoundError):  # another process removed it
        fs.rm(name, recursive=True)
    return True


def fsspec_size(file_path: str) -> int:
    """Return the size of a file in bytes."""
    fs, name = file_system_at(file_path)
    return int(fs.size(name))


def fsspec_mtime(file_path: str) -> datetime:
    """Return when a file was changed."""
    fs, name = file_system_at(file_path)
    changed: datetime = fs.modified(name)
    return changed


def fsspec_cp(source_path: str, target_path: str) -> None:
    """Copy a file of this machine."""
    fs, name = file_system_at(target_path)
    fs.makedirs(posixpath.dirname(name), exist_ok=True)
    fs.put(source_path, name)


def fsspec_cpdir(dir_path: str, target_path: str) -> None:
    """Copy all in a folder of this machine."""
    fs, name = file_system_at(target_path)
    fs.makedirs(name, exist_ok=True)
    fs.put(os.path.join(dir_path, "*"), name, recursive=True)


def fsspec_get_curr_subdirectories(dir_path: str) -> list[str]:
    """Return the folders directly below a folder."""
    fs, name = file_system_at(dir_path)
    return [
        _with_scheme(fs, entry["name"], dir_path) for entry in fs.ls(name, detail=True) if entry["type"] == "directory"
    ]


def fsspec_dir_only_contains_files(dir_path: str) -> bool:
    """Return whether a folder has files, and no folders."""
    fs, name = file_system_at(dir_path)
    kinds = {entry["type"] for entry in fs.ls(name, detail=True)}
    return kinds == {"file"}


def fsspec_get_atomic_directories(dir_path: str) -> list[str]:
    """Return the folders below a folder that have only files."""
    found = []
    for folder in fsspec_get_curr_subdirectories(dir_path) if fsspec_isdir(dir_path) else []:
        found += [folder] if fsspec_dir_only_contains_files(folder) else fsspec_get_atomic_directories(folder)
    return found


def rebase_file_path(
    base_in_path: str,
    file_path: str,
    base_out_path: str,
    new_extension: str | None = None,
    old_extension: str | None = None,
) -> str:
    """Return the path below ``base_out_path`` that corresponds to ``file_path`` below ``base_in_path``.

    Args:
        base_in_path: A folder.
        file_path: A path below it.
        base_out_path: Another folder.
        new_extension: Replaces what follows the last dot, or ``old_extension``.
        old_extension: Ending to replace, with what follows it.

    Raises:
        ValueError: The path does not have ``old_extension``, or no dot.
    """
    relative = posixpath.relpath(file_path, base_in_path)
    if new_extension:
        end = relative.rfind(old_extension or ".")
        if end < 0:
            raise ValueError(f"rebase_file_path: {truncated_repr(file_path)} has no {old_extension or 'extension'}.")
        relative = relative[:end] + new_extension
    return posixpath.join(base_out_path, relative)


def get_directory_friendly_name(name: str) -> str:
    """Return the name of a model or data set of the hub as that of a folder."""
    return name.replace("/", "--").replace(".", "-").replace("#", "-")


def _with_scheme(fs: Any, name: str, given: str) -> str:
    return str(fs.unstrip_protocol(name)) if "://" in given else name
