"""Adoption: an output that was made elsewhere becomes the result of a step, as if an attempt of ours had made it.

It is claimed, listed and committed as any other result, so whoever reads it is protected the same way; who brought it
in, and from where, stands in the lease and in the attempt's file. Nothing that is a result, or about to become one, is
replaced.
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

_COPIERS: Final = 8
_CHUNK: Final = 1 << 24


class NothingToAdoptError(RecordsError):
    """There are no files at the path, or they do not lie where the step's output does."""


@dataclass(frozen=True)
class Adoption:
    """What is to be brought in.

    Attributes:
        step: Whose result it becomes.
        fn_name: The step's function as ``module.qualname``.
        source: Where the files are.
        by: Who brings them in.
        copies: Copy them to the step's output path; otherwise they must be there.
    """

    step: ResolvedStep
    fn_name: str
    source: str
    by: Mapping[str, Any]
    copies: bool = False

    @property
    def attempt_spec(self) -> dict[str, Any]:
        """What the attempt's file says instead of what to run."""
        step = self.step
        return {
            "name": step.name,
            "version": step.version_name,
            "output_path": step.output_path,
            "adopted": self.source,
        }


def adopt(adoption: Adoption, keep: RenewLease) -> Lease:
    """Make the files a result of the step; its committed lease.

    Raises:
        NothingToAdoptError: There are no such files, or they lie elsewhere and are not to be copied.
        RecordsError: The step has a result.
        OutputBusyError: Somebody is at work on it.
        RecordsError: What is to be copied holds a link that leads elsewhere.
        OccupiedFolderError: The output holds those of other steps, or what a copy would replace.
        UnreadableLeaseError: Nobody can say whether somebody is.
        LeaseLostError: Somebody else took the turn while this was under way.
    """
    path = adoption.step.output_path
    files = _files_to_adopt(adoption)
    store = LeaseStore(path)
    over = store.read()
    _check_is_free(adoption.step)
    lease = over.lease if over else None
    if adoption.copies:
        found = list_preexisting_files(path, lease)
        _check_replaces_nothing(path, files, found)
    else:  # what lies there is to be the result
        found = ()
        check_no_nested_outputs(path)
    attempt = Attempt(
        next_attempt_number(path, lease),
        job="",
        cluster="",
        by=dict(adoption.by),
        spec=adoption.attempt_spec,
        found=found,
        started_at=utc_now(),
    )
    held = claim_attempt(store, path, over, attempt, adoption.step.digest, HEARTBEAT_S)
    if held is None:
        raise OutputBusyError(f"Somebody has just begun to make {path}: look at it again before adopting.")
    held = store.change(held, phase=Phase.RUNNING, incarnation=new_owner_id())
    return _bring_in(adoption, files, store, held, attempt, keep)


def _bring_in(
    adoption: Adoption,
    files: Sequence[StoredFile],
    store: LeaseStore,
    held: HeldLease,
    attempt: Attempt,
    keep: RenewLease,
) -> Lease:
    path = adoption.step.output_path
    with keep(store, held) as turn:
        try:
            write_step_info(adoption.step, adoption.fn_name)
            if adoption.copies:
                remove_leftovers(path, (), lambda: check_still_held(turn), attempt.found)
                _copy(adoption.source, path, files, turn)
            commit = partial(commit_attempt, turn.finish, path, attempt, lambda: check_still_held(turn))
            return turn.retry_store(commit).lease
        except LeaseLostError:
            raise
        except BaseException:
            stop_attempt(turn.finish, path, attempt, AttemptOutcome.LOST)
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
    """Refuse to copy within one folder: what earlier attempts left at the output is removed before anything is copied.

    Both may be spelled in many ways, such as through a link.
    """
    place, output = resolve_location(source), resolve_location(path)
    if place == output:
        raise NothingToAdoptError(f"{source} is the step's output path already: adopt it without copying.")
    if place.is_below(output) or output.is_below(place):
        raise NothingToAdoptError(
            f"{source} and the step's output path {path} lie one within the other: move the files to a folder apart "
            "from it, and copy them from there."
        )


def _check_links(source: str, files: Sequence[StoredFile]) -> None:
    """Refuse a folder whose links lead out of it: what they lead to is not what was named."""
    fs, root = file_system_at(source)
    if not isinstance(fs, LocalFileSystem):
        return
    for file in files:
        name = posixpath.join(root, file.path)
        if os.path.islink(name):
            _check_is_within(os.path.realpath(name), os.path.realpath(root), name)


def _check_replaces_nothing(path: str, files: Sequence[StoredFile], found: Collection[str]) -> None:
    """Refuse to write over what was there before any attempt: it is somebody else's, and stays."""
    both = sorted({file.path for file in files}.intersection(found))
    if both:
        raise OccupiedFolderError(
            f"{path} holds files that no step has made and that copies would replace, such as {both[0]}: move them "
            "away, or give the step another override_output_path. Nothing was claimed."
        )


def _check_is_within(place: str, root: str, name: str) -> None:
    if os.path.commonpath([place, root]) != root:
        raise RecordsError(
            f"{name} is a link, or lies behind one, that leads out of {root}: it was not followed. Put what it leads "
            "to there instead."
        )


def _check_is_free(step: ResolvedStep) -> None:
    record = read_record(step.output_path)
    check_readable(step.output_path, record.lease)
    match record.state:
        case RecordState.FINISHED:
            raise RecordsError(f"Step {step.name!r} has a finished output at {step.output_path}.")
        case RecordState.AT_WORK:
            raise OutputBusyError(f"Somebody is at work at {step.output_path}: wait for that end, or stop it.")


def _copy(source: str, target: str, files: Sequence[StoredFile], turn: LeaseHolder) -> None:
    from_fs, from_root = file_system_at(source)
    to_fs, to_root = file_system_at(target)

    def copy(file: StoredFile) -> None:
        check_still_held(turn)
        from_name, to_name = posixpath.join(from_root, file.path), posixpath.join(to_root, file.path)
        if isinstance(to_fs, LocalFileSystem):
            _make_folder(to_root, to_name)
        _copy_one(from_fs, from_name, to_fs, to_name)

    with ThreadPoolExecutor(_COPIERS) as pool:
        for _ in pool.map(copy, files):
            pass


def _make_folder(root: str, name: str) -> None:
    """Make the folder of a copy, and see that no link leads the copy elsewhere."""
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
        to_fs.cp_file(from_name, to_name)  # object stores do it without sending the bytes to us
        return
    with from_fs.open(from_name, "rb") as reader, to_fs.open(to_name, "wb") as writer:
        shutil.copyfileobj(reader, writer, _CHUNK)


def _copy_link(from_name: str, to_fs: AbstractFileSystem, to_name: str) -> None:
    """Copy a link that leads to no file, as the link that it is: what it leads to is not part of the output."""
    if not isinstance(to_fs, LocalFileSystem):
        raise RecordsError(
            f"{from_name} is a link to a folder, or to nothing, which a bucket cannot hold: remove it, or put the "
            "folder itself there."
        )
    os.symlink(os.readlink(from_name), to_name)
