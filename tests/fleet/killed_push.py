"""Push into a folder repeatedly, each time killed one action later, and print the resulting files.

Run as ``python -m`` with the folder, and ``old`` for a machine whose kernel cannot exchange two folders.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tradewind.fleet import push_env_on_host

NAMES = ("A", "B", "C")
_FIRST = ("os.", "shutil.", "ctypes.call_function")


def write(folder: Path, value: str) -> None:
    folder.mkdir(mode=0o700, parents=True)
    for name in NAMES:
        (folder / name).write_text(value)
        (folder / name).chmod(0o600)


def read(folder: Path) -> list[str] | None:
    return [(folder / name).read_text() for name in NAMES] if folder.exists() else None


def push_killed_at(number: int, folder: Path) -> bool:
    """Push once and return whether the kill came before the end."""
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    aside.rmdir()
    write(aside, "new")
    if (child := os.fork()) == 0:
        seen = 0

        def kill_at(event: str, args: Any) -> None:
            nonlocal seen
            if event.startswith(_FIRST):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at)
        order = {"is_dry": False, "secrets": dict.fromkeys(NAMES)}
        push_env_on_host._compared(order, str(folder), str(aside), [])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0


class OldLibrary:
    """A C library without ``renameat2``."""

    def __init__(self, name: object, use_errno: bool) -> None:
        pass


if __name__ == "__main__":
    if "old" in sys.argv:
        ctypes.CDLL = OldLibrary  # type: ignore[misc, assignment]
    number, is_killed = 0, True
    while is_killed:
        folder = Path(sys.argv[1]) / str(number := number + 1) / "environment"
        write(folder, "old")
        is_killed = push_killed_at(number, folder)
        print(json.dumps([read(folder), is_killed]))
