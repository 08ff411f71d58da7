"""Boot-time clock and free ports of this machine, atomic replacement of its files, a bound for a process's memory."""

from __future__ import annotations

import os
import resource
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def boot_time() -> float:
    """Return the seconds since the machine was started, including those of suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def limited_memory(max_bytes: int) -> Iterator[None]:
    """Bound the further memory of this process in the block, which runs code of others.

    Raises:
        MemoryError: The block takes more, with the bound as its text.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError):  # only Linux has this file
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        lower = pages * resource.getpagesize() + max_bytes
        if before[0] == resource.RLIM_INFINITY or lower < before[0]:
            resource.setrlimit(resource.RLIMIT_AS, (lower, before[1]))
    try:
        yield
    except MemoryError as error:
        error.args = (f"it takes more than {max_bytes >> 20} MB of memory",)
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


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
