"""What may lie where a record should be: it is read whole only if it is a regular file, not too large, and text.

Anything else has a flaw, in words that follow "because", which whoever reads it tells with the file's name. A link is
no record, since what it leads to was written by somebody else for something else; a pipe is never waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import Final

SMALL: Final = 1 << 20
"""The most bytes of a lease, a status or a pin: ours have a few hundred."""
LARGE: Final = 64 << 20
"""The most bytes of anything else that is read whole."""


@dataclass(frozen=True)
class Content:
    """What lies at a path.

    Attributes:
        text: All of it; empty if it has a flaw.
        flaw: Why it is no text of a record, if it is none.
    """

    text: str
    flaw: str | None = None


def content_of(data: bytes, most: int) -> Content:
    """What these bytes are, of which one more than ``most`` was read if there are more."""
    if len(data) > most:
        return too_large(most)
    try:
        return Content(data.decode())
    except UnicodeDecodeError:
        return Content("", "it is no text (not UTF-8)")


def too_large(most: int) -> Content:
    """The flaw of what has more than ``most`` bytes."""
    return Content("", f"it has more than {most:,} bytes")


def read_file(name: str, most: int) -> tuple[bytes | Content, float]:
    """A local file's bytes, or its flaw, and when it was written.

    Raises:
        FileNotFoundError: Nothing is there.
        NotADirectoryError: What should be a folder above it is none.
    """
    itself = os.lstat(name)
    if (what := _kind(itself)) is not None:
        return Content("", f"it is {what}"), itself.st_mtime
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        return Content("", "it is no regular file"), itself.st_mtime  # it has just become something else
    with open(opened, "rb", buffering=0) as file:
        now = os.fstat(opened)
        if (what := _kind(now)) is not None:
            return Content("", f"it is {what}"), now.st_mtime
        if now.st_size > most:
            return too_large(most), now.st_mtime
        parts: list[bytes] = []
        left = most + 1
        while left > 0 and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), now.st_mtime


def _kind(itself: os.stat_result) -> str | None:
    """What it is, if it is no regular file."""
    mode = itself.st_mode
    if stat.S_ISREG(mode):
        return None
    return "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no regular file"
