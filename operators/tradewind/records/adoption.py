"""Adoption: files that were made elsewhere become the result of a step.

Adoption claims, lists and commits them like an attempt, so the steps that read them have the same protection. The lease
names the user who adopted them, and the attempt's file also names their source. Adoption never replaces a result or the
output of a live attempt.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from tradewind.records.attempts import Attempt, AttemptOutcome, utc_now
from tradewind.records.cleanup import remove_leftovers
from tradewind.records.discovery import OccupiedFolderError, check_no_nested_outputs, list_preexisting_files
from tradewind.records.info_files import write_step_info
from tradewind.records.lease import HEARTBEAT_S, Lease, Phase, check_readable, new_owner_id
from tradewind.records.lease_store import (
    HeldLease,
    LeaseHolder,
    LeaseStore,
    OutputBusyError,
    RenewLease,
    check_still_held,
)
from tradewind.records.lifecycle import claim_attempt, commit_attempt, next_attempt_number, stop_attempt
from tradewind.records.manifests import output_files
from tradewind.records.record import RecordState, read_record
from tradewind.steps import ResolvedStep
from tradewind.storage import file_system_at, resolve_location
from tradewind.storage.errors import LeaseLostError, RecordsError
from tradewind.storage.trees import StoredFile

_COPY_THREADS: Final = 8
_CHUNK_BYTES: Final = 1 << 24


class NothingToAdoptError(RecordsError):
    """There are no files at the path, or they are not at the step's output path."""


@dataclass(frozen=True)
class Adoption:
    """Files to adopt.

    Attributes:
        step: The step whose result they become.
        fn_name: The step's function as ``module.qualname``.
        source: Their path.
        by: The user or task that adopts them.
        copies: Copy them to the step's output path; otherwise they must be there.
    """

    step: ResolvedStep
    fn_name: str
    source: str
    by: Mapping[str, Any]
    copies: bool = False

    @property
    def attempt_spec(self) -> dict[str, Any]:
        """What the attempt's file holds instead of a spec."""
        step = self.step
        return {
            "name": step.name,
            "version": step.version_name,
            "output_path": step.output_path,
            "adopted": self.source,
        }


def adopt(adoption: Adoption, renewing: RenewLease) -> Lease:
    """Make the files a result of the step, and return its committed lease.

    Raises:
        NothingToAdoptError: There are no such files, or they are elsewhere and ``copies`` is false.
        RecordsError: The step has a result, or the files to copy hold a link that leads out of their folder.
        OutputBusyError: An attempt is at work at the output.
        OccupiedFolderError: The output holds outputs of other steps, or files that a copy would replace.
        UnreadableLeaseError: The lease of the output cannot be read.
        LeaseLostError: Another process took the lease during the adoption.
    """
    path = adoption.step.output_path
    files = _files_to_adopt(adoption)
    store = LeaseStore(path)
    over = store.read()
    _check_is_free(adoption.step)
    lease = over.lease if over else None
    if adoption.copies:
        preexisting = list_preexisting_files(path, lease)
        _check_replaces_nothing(path, files, preexisting)
    else:  # the files there become the result
        preexisting = ()
        check_no_nested_outputs(path)
    attempt = Attempt(
        next_attempt_number(path, lease),
        job="",
        cluster="",
        by=dict(adoption.by),
        spec=adoption.attempt_spec,
        found=preexisting,
        started_at=utc_now(),
    )
    held = claim_attempt(store, path, over, attempt, adoption.step.digest, HEARTBEAT_S)
    if held is None:
        raise OutputBusyError(f"Another process has just begun to make {path}: check it again before adopting.")
    held = store.change(held, phase=Phase.RUNNING, incarnation=new_owner_id())
    return _import_files(adoption, files, store, held, attempt, renewing)


def _import_files(
    adoption: Adoption,
    files: Sequence[StoredFile],
    store: LeaseStore,
    held: HeldLease,
    attempt: Attempt,
    renewing: RenewLease,
) -> Lease:
    path = adoption.step.output_path
    with renewing(store, held) as holder:
        try:
            write_step_info(adoption.step, adoption.fn_name)
            if adoption.copies:
                remove_leftovers(path, (), lambda: check_still_held(holder), attempt.found)
                _copy(adoption.source, path, files, holder)
            commit = partial(commit_attempt, holder.finish, path, attempt, lambda: check_still_held(holder))
            return holder.retry_store(commit).lease
        except LeaseLostError:
            raise
        except BaseException:
            stop_attempt(holder.finish, path, attempt, AttemptOutcome.LOST)
            raise


def _files_to_adopt(adoption: Adoption) -> Sequence[StoredFile]:
    source, path = adoption.source.rstrip("/"), adoption.step.output_path.rstrip("/")
    if adoption.copies:
        _check_is_apart(source, path)
    elif source != path:
        raise NothingToAdoptError(f"The output of this step belongs at {path}: copy or move {source} there.")
    files = output_files(source)
    if not files:
        raise NothingToAdoptError(f"There are no files at {source}.")
    if adoption.copies:
        _check_links(source, files)
    return files


def _check_is_apart(source: str, path: str) -> None:
    """Refuse to copy within one folder, since leftovers at the output are removed before the first copy.

    Both paths may have many spellings, such as one through a link.
    """
    origin, output = resolve_location(source), resolve_location(path)
    if origin == output:
        raise NothingToAdoptError(f"{source} is the step's output path already: adopt it without copying.")
    if origin.is_below(output) or output.is_below(origin):
        raise NothingToAdoptError(
            f"One of {source} and the step's output path {path} is inside the other: move the files to a separate "
            "folder, and copy them from there."
        )


def _check_links(source: str, files: Sequence[StoredFile]) -> None:
    """Refuse a folder whose links lead out of it, to files that the user did not name."""
    fs, root = file_system_at(source)
    if not isinstance(fs, LocalFileSystem):
        return
    for file in files:
        name = posixpath.join(root, file.path)
        if os.path.islink(name):
            _check_is_within(os.path.realpath(name), os.path.realpath(root), name)


def _check_replaces_nothing(path: str, files: Sequence[StoredFile], preexisting: Collection[str]) -> None:
    """Refuse to overwrite pre-existing files."""
    replaced = sorted({file.path for file in files}.intersection(preexisting))
    if replaced:
        raise OccupiedFolderError(
            f"{path} holds files that no step has made and that copies would replace, such as {replaced[0]}: move them "
            "away, or give the step another override_output_path. Nothing was claimed."
        )


def _check_is_within(target: str, root: str, name: str) -> None:
    if os.path.commonpath([target, root]) != root:
        raise RecordsError(
            f"{name} is a link, or is behind one, that leads out of {root}, so it was not followed. Put the file or "
            "folder that it leads to there instead."
        )


def _check_is_free(step: ResolvedStep) -> None:
    record = read_record(step.output_path)
    check_readable(step.output_path, record.lease)
    match record.state:
        case RecordState.FINISHED:
            raise RecordsError(f"Step {step.name!r} has a finished output at {step.output_path}.")
        case RecordState.AT_WORK:
            raise OutputBusyError(f"An attempt is at work at {step.output_path}: wait for its end, or stop it.")


def _copy(source: str, target: str, files: Sequence[StoredFile], holder: LeaseHolder) -> None:
    from_fs, from_root = file_system_at(source)
    to_fs, to_root = file_system_at(target)

    def copy(file: StoredFile) -> None:
        check_still_held(holder)
        from_name, to_name = posixpath.join(from_root, file.path), posixpath.join(to_root, file.path)
        if isinstance(to_fs, LocalFileSystem):
            _make_folder(to_root, to_name)
        _copy_one(from_fs, from_name, to_fs, to_name)

    with ThreadPoolExecutor(_COPY_THREADS) as pool:
        for _ in pool.map(copy, files):
            pass


def _make_folder(root: str, name: str) -> None:
    """Make the folder of a copy, and refuse links that lead the copy out of ``root``."""
    folder = posixpath.dirname(name)
    os.makedirs(root, exist_ok=True)
    _check_is_within(os.path.realpath(folder), os.path.realpath(root), folder)
    os.makedirs(folder, exist_ok=True)
    _check_is_within(os.path.realpath(name), os.path.realpath(root), name)


def _copy_one(from_fs: AbstractFileSystem, from_name: str, to_fs: AbstractFileSystem, to_name: str) -> None:
    if isinstance(from_fs, LocalFileSystem) and os.path.islink(from_name) and not os.path.isfile(from_name):
        _copy_link(from_name, to_fs, to_name)
        return
    if from_fs is to_fs:
        to_fs.cp_file(from_name, to_name)  # object stores copy without sending the bytes to this machine
        return
    with from_fs.open(from_name, "rb") as reader, to_fs.open(to_name, "wb") as writer:
        shutil.copyfileobj(reader, writer, _CHUNK_BYTES)


def _copy_link(from_name: str, to_fs: AbstractFileSystem, to_name: str) -> None:
    """Copy a link that leads to no file as a link, since its target is not part of the output."""
    if not isinstance(to_fs, LocalFileSystem):
        raise RecordsError(
            f"{from_name} is a link to a folder, or to nothing, which a bucket cannot hold: remove it, or put the "
            "folder itself there."
        )
    os.symlink(os.readlink(from_name), to_name)
