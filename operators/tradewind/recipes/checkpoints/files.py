"""Is a checkpoint as it was written? A list of its files says so, and no file of an object store is read for it.

A checkpoint is complete when ``metadata.json`` is in its folder, which Levanter writes last. Right before it we add
``files.json``: path, size and checksum of every file. On Cloud Storage the checksum is the store's own (CRC32C, part of
the listing); a local file's is computed. What a store may change or lose later shows as damage. A checkpoint without a
list, such as one of Levanter's own runs, counts as sound when its data is there at all.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tradewind.datasets.files import atomic_writer, exists, is_remote, join, read_json, write_json
from tradewind.storage import file_system_at, open_file

FILE_LIST = "files.json"
METADATA = "metadata.json"
_OWN = (FILE_LIST, METADATA)
_MANIFEST = "manifest.ocdbt"


def write_file_list(checkpoint: str) -> None:
    """Write down the files of the checkpoint in that folder, all of which are there."""
    write_json(join(checkpoint, FILE_LIST), _files(checkpoint))


def damage(checkpoint: str) -> str | None:
    """What is wrong with the files of that complete checkpoint, as part of a sentence; None if they are sound.

    Raises ``OSError`` if the store does not answer: that says nothing about the checkpoint.
    """
    path = join(checkpoint, FILE_LIST)
    if not exists(path):
        data = any(exists(join(checkpoint, name)) for name in (_MANIFEST, "model"))
        return None if data else "it has no data"
    try:
        listed = read_json(path)
    except (ValueError, RecursionError):
        return f"{FILE_LIST} is no JSON"
    if not isinstance(listed, dict) or not all(isinstance(each, dict) and "size" in each for each in listed.values()):
        return f"{FILE_LIST} is no list of files with their sizes"
    found = _files(checkpoint)
    return next((wrong for name in sorted(listed) if (wrong := _difference(name, listed[name], found.get(name)))), None)


def make_incomplete(checkpoint: str) -> None:
    """Take away what says that it is complete: a kill while the rest is removed then leaves nothing to trip over."""

    fs, path = file_system_at(join(checkpoint, METADATA))
    with suppress(FileNotFoundError):
        fs.rm_file(path)


def remove_checkpoint(checkpoint: str) -> None:
    """Remove the folder, also while Levanter's own thread removes it."""

    make_incomplete(checkpoint)
    fs, root = file_system_at(checkpoint)
    with suppress(FileNotFoundError):
        fs.rm(root, recursive=True)


def copy_files(checkpoint: str, target: str) -> None:
    """Copy the checkpoint to another folder, of any store, without what says that it is complete."""

    for name in [*_files(checkpoint), FILE_LIST]:
        if exists(join(checkpoint, name)):
            with open_file(join(checkpoint, name)) as source, atomic_writer(join(target, name)) as copy:
                shutil.copyfileobj(source, copy, 1 << 22)


def _files(checkpoint: str) -> dict[str, dict[str, Any]]:
    """Path below the checkpoint -> size and checksum, read past any listing that the client remembers."""

    fs, root = file_system_at(checkpoint)
    fs.invalidate_cache()
    found = fs.find(root, detail=True)
    start = len(root.rstrip("/")) + 1
    return {
        path[start:]: _describe(fs, path, info, is_remote(checkpoint))
        for path, info in found.items()
        if path[start:] not in _OWN
    }


def _describe(fs: Any, path: str, info: Mapping[str, Any], remote: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"size": info["size"]}
    if "crc32c" in info:
        described["crc32c"] = info["crc32c"]
    elif not remote:
        described["crc32"] = _crc32(fs, path)
    return described


def _crc32(fs: Any, path: str) -> int:
    checksum = 0
    with fs.open(path, "rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _difference(name: str, listed: Mapping[str, Any], found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return f"{name} is missing"
    if found["size"] != listed["size"]:
        return f"{name} has {found['size']} bytes instead of {listed['size']}"
    if any(listed[kind] != found[kind] for kind in listed.keys() & found.keys()):
        return f"{name} has other content than was written"
    return None
