"""Small objects on any fsspec store, read and written whole: readers see the old or the new object.

Local files are written to a temporary path, flushed and renamed; object stores do the same with one put. Paths are
given as users write them, with or without a scheme.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import fsspec
from fsspec.asyn import sync
from fsspec.implementations.local import LocalFileSystem

from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.bounded_read import LARGE, Content, content_of, read_file
from tradewind.storage.client import call_method, file_system_of, translated_client_errors
from tradewind.storage.confinement import leads_outside
from tradewind.storage.errors import BadRecordError

_MISSING = (FileNotFoundError, NotADirectoryError)
_LIST_REQUESTS = 3
"""Request timeouts that a listing may take: a large folder needs a request for each 1,000 names."""


def read_text(path: str, max_bytes: int = LARGE) -> str | None:
    """Return the object's text, or None if it does not exist.

    Raises:
        BadRecordError: It is not text, or too large.
    """
    return read_many([path], max_bytes).get(path)


def read_many(paths: Sequence[str], max_bytes: int = LARGE) -> dict[str, str]:
    """Return the texts of those ``paths`` that exist, in one request where the store can.

    Raises:
        BadRecordError: One of them is not text, or too large.
    """
    contents = read_contents(paths, max_bytes)
    for path, content in contents.items():
        if content.flaw is not None:
            raise BadRecordError(path, content.flaw)
    return {path: content.text for path, content in contents.items()}


def read_contents(paths: Sequence[str], max_bytes: int = LARGE) -> dict[str, Content]:
    """Return the content of those ``paths`` that exist; one that is not text does not affect the others."""
    contents: dict[str, Content] = {}
    for fs, names in _by_store(paths):
        with translated_client_errors(_some_of(names)):
            contents |= {names[name]: content for name, content in _contents(fs, list(names), max_bytes).items()}
    return contents


def existing_many(paths: Collection[str]) -> set[str]:
    """Return those ``paths`` that are objects, in one request where the store can. Folders do not count."""
    found: set[str] = set()
    for fs, names in _by_store(paths):
        with translated_client_errors(_some_of(names)):
            found |= {names[name] for name in _existing(fs, list(names))}
    return found


def is_anything_at(paths: Collection[str]) -> bool:
    """Whether anything exists at one of ``paths``, including links, folders and pipes."""
    for fs, names in _by_store(paths):
        with translated_client_errors(_some_of(names)):
            if any(map(os.path.lexists, names)) if isinstance(fs, LocalFileSystem) else any(_existing(fs, list(names))):
                return True
    return False


def existing_below(names: Mapping[str, str]) -> set[str]:
    """Return those folders, of folder → name of a file below it, that contain their file or a link.

    The names go directly to the folders' file systems: a URL parser would interpret ``::`` in them.
    """
    found: set[str] = set()
    for fs, folders in _by_store(names, names):
        with translated_client_errors(_some_of(folders)):
            is_local = isinstance(fs, LocalFileSystem)
            existing = filter(_is_file_or_link, folders) if is_local else _existing(fs, list(folders))
            found |= {folders[name] for name in existing}
    return found


def write_text(path: str, text: str) -> None:
    """Write ``text`` to ``path`` and replace what exists there."""
    with translated_client_errors(path):
        fs, name = file_system_of(path)
        if isinstance(fs, LocalFileSystem):
            _replace_file(Path(name), text)
        else:
            fs.pipe_file(name, text.encode())


def create_text(path: str, text: str) -> bool:
    """Write ``text`` to ``path`` if nothing exists there; return whether it was written. One writer wins."""
    with translated_client_errors(path):
        fs, name = file_system_of(path)
        try:
            if isinstance(fs, LocalFileSystem):
                _create_file(Path(name), text)
            else:
                fs.pipe_file(name, text.encode(), mode="create")
        except FileExistsError:
            return False
        return True


def list_names(folder: str) -> list[str]:
    """List the names directly below ``folder``; empty if it does not exist, or leads outside (``confinement``)."""
    fs, name = file_system_of(folder)
    if isinstance(fs, LocalFileSystem):
        with translated_client_errors(folder):
            return sorted(_names_in(name))
    fs.invalidate_cache(name)
    try:
        entries = call_method(folder, "ls", name, detail=False, requests=_LIST_REQUESTS)
    except FileNotFoundError:
        return []
    return sorted(entry.rstrip("/").rpartition("/")[2] for entry in entries)


def write_aside(path: Path, text: str) -> Path:
    """Write ``text``, crash-safe, to a new hidden file beside ``path``, to be renamed to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with aside.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # a full disk, for example: leave no partial file
        aside.unlink(missing_ok=True)
        raise
    return aside


def _names_in(name: str) -> list[str]:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except _MISSING:
        return []
    try:
        return [] if leads_outside(name, opened) else os.listdir(opened)
    finally:
        os.close(opened)


def _replace_file(path: Path, text: str) -> None:
    try:
        os.replace(write_aside(path, text), path)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreRefusedError(f"{path} cannot be written, because a parent of it is not a folder: {error}") from error


def _create_file(path: Path, text: str) -> None:
    aside = write_aside(path, text)
    try:
        os.link(aside, path)
    finally:
        aside.unlink()


def _by_store(
    paths: Collection[str], below: Mapping[str, str] | None = None
) -> Iterable[tuple[fsspec.AbstractFileSystem, dict[str, str]]]:
    """Group the paths by store, as name in the store, of the file ``below`` the path if given → path."""
    groups: dict[int, tuple[fsspec.AbstractFileSystem, dict[str, str]]] = {}
    for path in paths:
        fs, name = file_system_of(path)
        key = name if below is None else f"{name.rstrip('/')}/{below[path]}"
        groups.setdefault(id(fs), (fs, {}))[1][key] = path
    return groups.values()


def _some_of(names: Mapping[str, str]) -> str:
    first = next(iter(names.values()))
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def _contents(fs: fsspec.AbstractFileSystem, names: list[str], max_bytes: int) -> dict[str, Content]:
    if isinstance(fs, LocalFileSystem):
        return _file_contents(names, max_bytes)
    if "gs" in _protocols(fs):
        from tradewind.storage.gcs import contents_of
    elif "s3" in _protocols(fs):
        from tradewind.storage.s3 import contents_of
    else:
        return _cat(fs, names, max_bytes)
    found: dict[str, bytes] = sync(fs.loop, contents_of, fs, names, max_bytes)
    return {name: content_of(data, max_bytes) for name, data in found.items()}


def _cat(fs: fsspec.AbstractFileSystem, names: list[str], max_bytes: int) -> dict[str, Content]:
    found = fs.cat_ranges(names, 0, max_bytes + 1, on_error="return")
    contents: dict[str, Content] = {}
    for name, data in zip(names, found, strict=True):
        if isinstance(data, BaseException):
            if not isinstance(data, _MISSING):
                raise data
        else:
            contents[name] = content_of(bytes(data), max_bytes)
    return contents


def _file_contents(names: Sequence[str], max_bytes: int) -> dict[str, Content]:
    contents: dict[str, Content] = {}
    for name in names:
        with suppress(*_MISSING):
            data, _ = read_file(name, max_bytes)
            contents[name] = data if isinstance(data, Content) else content_of(data, max_bytes)
    return contents


def _existing(fs: fsspec.AbstractFileSystem, names: list[str]) -> Iterable[str]:
    if isinstance(fs, LocalFileSystem):
        return (name for name in names if os.path.isfile(name) and not leads_outside(name))
    if "gs" in _protocols(fs):
        from tradewind.storage.gcs import existing_of
    elif "s3" in _protocols(fs):
        from tradewind.storage.s3 import existing_of
    else:
        return filter(fs.isfile, names)
    found: set[str] = sync(fs.loop, existing_of, fs, names)
    return found


def _is_file_or_link(name: str) -> bool:
    try:
        mode = os.lstat(name).st_mode
    except _MISSING:
        return False
    return (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and not leads_outside(os.path.dirname(name))


def _protocols(fs: fsspec.AbstractFileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
