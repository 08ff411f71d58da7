"""Boot-time clock of this machine, and atomic replacement of its files."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path


def boot_time() -> float:
    """Return the seconds since the machine was started, including those of suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_private_file(path: str | Path, content: str | bytes) -> None:
    """Replace the file at ``path`` atomically, with mode 0600; its folder must exist.

    Readers see the old file or the new one, never a part, also after a crash of the machine. The new file is written
    beside the old one, under a random name that no other process uses. A failed write leaves nothing behind.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(path)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
