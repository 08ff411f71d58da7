"""From a path to its file system: the only place where fsspec is told a path that somebody gave."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, cast

from tradewind.storage.locations import Location

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
