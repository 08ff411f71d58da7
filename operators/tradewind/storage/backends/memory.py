"""Conditional writes to ``memory://``, for tests: one lock for the whole process, which is also all that sees it."""

from __future__ import annotations

import datetime
import hashlib
import os
import threading

from fsspec.implementations.memory import MemoryFileSystem

from tradewind.storage.backends import Stored
from tradewind.storage.bounded import SMALL, content_of

_lock = threading.Lock()
# A child must not inherit the lock as some other thread of its parent held it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class MemoryStore:
    """The process's own memory."""

    def read(self, path: str) -> Stored | None:
        with _lock:
            return _read(path)

    def write(self, path: str, text: str, expected: str | None) -> Stored | None:
        with _lock:
            there = _read(path)
            if (there.tag if there else None) != expected:
                return None
            MemoryFileSystem().pipe_file(path, text.encode())
            return _read(path)

    def remove(self, path: str, expected: str) -> None:
        with _lock:
            there = _read(path)
            if there is not None and there.tag == expected:
                MemoryFileSystem().rm_file(path)


def _read(path: str) -> Stored | None:
    file = MemoryFileSystem.store.get(MemoryFileSystem._strip_protocol(path))
    if file is None:
        return None
    data = file.getvalue()
    age = datetime.datetime.now(tz=datetime.UTC) - file.modified
    content = content_of(data, SMALL)
    return Stored(content.text, hashlib.sha256(data).hexdigest(), max(0.0, age.total_seconds()), content.flaw)
