"""Removal of leftovers before the next attempt starts, and of listed files in general.

Leftovers are all files of the output itself, except pre-existing files and those that the step resumes from. Records
stay, and so do outputs of other steps below. Nothing is removed from a folder that is not the output of a step.

A listed file is removed only if it is still the same file, as far as the store can tell. A process that was frozen
before a removal can thaw after another process has written files of the same names. So the lease is checked before each
batch, and each removal names one version of a file: on Google Cloud Storage the object's generation, on S3 its ETag, on
a local disk the file's inode and time. Two gaps remain, as the docs say: S3 cannot distinguish an equal object from the
listed one, and a local disk checks and removes in two calls.
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
from tradewind.storage.client import translated_client_errors
from tradewind.storage.errors import RecordsError, StoreUnavailableError
from tradewind.storage.files import list_names
from tradewind.storage.trees import StoredFile, local_tag

_BATCH_SIZE: Final = 100
_ROUNDS: Final = 3
"""Rounds of listing and removing. A file that changes between the two stays, and the last round must list none."""


class UnsafeRemovalError(RecordsError):
    """A removal that could affect more than one output, or more than the step means. Nothing was removed."""


def remove_leftovers(
    output_path: str, keep: Sequence[str], check_lease: Callable[[], None], preexisting: Collection[str] = ()
) -> list[str]:
    """Remove the files of earlier attempts and return their paths, relative to ``output_path``.

    Args:
        check_lease: Raises if the lease is lost, since the files may then belong to another attempt. Called after each
            listing and before each batch of removals.
        keep: Patterns of files that stay, relative to ``output_path``: ``*`` and ``?`` within a name, ``**`` for any
            number of folders. A pattern that fits a folder keeps all files below it.
        preexisting: Files that existed before the first attempt, relative to ``output_path``; they stay.

    Raises:
        UnsafeRemovalError: ``output_path`` is not the output of a step, or a pattern is invalid.
        StoreUnavailableError: The store did not remove the files.
    """
    for pattern in keep:
        _check_pattern(pattern)
    _check_is_output(output_path)
    removed: set[str] = set()
    preexisting = frozenset(preexisting)
    for _ in range(_ROUNDS):
        left = [
            file
            for file in output_files(output_path)
            if not any(matches_glob(glob, file.path) for glob in keep) and file.path not in preexisting
        ]
        if not left:
            break
        remove_listed(output_path, left, check_lease)
        removed.update(file.path for file in left)
    else:
        raise StoreUnavailableError(
            f"Files at {output_path} cannot be removed, or come back, such as {left[0].path}. Stop other processes "
            "that write there, and retry."
        )
    _remove_empty_folders(output_path, check_lease)
    return sorted(removed)


def remove_listed(folder: str, files: Sequence[StoredFile], check_lease: Callable[[], None]) -> None:
    """Remove listed files below ``folder``; skip those that are gone or have been replaced.

    Args:
        files: As ``list_files`` returned them.
        check_lease: Raises if this process may no longer remove; called before each batch.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: The store refuses.
    """
    fs, name = file_system_at(folder)
    for first in range(0, len(files), _BATCH_SIZE):
        batch = {posixpath.join(name, file.path): file.tag for file in files[first : first + _BATCH_SIZE]}
        check_lease()
        with translated_client_errors(folder):
            _remove(fs, Location.of(folder).scheme, batch)


def _check_pattern(pattern: str) -> None:
    path = posixpath.normpath(pattern)
    if path.startswith(("/", "..")):
        raise UnsafeRemovalError(
            f"The pattern {truncated_repr(pattern)} of files to keep leads out of the output: write it relative to the "
            "output, like 'checkpoints/**'."
        )
    if any(RECURSIVE_WILDCARD in name and name != RECURSIVE_WILDCARD for name in path.split("/")):
        raise UnsafeRemovalError(
            f"In the pattern {truncated_repr(pattern)} of files to keep, '**' must be a whole name."
        )


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


def _remove_empty_folders(output_path: str, check_lease: Callable[[], None]) -> None:
    """Remove the folders on a local disk that are empty without the leftovers."""
    fs, name = file_system_at(output_path)
    if not isinstance(fs, LocalFileSystem):
        return
    for folder in reversed([*_own_folders(name)]):
        check_lease()
        try:
            os.rmdir(folder)
        except OSError:
            continue  # it is not empty


def _own_folders(output: str) -> Iterator[str]:
    """Yield the folders below ``output``, top down, without records and outputs of other steps."""
    for folder, folders, files in os.walk(output):
        if folder != output and RECORDS_OF_AN_OUTPUT & {*files}:
            folders.clear()
            continue
        if folder == output:
            folders[:] = [name for name in folders if name != ATTEMPTS_FOLDER]
        else:
            yield folder


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
