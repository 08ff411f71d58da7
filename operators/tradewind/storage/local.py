"""Conditional writes to local and shared file systems: compare-and-replace under the object's guard.

The guard is a POSIX record lock, which NFS passes to its server, on a file beside the object. Such a lock belongs to a
process, so its threads first acquire a lock of their own. The kernel releases it when its process ends in any way.
Objects are written to a temporary path and renamed; readers need no lock.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.storage import backends as stores
from tradewind.storage.backends import StoredObject
from tradewind.storage.bounded_read import SMALL, Content, content_of, read_file
from tradewind.storage.client import translated_client_errors
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.files import write_aside

GUARD_SUFFIX = ".guard"
_POLL_S = 0.002
_MAX_AHEAD_S = 2.0
"""A file this far in the future was written before the clock was set back: its age counts from now."""
_NO_FILE = ""
"""The tag of a link, a folder, a pipe or a file that is too large."""


class LocalStore:
    """Files of this machine, or of a server that it has mounted."""

    def read(self, path: str) -> StoredObject | None:
        with translated_client_errors(path):
            return _read(_file_of(path))

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        file = _file_of(path)
        with translated_client_errors(path):
            if not _is_as_expected(file, expected):
                return None
            aside = write_aside(file, text)
            try:
                return _replace(file, aside, text, expected)
            finally:
                aside.unlink(missing_ok=True)

    def remove(self, path: str, expected: str) -> None:
        file = _file_of(path)
        with translated_client_errors(path), _guarded(file):
            if _is_as_expected(file, expected):
                file.unlink()


def _replace(file: Path, aside: Path, text: str, expected: str | None) -> StoredObject | None:
    with _guarded(file):
        if not _is_as_expected(file, expected):
            return None
        os.utime(aside)  # the guard may have delayed it, and its age counts from now
        os.replace(aside, file)
    return StoredObject(text, _digest(text.encode()), 0.0)


def _file_of(path: str) -> Path:
    """Return the file behind every spelling of its path: an object must have only one guard."""
    file = Path(LocalFileSystem._strip_protocol(path))
    return Path(os.path.realpath(file.parent), file.name)


def _read(file: Path) -> StoredObject | None:
    try:
        data, written = read_file(str(file), SMALL)
    except (FileNotFoundError, NotADirectoryError):
        return None
    age_s = _clock(file.parent, otherwise=written) - written
    if age_s < -_MAX_AHEAD_S:
        with suppress(OSError):  # else its age stays 0 until the clock catches up, which would prevent a takeover
            os.utime(file, follow_symlinks=False)
    age_s = max(0.0, age_s)
    content = data if isinstance(data, Content) else content_of(data, SMALL)
    return StoredObject(content.text, _tag_of(data), age_s, content.flaw)


def _tag(file: Path) -> str | None:
    try:
        return _tag_of(read_file(str(file), SMALL)[0])
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_as_expected(file: Path, expected: str | None) -> bool:
    """Whether ``file`` has this tag. A file without a valid tag never matches."""
    tag = _tag(file)
    return tag == expected and tag != _NO_FILE


def _tag_of(data: bytes | Content) -> str:
    return _NO_FILE if isinstance(data, Content) else _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _clock(folder: Path, otherwise: float) -> float:
    """Return the file system's own time; ``otherwise`` where it is read-only, so no takeover is possible."""
    try:
        with tempfile.TemporaryFile(dir=folder) as touched:
            os.utime(touched.fileno())
            return os.fstat(touched.fileno()).st_mtime
    except PermissionError:
        return otherwise
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return otherwise


@contextmanager
def _guarded(file: Path) -> Iterator[None]:
    """Hold the guard of ``file``, against threads and processes on every machine."""
    deadline = time.monotonic() + stores.REQUEST_TIMEOUT_S
    with _held(_thread_locks[hash(file) % len(_thread_locks)], file, deadline):
        guard = os.open(
            f"{file}{GUARD_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
        )
        try:
            _lock_file(guard, file, deadline)
            yield
        finally:
            os.close(guard)  # this also unlocks it


@contextmanager
def _held(lock: threading.Lock, file: Path, deadline: float) -> Iterator[None]:
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise _still_guarded(file)
    try:
        yield
    finally:
        lock.release()


def _lock_file(guard: int, file: Path, deadline: float) -> None:
    while True:
        with suppress(BlockingIOError, PermissionError):
            fcntl.lockf(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise _still_guarded(file)
        time.sleep(_POLL_S)


def _still_guarded(file: Path) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{file}: another process has held {file.name}{GUARD_SUFFIX} for {stores.REQUEST_TIMEOUT_S:.0f} s; is it "
        "frozen?"
    )


def _new_locks() -> None:
    global _thread_locks
    _thread_locks = [threading.Lock() for _ in range(64)]


_thread_locks: list[threading.Lock] = []
_new_locks()
os.register_at_fork(after_in_child=_new_locks)  # threads that the child lacks may hold the parent's

# Conditional writes to ``memory://``, for tests: one lock per process, the only process that sees it.

_lock = threading.Lock()
# A child must not inherit a lock that another thread of its parent held.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class MemoryStore:
    """The process's own memory."""

    def read(self, path: str) -> StoredObject | None:
        with _lock:
            return _read_memory(path)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        with _lock:
            existing = _read_memory(path)
            if (existing.tag if existing else None) != expected:
                return None
            MemoryFileSystem().pipe_file(path, text.encode())
            return _read_memory(path)

    def remove(self, path: str, expected: str) -> None:
        with _lock:
            existing = _read_memory(path)
            if existing is not None and existing.tag == expected:
                MemoryFileSystem().rm_file(path)


def _read_memory(path: str) -> StoredObject | None:
    file = MemoryFileSystem.store.get(MemoryFileSystem._strip_protocol(path))
    if file is None:
        return None
    data = file.getvalue()
    age = datetime.datetime.now(tz=datetime.UTC) - file.modified
    content = content_of(data, SMALL)
    return StoredObject(content.text, hashlib.sha256(data).hexdigest(), max(0.0, age.total_seconds()), content.flaw)
