"""Open files below the allowed roots, with a deadline: every reader of this package goes through ``Access``."""

from __future__ import annotations

import datetime
import errno
import io
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

from tradewind.browsing.limits import TIMEOUT_S
from tradewind.browsing.memory import loading
from tradewind.browsing.refusals import (
    BrowsingError,
    ChangedError,
    MissingError,
    OutsideError,
    StoreSilentError,
    UnreadableError,
    WrongKindError,
)
from tradewind.datasets.files import is_remote, store_fingerprint
from tradewind.storage import Location, Roots, StorageError
from tradewind.storage.client import file_system_of, translated_client_errors
from tradewind.storage.confinement import is_outside
from tradewind.storage.errors import StoreError
from tradewind.text import single_line

_SILENT: Final = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN})
"""What a shared disk says when its server does not answer."""
_REMOTE_BLOCK_BYTES: Final = 1 << 20
"""Bytes of one range request."""


class OutOfTimeError(Exception):
    """The deadline has passed before the reader came to its first row.

    Attributes:
        reached: The fraction of the file that it has come to.
        place: Where the next request continues; None if at the place that it asks for.
    """

    def __init__(self, reached: float, place: str | None = None) -> None:
        super().__init__(f"reached {reached:.0%}")
        self.reached = reached
        self.place = place


@dataclass(frozen=True)
class Stored:
    """A path as its store describes it.

    Attributes:
        state: Changes with the content, as far as the store tells.
        identity: Of a local file, which may grow; empty in buckets, whose objects are replaced.
    """

    path: str
    is_folder: bool
    size: int
    modified: str | None
    state: str
    identity: str = ""


@dataclass
class Access:
    """What a request may open, and until when.

    Attributes:
        roots: None for a user of the command line, who may read everything that the process may.
        deadline: By ``time.monotonic``.
    """

    roots: Roots | None
    deadline: float = field(default_factory=lambda: time.monotonic() + TIMEOUT_S)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, negative after it."""
        return self.deadline - time.monotonic()

    def check(self, path: str) -> None:
        """Refuse a path below no root; links of local disks are followed.

        Raises:
            OutsideError: It is elsewhere, or no path at all.
        """
        try:
            if self.roots is None:
                Location.of(path)
            else:
                self.roots.check(path, "")
        except StorageError as error:
            raise OutsideError(str(error)) from None

    def stat(self, path: str) -> Stored:
        """Describe what is at ``path``.

        Raises:
            MissingError: Nothing is.
            WrongKindError: It is a pipe, a socket or a device.
        """
        self.check(path)
        with told(path):
            fs, name = store_of(path)
            if _is_local(fs):
                return _local(path, os.stat(name))
            fs.invalidate_cache()
            info = fs.info(name)
        is_folder = info["type"] == "directory"
        return Stored(path, is_folder, int(info.get("size") or 0), moment_of(info), store_fingerprint(info))

    def open(self, path: str) -> IO[bytes]:
        """Open a regular file for reading."""
        self.check(path)
        with told(path):
            fs, name = store_of(path)
            if not _is_local(fs):
                opened = fs.open(name, "rb", block_size=_REMOTE_BLOCK_BYTES)
                return cast("IO[bytes]", io.BufferedReader(opened, _REMOTE_BLOCK_BYTES))
        return open(self.open_descriptor(path), "rb", buffering=1 << 16)

    def open_descriptor(self, path: str) -> int:
        """Open a regular file of a disk and return its descriptor, which the caller closes; a pipe is not waited for.

        The check of the roots is repeated on what was opened, since a link may have changed in between.
        """
        self.check(path)
        with told(path):
            name = store_of(path)[1]
            number = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            found = os.fstat(number)
            if stat.S_ISDIR(found.st_mode):
                raise WrongKindError(f"{path} is a folder.")
            _local(path, found)
            if self.roots is not None and is_outside(self.roots, name, number):
                raise ChangedError(f"{path} changed while it was opened. Reload the page.")
        except BaseException:
            os.close(number)
            raise
        return number

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """Open a folder of a disk, likewise, until the end of the context."""
        self.check(path)
        with told(path):
            name = store_of(path)[1]
            number = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self.roots is not None and is_outside(self.roots, name, number):
                raise ChangedError(f"{path} changed while it was opened. Reload the page.")
            yield number
        finally:
            os.close(number)


def store_of(path: str) -> tuple[Any, str]:
    """Return the file system of a path and its name there; the first call loads the store's client."""
    with loading():
        return file_system_of(path)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Translate what a store raises to sentences about ``path``."""
    try:
        with translated_client_errors(path):
            yield
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"Nothing is at {path}: it was removed, or the address is wrong.") from None
    except IsADirectoryError:
        raise WrongKindError(f"{path} is a folder.") from None
    except StoreError as error:
        raise _of_store(path, error) from None
    except StorageError as error:
        raise UnreadableError(str(error)) from None


def _of_store(path: str, error: StoreError) -> BrowsingError:
    cause = error.__cause__
    if is_remote(path) or not isinstance(cause, OSError) or cause.errno in _SILENT:
        return StoreSilentError(f"{single_line(error)}. Try again in a moment.")
    if isinstance(cause, PermissionError):
        return OutsideError(f"The API server may not read {path}: its user has no permission.")
    return UnreadableError(f"{path} cannot be read: {cause.strerror or cause}.")


def moment_of(info: Mapping[str, Any]) -> str | None:
    """Return the time of the last change in an entry of fsspec, as ISO 8601 in UTC."""
    for key in ("mtime", "LastModified", "updated", "last_modified", "modified", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return iso(value)
        if isinstance(value, datetime.datetime):
            return value.astimezone(datetime.UTC).isoformat(timespec="seconds")
        if isinstance(value, str):
            return value
    return None


def iso(timestamp: float) -> str | None:
    """Return a time as ISO 8601 in UTC; None for one that no calendar has."""
    try:
        return datetime.datetime.fromtimestamp(timestamp, datetime.UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None


def _is_local(fs: Any) -> bool:
    return "file" in (fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,))


def _local(path: str, found: os.stat_result) -> Stored:
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        raise WrongKindError(f"{path} is no regular file: a pipe, a socket or a device, which pages do not open.")
    state = f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
    return Stored(path, is_folder, found.st_size, iso(found.st_mtime), state, str(found.st_ino))
