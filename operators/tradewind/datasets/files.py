"""Single files on any fsspec store: a reader sees the old content or the new one, never a part.

A writer writes a file aside and then renames it. On an object store the rename is a server-side copy, whose target
appears whole; on a local disk it is ``rename(2)``.
"""

from __future__ import annotations

import json
import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final

from tradewind.storage import file_system_at, open_file
from tradewind.storage.filesystems import remove_file, rename_file

UNFINISHED: Final = re.compile(r"\.[0-9a-f]{8}\.part$")
"""Suffix of a file that an ``atomic_writer`` is writing."""
_STATES: Final = ("generation", "etag", "ETag", "md5Hash", "mtime", "LastModified", "last_modified")
"""Keys of store entries that identify the state of a file, the most reliable first."""


def join(folder: str, *names: str) -> str:
    """Return ``folder/name/...`` for a local path or a URL; ``folder`` may end in a slash."""
    return "/".join([folder.rstrip("/"), *names])


def parent(path: str) -> str:
    """Return the folder of ``path``; ``"."`` for a bare name."""
    return posixpath.dirname(path.rstrip("/")) or "."


def basename(path: str) -> str:
    """Return the last part of ``path``."""
    return posixpath.basename(path.rstrip("/"))


def hidden_parts(path: str) -> int:
    """Count the names in ``path`` that begin with a dot: a file with more than the glob that finds it is hidden."""
    return sum(part.startswith(".") and part.strip(".") != "" for part in path.split("/"))


def is_remote(path: str) -> bool:
    """Whether ``path`` is a URL of a store other than the local disk."""
    return "://" in path and not path.startswith(("file://", "local://"))


@contextmanager
def atomic_writer(path: str) -> Iterator[IO[bytes]]:
    """Open a binary file that becomes ``path`` if the block succeeds and vanishes if not. Makes folders."""
    fs, target = file_system_at(path)
    fs.makedirs(parent(target), exist_ok=True)
    aside = f"{target}.{uuid.uuid4().hex[:8]}.part"
    try:
        with fs.open(aside, "wb") as file:
            yield file
        rename_file(fs, aside, target)
    except BaseException as error:
        remove_file(fs, aside)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = target  # an error about a full disk lacks the path
        raise


def remove_unfinished(folder: str) -> None:
    """Remove leftovers of killed ``atomic_writer`` calls from ``folder``, to which no process may be writing."""
    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    for name in fs.ls(root, detail=False) if fs.exists(root) else []:
        if UNFINISHED.search(name):
            remove_file(fs, name)


def write_text(path: str, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_text(path: str) -> str:
    """Return the file's text; raises ``FileNotFoundError`` without the file."""
    with open_file(path) as file:
        content: bytes = file.read()
    return content.decode("utf-8")


def read_json(path: str) -> Any:
    """Return the file's JSON value; raises ``FileNotFoundError`` without the file."""
    return json.loads(read_text(path))


def store_fingerprint(entry: Mapping[str, Any]) -> str:
    """Return the store's state of a file, which usually changes with each write."""
    return next((f"{key}={entry[key]}" for key in _STATES if entry.get(key) is not None), "")


def state_of(path: str) -> tuple[int, str]:
    """Return the current size and state of a file; raises ``FileNotFoundError`` without the file."""
    fs, name = file_system_at(path)
    fs.invalidate_cache()
    entry = fs.info(name)
    return int(entry["size"]), store_fingerprint(entry)


def states_below(path: str) -> list[list[Any]]:
    """Return name, size and state of each file in a folder, or of a file; nothing if there is none."""
    fs, root = file_system_at(path)
    fs.invalidate_cache()
    found = fs.find(root, detail=True)
    return sorted(
        [name.removeprefix(root).lstrip("/"), entry["size"], store_fingerprint(entry)] for name, entry in found.items()
    )


def exists(path: str) -> bool:
    """Whether a file or folder exists at ``path``."""
    fs, target = file_system_at(path)
    return bool(fs.exists(target))
