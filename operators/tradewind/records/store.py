"""Small objects on any fsspec store, each read and written whole: a reader sees the old object or the new one.

Local files are written aside, flushed and renamed; object stores do the same with one put. Paths are given as users
write them, with or without a scheme.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem


def read_text(path: str) -> str | None:
    """The object's text, or None when there is none."""
    fs, name = url_to_fs(path)
    try:
        return bytes(fs.cat_file(name)).decode()
    except FileNotFoundError:
        return None


def read_many(paths: Sequence[str]) -> dict[str, str]:
    """The texts of those of ``paths`` that exist, read together where the store can."""
    texts: dict[str, str] = {}
    for fs, names in _by_store(paths):
        found = fs.cat(list(names), on_error="return") if len(names) > 1 else _cat_one(fs, *names)
        for name, data in found.items():
            if isinstance(data, (FileNotFoundError, NotADirectoryError)):
                continue
            if isinstance(data, BaseException):
                raise data
            texts[names[name]] = bytes(data).decode()
    return texts


def write_text(path: str, text: str) -> None:
    """Put ``text`` at ``path``, whatever was there."""
    fs, name = url_to_fs(path)
    if isinstance(fs, LocalFileSystem):
        aside = write_aside(Path(name), text)
        os.replace(aside, name)
    else:
        fs.pipe_file(name, text.encode())


def create_text(path: str, text: str) -> bool:
    """Put ``text`` at ``path`` only if nothing is there; whether it was put. One writer of many wins."""
    fs, name = url_to_fs(path)
    try:
        if isinstance(fs, LocalFileSystem):
            aside = write_aside(Path(name), text)
            try:
                os.link(aside, name)
            finally:
                aside.unlink()
        else:
            fs.pipe_file(name, text.encode(), mode="create")
    except FileExistsError:
        return False
    return True


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object at ``path``, or None when there is none."""
    text = read_text(path)
    return None if text is None else dict(json.loads(text))


def list_names(folder: str) -> list[str]:
    """The names directly below ``folder``; none when it does not exist."""
    fs, name = url_to_fs(folder)
    fs.invalidate_cache(name)
    try:
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in fs.ls(name, detail=False))
    except FileNotFoundError:
        return []


def write_aside(path: Path, text: str) -> Path:
    """Put ``text``, safe from a crash, into a new hidden file beside ``path``, to be renamed to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with aside.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return aside


def _by_store(paths: Sequence[str]) -> list[tuple[fsspec.AbstractFileSystem, dict[str, str]]]:
    """The paths grouped by store, as name in the store → path as given."""
    groups: dict[int, tuple[fsspec.AbstractFileSystem, dict[str, str]]] = {}
    for path in paths:
        fs, name = url_to_fs(path)
        groups.setdefault(id(fs), (fs, {}))[1][name] = path
    return list(groups.values())


def _cat_one(fs: fsspec.AbstractFileSystem, name: str) -> Mapping[str, bytes | Exception]:
    try:
        return {name: fs.cat_file(name)}
    except FileNotFoundError as error:
        return {name: error}
