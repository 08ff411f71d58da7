"""What earlier attempts left at an output is removed before the next one starts, but for what the step resumes from.

Only files of the output itself go: never a record, never the output of another step that lies below, and nothing at all
where the folder is not the output of a step.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from fsspec.asyn import sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.records.attempts import ATTEMPTS_FOLDER
from tradewind.records.info_files import EXPERIMENTS_FOLDER, is_experiment_file
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT, output_files
from tradewind.steps import truncated_repr
from tradewind.steps.resumable import RECURSIVE_WILDCARD, matches_glob
from tradewind.storage import Location, file_system_at
from tradewind.storage.errors import RecordsError, StoreUnavailableError
from tradewind.storage.files import list_names
from tradewind.storage.trees import StoredFile, errors_with_path, local_tag

# Removing files that were listed: each goes only if it is still the one that was listed, as far as the store can say.
#
# A process that was frozen on its way here thaws when somebody else may have written files of the same names. So the
# turn is checked before each batch, and each removal names what it means: on Google Cloud Storage the object's
# generation, on S3 its ETag, on a local disk the file's inode and time. What is left open is told in the docs: S3
# cannot tell an equal object from the one that was listed, and a local disk looks and removes in two calls.

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
        with errors_with_path(folder):
            _remove(fs, Location.of(folder).scheme, batch)


def _remove(fs: Any, scheme: str, tags: Mapping[str, str | None]) -> None:
    match scheme:
        case "file":
            for path, tag in tags.items():
                with suppress(FileNotFoundError):
                    if tag in (None, local_tag(os.lstat(path))):
                        os.unlink(path)
        case "gs":
            from tradewind.storage import gcs

            sync(fs.loop, gcs.remove_if, fs, tags)
        case "s3":
            from tradewind.storage import s3

            sync(fs.loop, s3.remove_if, fs, tags)
        case _:
            for path in tags:
                with suppress(FileNotFoundError):
                    fs.rm_file(path)
    fs.invalidate_cache()


_ROUNDS: Final = 3
"""Of listing and removing. A file that changed between the two stays at first, and the last round finds nothing."""


class UnsafeRemovalError(RecordsError):
    """What was to be removed could hold more than an output of one step, or than was meant. Nothing was removed."""


def remove_leftovers(
    output_path: str, keep: Sequence[str], check_turn: Callable[[], None], found: Collection[str] = ()
) -> list[str]:
    """Remove the files of earlier attempts and return their paths, relative to ``output_path``.

    Args:
        check_turn: Raises when the turn is over: what lies there from then on is somebody else's. It is asked after
            each listing and before each batch of removals.
        keep: Patterns of what stays, relative to ``output_path``: ``*`` and ``?`` within a name, ``**`` for any number
            of folders. A pattern that fits a folder keeps all that is below it.
        found: What was there before the first attempt, relative to ``output_path``: it stays.

    Raises:
        UnsafeRemovalError: ``output_path`` is not the output of a step, or a pattern is none.
        StoreUnavailableError: The store left files where they were.
    """
    for pattern in keep:
        _check_pattern(pattern)
    _check_is_output(output_path)
    removed: set[str] = set()
    found = frozenset(found)
    for _ in range(_ROUNDS):
        left = [file for file in output_files(output_path) if not _stays(file.path, keep) and file.path not in found]
        if not left:
            break
        remove_listed(output_path, left, check_turn)
        removed.update(file.path for file in left)
    else:
        raise StoreUnavailableError(
            f"Files at {output_path} do not go, or come back, such as {left[0].path}: nobody else may write there. Ask "
            "again."
        )
    _remove_empty_folders(output_path, check_turn)
    return sorted(removed)


def _stays(path: str, keep: Sequence[str]) -> bool:
    """Whether a next attempt goes on from this file."""
    return any(matches_glob(glob, path) for glob in keep)


def _check_pattern(pattern: str) -> None:
    path = posixpath.normpath(pattern)
    if path.startswith(("/", "..")):
        raise UnsafeRemovalError(
            f"The pattern {truncated_repr(pattern)} of what to keep is outside of the output: write it relative to the "
            "output, like 'checkpoints/**'."
        )
    if any(RECURSIVE_WILDCARD in name and name != RECURSIVE_WILDCARD for name in path.split("/")):
        raise UnsafeRemovalError(f"In the pattern {truncated_repr(pattern)} of what to keep '**' must stand alone.")


def _check_is_output(output_path: str) -> None:
    fs, name = file_system_at(output_path)
    parts = [part for part in name.split("/") if part]
    has_no_buckets = isinstance(fs, (LocalFileSystem, MemoryFileSystem))
    if len(parts) < (1 if has_no_buckets else 2):
        raise UnsafeRemovalError(f"{output_path!r} is the root of a store, not the output of a step.")
    if not RECORDS_OF_AN_OUTPUT & {*list_names(output_path)}:
        raise UnsafeRemovalError(f"{output_path} holds no record of a step: it is not the output of one.")
    if any(map(is_experiment_file, list_names(posixpath.join(output_path, EXPERIMENTS_FOLDER)))):
        raise UnsafeRemovalError(
            f"{output_path} is a prefix, which holds the outputs of many steps: give the step an output of its own."
        )


def _remove_empty_folders(output_path: str, check_turn: Callable[[], None]) -> None:
    """On a local disk, leave no folder that only leftovers had filled."""
    fs, name = file_system_at(output_path)
    if not isinstance(fs, LocalFileSystem):
        return
    for folder in reversed([*_own_folders(name)]):
        check_turn()
        try:
            os.rmdir(folder)
        except OSError:
            continue  # it is not empty


def _own_folders(output: str) -> Iterator[str]:
    """The folders below ``output`` that are neither records nor within the output of another step, top down."""
    for folder, folders, files in os.walk(output):
        if folder != output and RECORDS_OF_AN_OUTPUT & {*files}:
            folders.clear()
            continue
        if folder == output:
            folders[:] = [name for name in folders if name != ATTEMPTS_FOLDER]
        else:
            yield folder
