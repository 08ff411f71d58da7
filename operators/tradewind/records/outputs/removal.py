"""Removing files that were listed: each goes only if it is still the one that was listed, as far as the store can say.

A process that was frozen on its way here thaws when somebody else may have written files of the same names. So the turn
is checked before each batch, and each removal names what it means: on Google Cloud Storage the object's generation, on
S3 its ETag, on a local disk the file's inode and time. What is left open is told in the docs: S3 cannot tell an equal
object from the one that was listed, and a local disk looks and removes in two calls.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from fsspec.asyn import sync

from tradewind.storage import Location, file_system_at
from tradewind.storage.trees import StoredFile, errors_named, local_tag

_AT_ONCE: Final = 100


def remove_listed(folder: str, files: Sequence[StoredFile], check_turn: Callable[[], None]) -> None:
    """Remove these files below ``folder``; those that are gone, or others by now, are fine.

    Args:
        files: As ``list_files`` gave them.
        check_turn: Raises when whoever removes may no longer do so.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: It does not let us.
    """
    fs, name = file_system_at(folder)
    for first in range(0, len(files), _AT_ONCE):
        batch = {posixpath.join(name, file.path): file.tag for file in files[first : first + _AT_ONCE]}
        check_turn()
        with errors_named(folder):
            _remove(fs, Location.of(folder).scheme, batch)


def _remove(fs: Any, scheme: str, tags: Mapping[str, str | None]) -> None:
    match scheme:
        case "file":
            for path, tag in tags.items():
                with suppress(FileNotFoundError):
                    if tag in (None, local_tag(os.lstat(path))):
                        os.unlink(path)
        case "gs":
            from tradewind.storage.backends import gcs

            sync(fs.loop, gcs.remove_if, fs, tags)
        case "s3":
            from tradewind.storage.backends import s3

            sync(fs.loop, s3.remove_if, fs, tags)
        case _:
            for path in tags:
                with suppress(FileNotFoundError):
                    fs.rm_file(path)
    fs.invalidate_cache()
