"""Discovery of the outputs below a prefix, and of pre-existing files in the folder of an output.

The scan lists the folders of one depth together. A folder that holds a record is an output, and the scan does not enter
it. It enters all other folders, since names of steps may hold ``/``; that includes ``experiments``, since a step may be
named ``experiments/x``, but no hidden folder.

Pre-existing files were there before the first attempt at an output, so Tradewind never removes them. The attempt's file
lists them, and each later one repeats the list, so an unreadable file loses nothing. All other files of an attempt
without a result are leftovers. A claim is refused if the folder holds outputs of other steps, or too many files to list
in a record.
"""

from __future__ import annotations

import logging
import math
import os
import posixpath
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from tradewind.records.attempts import AttemptOutcome, attempt_numbers, read_attempt_or_none
from tradewind.records.info_files import EXPERIMENTS_FOLDER, INFO_FILE, is_experiment_file
from tradewind.records.lease import LEASE_FILE, Lease, Phase
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT, output_files
from tradewind.records.pins import OWN_FOLDER
from tradewind.records.record import STATUS_FILE
from tradewind.steps.paths import self_and_parents
from tradewind.storage import Location, StorageError, file_system_at
from tradewind.storage.client import translated_client_errors
from tradewind.storage.confinement import confined_threads, leads_outside
from tradewind.storage.errors import RecordsError
from tradewind.storage.files import existing_many, list_names
from tradewind.storage.pages import has_pages, list_pages
from tradewind.storage.swap import read_stored
from tradewind.storage.trees import StoredFile, list_files

logger = logging.getLogger(__name__)

MAX_CONCURRENT_LISTINGS: Final = 32
_LISTINGS_BETWEEN_CHECKS: Final = 512
"""Listings that a scan with limits begins before it looks at them again."""
MAX_PREEXISTING_FILES: Final = 1000
_MAX_LIST_BYTES: Final = 1 << 18
_MAX_LOGGED: Final = 3


class OccupiedFolderError(RecordsError):
    """The folder of an output holds outputs of other steps or too many pre-existing files. Nothing was claimed."""


@dataclass(frozen=True)
class _Listing:
    """What matters of a folder's content; the folders in an output do not."""

    folder: str
    is_output: bool
    folders: tuple[str, ...] = ()
    is_prefix: bool = False
    cut: str = ""


@dataclass(frozen=True)
class ScanLimits:
    """When a scan ends before it has seen all: after so many outputs, other folders or seconds.

    Of one folder of a bucket it reads as many names as outputs and other folders together.
    """

    outputs: int
    folders: int
    seconds: float


@dataclass(frozen=True)
class FoundOutputs:
    """Outputs and prefixes below a prefix.

    Attributes:
        outputs: Their paths, in order.
        prefixes: Folders with pins, which were used as prefixes; the prefix itself may be among them.
        cut: Why there may be more, in words that follow "because"; empty if these are all.
    """

    outputs: tuple[str, ...]
    prefixes: tuple[str, ...]
    cut: str = ""


def scan_outputs(prefix: str, limits: ScanLimits | None = None) -> FoundOutputs:
    """Find all outputs below ``prefix``, or as many as the limits allow; none if there is no such folder.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    began = time.monotonic()
    bounds = _Bounds() if limits is None else _Bounds(limits.outputs + limits.folders, began + limits.seconds)
    top = _list(prefix, bounds, enters_output=True)
    outputs: list[str] = []
    prefixes = [prefix] if top.is_prefix else []
    waiting, seen, cut, cut_folder = deque(top.folders), 0, "", top.cut
    with confined_threads(MAX_CONCURRENT_LISTINGS) as pool:
        while waiting and not cut:
            # Depth by depth, as ``waiting`` keeps the order: its outputs come before those of folders below it.
            count = len(waiting) if limits is None else min(len(waiting), _LISTINGS_BETWEEN_CHECKS)
            for listing in pool.map(partial(_list, bounds=bounds), [waiting.popleft() for _ in range(count)]):
                waiting.extend(listing.folders)
                outputs += [listing.folder] if listing.is_output else []
                prefixes += [listing.folder] if listing.is_prefix else []
                seen += not listing.is_output
                cut_folder = cut_folder or listing.cut
            if limits is not None and (waiting or len(outputs) > limits.outputs):
                cut = _limit_reached(limits, len(outputs), seen, time.monotonic() - began)
    if limits is not None:
        del outputs[limits.outputs :]
    return FoundOutputs(tuple(sorted(outputs)), tuple(prefixes), cut or cut_folder)


def _limit_reached(limits: ScanLimits, outputs: int, folders: int, seconds: float) -> str:
    if outputs >= limits.outputs:
        return f"a list ends at {limits.outputs:,} outputs"
    if folders >= limits.folders:
        return f"a search ends at {limits.folders:,} folders that are no outputs"
    return f"a search ends after {limits.seconds:.0f} s" if seconds >= limits.seconds else ""


def find_outputs(prefix: str) -> Sequence[str]:
    """Return the paths of all outputs below ``prefix``, in order."""
    return scan_outputs(prefix).outputs


def is_output(path: str) -> bool:
    """Whether there is an output at ``path``."""
    return bool(existing_many([posixpath.join(path, name) for name in RECORDS_OF_AN_OUTPUT]))


def own_files(output_path: str) -> list[StoredFile]:
    """List the files and records of an output, without those of outputs of other steps below it."""
    files = list_files(output_path)
    nested = {
        folder
        for folder, name in (posixpath.split(file.path) for file in files)
        if folder and name in RECORDS_OF_AN_OUTPUT
    }
    return [file for file in files if not nested.intersection(self_and_parents(posixpath.dirname(file.path)))]


def output_age_s(output_path: str) -> float:
    """Return the seconds since the last record of a change was written, by the store's clock."""
    for name in (LEASE_FILE, STATUS_FILE, INFO_FILE):
        stored = read_stored(posixpath.join(output_path, name))
        if stored is not None:
            return stored.age_s
    return 0.0


def output_ages_s(output_paths: Sequence[str]) -> dict[str, float]:
    """Return the age of each output in seconds."""
    with ThreadPoolExecutor(MAX_CONCURRENT_LISTINGS) as pool:
        return dict(zip(output_paths, pool.map(output_age_s, output_paths), strict=True))


def list_preexisting_files(output_path: str, over: Lease | None) -> tuple[str, ...]:
    """List the files that an attempt claimed now may not remove, relative to ``output_path``.

    Args:
        over: The present lease.

    Raises:
        OccupiedFolderError: The folder holds outputs of other steps, or too many pre-existing files.
        StoreUnavailableError: The store does not answer.
    """
    recorded = recorded_preexisting_files(output_path, over)
    return recorded if recorded is not None else _find_preexisting_files(output_path)


def recorded_preexisting_files(output_path: str, lease: Lease | None) -> tuple[str, ...] | None:
    """Return the pre-existing files that the record names; None if it does not say.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    numbers = attempt_numbers(output_path)
    for number in reversed(numbers):
        attempt = read_attempt_or_none(output_path, number)
        if attempt is None:
            continue
        if str(attempt.spec.get("adopted", "")).rstrip("/") != output_path.rstrip("/"):
            return attempt.found
        is_lease = lease is not None and lease.phase is Phase.COMMITTED and lease.attempt == attempt.number
        return () if is_lease or attempt.outcome is AttemptOutcome.SUCCEEDED else None
    if numbers:
        logger.warning("%s: no attempt's file can be read, so all files there count as pre-existing.", output_path)
        return None
    is_marins = lease is not None and lease.written_by_marin
    return () if is_marins or {STATUS_FILE, INFO_FILE} & {*list_names(output_path)} else None


def check_no_nested_outputs(output_path: str) -> list[StoredFile]:
    """List all files at ``output_path``, below which no other step may have an output.

    Raises:
        OccupiedFolderError: Another step has one.
    """
    files = list_files(output_path)
    for file in files:
        folder, name = posixpath.split(file.path)
        is_output = folder and name in RECORDS_OF_AN_OUTPUT
        is_prefix = file.path.startswith(f"{OWN_FOLDER}/") or (
            folder == EXPERIMENTS_FOLDER and is_experiment_file(name)
        )
        if is_output or is_prefix:
            raise OccupiedFolderError(
                f"{output_path} holds outputs of other steps, as {file.path} says: give the step another name or "
                "override_output_path. Nothing was claimed."
            )
    return files


@dataclass(frozen=True)
class _Bounds:
    """Of the listing of one folder of a bucket: so many names, and until this time by the monotonic clock."""

    names: float = math.inf
    until: float = math.inf


def _list(folder: str, bounds: _Bounds, enters_output: bool = False) -> _Listing:
    with translated_client_errors(folder):
        try:
            if has_pages(folder):
                return _list_bucket(folder, bounds, enters_output)
            fs, name = file_system_at(folder)
            if isinstance(fs, LocalFileSystem):
                return _list_local(folder, name, enters_output)
            return _list_memory(folder, fs, name, enters_output)
        except (FileNotFoundError, NotADirectoryError):
            return _Listing(folder, False)


def _list_local(folder: str, name: str, enters_output: bool) -> _Listing:
    """List a folder of a disk: first its records by name, since an output may hold millions of files."""
    if leads_outside(name):  # it has become a link since its parent was listed
        return _Listing(folder, False)
    records = (f"{name}/{each}" for each in RECORDS_OF_AN_OUTPUT)
    is_output = any(os.path.lexists(record) and not os.path.isdir(record) for record in records)
    is_prefix = os.path.isdir(f"{name}/{OWN_FOLDER}")
    if is_output and not enters_output:
        return _Listing(folder, True, is_prefix=is_prefix)
    with os.scandir(name) as entries:
        bases = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return _Listing(folder, is_output, _folders_below(folder, bases), is_prefix)


def _list_bucket(folder: str, bounds: _Bounds, enters_output: bool) -> _Listing:
    """List a folder of a bucket page by page: the first pages have its records, since hidden names come first."""
    entries: dict[str, Mapping[str, Any]] = {}
    cut = ""
    for page in list_pages(folder):
        entries |= page.entries
        is_output = not RECORDS_OF_AN_OUTPUT.isdisjoint(entries)
        if page.next is None or (is_output and not enters_output and next(reversed(entries), "") > OWN_FOLDER):
            break
        if len(entries) >= bounds.names:
            cut = f"only the first {len(entries):,} names in {folder} are read"
            break
        if time.monotonic() > bounds.until:
            cut = f"the time of a search ended after {len(entries):,} names in {folder}"
            break
    return replace(_listing_of(folder, entries, enters_output), cut=cut)


def _list_memory(folder: str, fs: AbstractFileSystem, name: str, enters_output: bool) -> _Listing:
    fs.invalidate_cache(name)
    entries = {posixpath.basename(entry["name"].rstrip("/")): entry for entry in fs.ls(name, detail=True)}
    return _listing_of(folder, entries, enters_output)


def _listing_of(folder: str, entries: Mapping[str, Mapping[str, Any]], enters_output: bool) -> _Listing:
    """Return what matters of the entries, given as name → facts as fsspec gives them."""
    bases = [name for name, facts in entries.items() if facts.get("type") == "directory"]
    is_output = any(name in entries and name not in bases for name in RECORDS_OF_AN_OUTPUT)
    folders = () if is_output and not enters_output else _folders_below(folder, bases)
    return _Listing(folder, is_output, folders, OWN_FOLDER in bases)


def _folders_below(folder: str, bases: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of the folders to enter."""
    found = []
    for base in bases:
        if base and not base.startswith("."):
            below = posixpath.join(folder, base)
            with suppress(StorageError):  # a path outside the roots holds no output of a step
                Location.of(below)
                found.append(below)
    return tuple(found)


def _find_preexisting_files(output_path: str) -> tuple[str, ...]:
    check_no_nested_outputs(output_path)
    paths = [file.path for file in output_files(output_path)]
    if (
        len(paths) > MAX_PREEXISTING_FILES
        or sum(len(path.encode(errors="surrogatepass")) for path in paths) > _MAX_LIST_BYTES
    ):
        raise OccupiedFolderError(
            f"{output_path} holds {len(paths):,} files that no step has made, more than the {MAX_PREEXISTING_FILES:,} "
            "that an attempt's record lists: move them, make them the step's result with `tradewind adopt`, or give "
            "the step another override_output_path. Nothing was claimed."
        )
    if paths:
        more = f" and {len(paths) - _MAX_LOGGED:,} more" if len(paths) > _MAX_LOGGED else ""
        logger.warning(
            "%s holds files that no step has made: %s%s. They stay, and will count as files of the result.",
            output_path,
            ", ".join(paths[:_MAX_LOGGED]),
            more,
        )
    return tuple(paths)
