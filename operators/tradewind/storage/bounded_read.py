"""Bounded reads: only a regular file of limited size that is text is read whole.

Anything else has a flaw, in words that follow "because", which the caller reports with the file's name. A link is not a
record, since another writer wrote its target for another purpose. A read never waits for a pipe.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import IO, Final

from tradewind.storage.confinement import OUTSIDE, leads_outside

SMALL: Final = 1 << 20
"""Size limit of a lease, a status or a pin in bytes; Tradewind's own have a few hundred."""
LARGE: Final = 64 << 20
"""Size limit of any other file that is read whole, in bytes."""


@dataclass(frozen=True)
class Content:
    """Content at a path.

    Attributes:
        text: The whole content; empty if it has a flaw.
        flaw: Why it cannot be a record, if so.
    """

    text: str
    flaw: str | None = None


def content_of(data: bytes, max_bytes: int) -> Content:
    """Classify bytes, of which ``max_bytes`` + 1 were read if there are more."""
    if len(data) > max_bytes:
        return too_large(max_bytes)
    try:
        return Content(data.decode())
    except UnicodeDecodeError:
        return Content("", "it is no text (not UTF-8)")


def too_large(max_bytes: int) -> Content:
    """Return the flaw of content with more than ``max_bytes`` bytes."""
    return Content("", f"it has more than {max_bytes:,} bytes")


def value_count(text: str) -> int:
    """Return how many values a JSON text has at most: each takes far more memory than its characters."""
    return sum(map(text.count, "[{,"))


def read_file(name: str, max_bytes: int) -> tuple[bytes | Content, float]:
    """Return a local file's bytes or its flaw, and its modification time.

    Raises:
        FileNotFoundError: Nothing exists there.
        NotADirectoryError: A parent is not a folder.
    """
    file, found = open_regular(name)
    if isinstance(file, Content):
        return file, found.st_mtime
    with file:
        if found.st_size > max_bytes:
            return too_large(max_bytes), found.st_mtime
        parts: list[bytes] = []
        left = max_bytes + 1
        while left > 0 and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), found.st_mtime


def open_regular(name: str) -> tuple[IO[bytes] | Content, os.stat_result]:
    """Open a local file, unbuffered, or return its flaw; and what it is.

    Raises:
        FileNotFoundError: Nothing exists there.
        NotADirectoryError: A parent is not a folder.
    """
    itself = os.lstat(name)
    if (what := _kind(itself)) is not None:
        return Content("", f"it is {what}"), itself
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        return Content("", "it is no regular file"), itself  # it changed its type meanwhile
    file = open(opened, "rb", buffering=0)  # noqa: SIM115 - the caller closes it
    now = os.fstat(opened)
    what = _kind(now)
    flaw = f"it is {what}" if what is not None else OUTSIDE if leads_outside(name, opened) else None
    if flaw is None:
        return file, now
    file.close()
    return Content("", flaw), now


def read_local(path: str | os.PathLike[str], max_bytes: int = LARGE) -> Content:
    """Return the text of a local file that a user named, or its flaw; a link is followed, a pipe is not waited for.

    Raises:
        OSError: The file does not exist or cannot be opened.
    """
    if (what := _kind(os.stat(path))) is not None:
        return Content("", f"it is {what}")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return content_of(file.read(max_bytes + 1), max_bytes)


def _kind(itself: os.stat_result) -> str | None:
    """Name the kind of file if it is not a regular one."""
    mode = itself.st_mode
    if stat.S_ISREG(mode):
        return None
    return "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no regular file"
