"""Return a path's file system: the only module that passes paths from outside to fsspec.

Renaming and removing work for every name, and also if a response was lost.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

from tradewind.storage.paths import Location

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def file_system_at(path: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of ``path`` and the path's name there; address files below it with that.

    Raises:
        UnusablePathError: It is not a path that may be opened.
    """
    from fsspec.core import url_to_fs

    Location.of(path)
    return cast("tuple[AbstractFileSystem, str]", url_to_fs(path))


def open_file(path: str, mode: str = "rb") -> IO[bytes]:
    """Open the file at ``path``.

    Raises:
        UnusablePathError: It is not a path that may be opened.
        FileNotFoundError: It does not exist.
        OSError: It is a pipe or another special file, of which a read may never end, or a folder.
    """
    fs, name = file_system_at(path)
    if mode == "rb" and "file" in fs.protocol and not stat.S_ISREG(os.stat(name).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", name)
    return cast("IO[bytes]", fs.open(name, mode))


def rename_file(fs: AbstractFileSystem, name: str, to_name: str) -> None:
    """Rename a file of a store, replacing the target. In a bucket this is a copy, which appears whole.

    fsspec's own ``mv`` treats names with brackets, asterisks or question marks as patterns. It fails if the response to
    its removal of the file is lost.
    """
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(fs, LocalFileSystem):
        os.replace(name, to_name)
    else:
        fs.cp_file(name, to_name)
        remove_file(fs, name)


def remove_file(fs: AbstractFileSystem, name: str) -> None:
    """Remove a file of a store; a missing one is no error, since the response to a removal may be lost."""
    with suppress(FileNotFoundError):
        fs.rm_file(name)
