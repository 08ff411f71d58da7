"""From a path to its file system: the only place where fsspec is told a path that somebody gave.

There, a file has another name or is gone whatever its name holds, and also if the answer to that was lost.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

from tradewind.storage.paths import Location

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def file_system_at(path: str) -> tuple[AbstractFileSystem, str]:
    """The file system of ``path``, and the path's name there. What lies below is addressed by that file system.

    Raises:
        UnusablePathError: It is none that may be opened.
    """
    from fsspec.core import url_to_fs

    Location.of(path)
    return cast("tuple[AbstractFileSystem, str]", url_to_fs(path))


def open_file(path: str, mode: str = "rb") -> IO[bytes]:
    """The file at ``path``, opened.

    Raises:
        UnusablePathError: It is none that may be opened.
        FileNotFoundError: It is not there.
    """
    fs, name = file_system_at(path)
    return cast("IO[bytes]", fs.open(name, mode))


def rename_file(fs: AbstractFileSystem, name: str, to_name: str) -> None:
    """Give a file of a store another name, whatever has it. In a bucket that is a copy, which appears whole.

    fsspec's own ``mv`` takes names with brackets, asterisks or question marks for patterns, and fails if it is not told
    that it has removed the file.
    """
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(fs, LocalFileSystem):
        os.replace(name, to_name)
    else:
        fs.cp_file(name, to_name)
        remove_file(fs, name)


def remove_file(fs: AbstractFileSystem, name: str) -> None:
    """Remove a file of a store; one that is gone is fine, for so it is when an answer was lost."""
    with suppress(FileNotFoundError):
        fs.rm_file(name)
