"""The outputs below a prefix, found by listing folders: one that holds a record is an output, and is not looked into.

Names of steps may hold ``/``, so a folder without a record is looked into, also that of the experiments' files, since a
step may be named ``experiments/x``; hidden folders are not. The folders of one depth are listed together.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tradewind.records.attempts import (
    Attempt,
    AttemptOutcome,
    BadAttemptError,
    attempt_numbers,
    attempt_path,
    read_attempt,
)
from tradewind.records.info_files import EXPERIMENTS_FOLDER, INFO_FILE, is_experiment_file
from tradewind.records.lease import LEASE_FILE, Lease, Phase
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT, output_files
from tradewind.records.pins import OWN_FOLDER
from tradewind.records.record import STATUS_FILE
from tradewind.steps.paths import self_and_parents
from tradewind.storage import Location, StorageError, file_system_at
from tradewind.storage.errors import RecordsError
from tradewind.storage.files import existing_many, list_names
from tradewind.storage.swap import read_stored
from tradewind.storage.trees import StoredFile, list_files

MAX_CONCURRENT_LISTINGS: Final = 32


@dataclass(frozen=True)
class _Listing:
    """What lies directly in a folder."""

    folder: str
    files: frozenset[str]
    folders: tuple[str, ...]
    is_prefix: bool

    @property
    def is_output(self) -> bool:
        return bool(RECORDS_OF_AN_OUTPUT & self.files)


@dataclass(frozen=True)
class FoundOutputs:
    """What was found below a prefix.

    Attributes:
        outputs: Their paths, in order.
        prefixes: The folders with pins, which were prefixes of their own; the prefix itself may be among them.
    """

    outputs: tuple[str, ...]
    prefixes: tuple[str, ...]


def scan_outputs(prefix: str) -> FoundOutputs:
    """Find all outputs below ``prefix``; nothing when there is no such folder."""
    listed = [_list(prefix)]
    level = list(listed[0].folders)
    with ThreadPoolExecutor(MAX_CONCURRENT_LISTINGS) as pool:
        while level:
            listings = list(pool.map(_list, level))
            listed += listings
            level = [folder for listing in listings if not listing.is_output for folder in listing.folders]
    outputs = sorted(listing.folder for listing in listed[1:] if listing.is_output)
    return FoundOutputs(tuple(outputs), tuple(listing.folder for listing in listed if listing.is_prefix))


def find_outputs(prefix: str) -> Sequence[str]:
    """The paths of all outputs below ``prefix``, in order."""
    return scan_outputs(prefix).outputs


def is_output(path: str) -> bool:
    """Whether there is an output at ``path``."""
    return bool(existing_many([posixpath.join(path, name) for name in RECORDS_OF_AN_OUTPUT]))


def own_files(output_path: str) -> list[StoredFile]:
    """The files of an output with its records, but without those of outputs that lie below it."""
    files = list_files(output_path)
    nested = {
        folder
        for folder, name in (posixpath.split(file.path) for file in files)
        if folder and name in RECORDS_OF_AN_OUTPUT
    }
    return [file for file in files if not nested.intersection(self_and_parents(posixpath.dirname(file.path)))]


def output_age_s(output_path: str) -> float:
    """How long ago the last record that tells of a change was written, by the store's own clock."""
    for name in (LEASE_FILE, STATUS_FILE, INFO_FILE):
        stored = read_stored(posixpath.join(output_path, name))
        if stored is not None:
            return stored.age_s
    return 0.0


def output_ages_s(output_paths: Sequence[str]) -> dict[str, float]:
    """The age of each output."""
    with ThreadPoolExecutor(MAX_CONCURRENT_LISTINGS) as pool:
        return dict(zip(output_paths, pool.map(output_age_s, output_paths), strict=True))


def _list(folder: str) -> _Listing:
    fs, name = file_system_at(folder)
    fs.invalidate_cache(name)
    try:
        entries = fs.ls(name, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        entries = []
    files: set[str] = set()
    folders: list[str] = []
    is_prefix = False
    for entry in entries:
        base = posixpath.basename(entry["name"].rstrip("/"))
        if entry["type"] != "directory":
            files.add(base)
        elif base == OWN_FOLDER:
            is_prefix = True
        elif base and not base.startswith(".") and not entry.get("islink"):
            below = posixpath.join(folder, base)
            with suppress(StorageError):  # no step can have an output where the gate lets nobody
                Location.of(below)
                folders.append(below)
    return _Listing(folder, frozenset(files), tuple(folders), is_prefix)


# What lay in a folder before the first attempt at an output there. It is somebody else's, so it is never removed.
#
# The attempt's file lists it, and each later one says the same again, so one that cannot be read costs nothing. All
# else of an attempt without a result is a leftover. A folder that already holds outputs of other steps is refused, and
# so is one with so many files that the list would be no record any more.

logger = logging.getLogger(__name__)

MAX_PREEXISTING_FILES: Final = 1000
"""So many files of others an output's folder may hold."""
_LONGEST_LIST_BYTES: Final = 1 << 18
_SHOWN: Final = 3


class OccupiedFolderError(RecordsError):
    """The folder of an output holds what belongs to others, so nothing was claimed there."""


def list_preexisting_files(output_path: str, over: Lease | None) -> tuple[str, ...]:
    """What an attempt that is claimed now must leave alone, relative to ``output_path``.

    Args:
        over: The lease as it is.

    Raises:
        OccupiedFolderError: The folder holds outputs of other steps, or too many files of others.
        StoreUnavailableError: The store does not answer.
    """
    known = recorded_preexisting_files(output_path, over)
    return known if known is not None else _look(output_path)


def recorded_preexisting_files(output_path: str, lease: Lease | None) -> tuple[str, ...] | None:
    """What the record says was there before the first attempt; None if it does not say so.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    numbers = attempt_numbers(output_path)
    for number in reversed(numbers):
        attempt = _readable(attempt_path(output_path, number))
        if attempt is None:
            continue
        if str(attempt.spec.get("adopted", "")).rstrip("/") != output_path.rstrip("/"):
            return attempt.found
        is_lease = lease is not None and lease.phase is Phase.COMMITTED and lease.attempt == attempt.number
        return () if is_lease or attempt.outcome is AttemptOutcome.SUCCEEDED else None
    if numbers:
        logger.warning(
            "No attempt's file at %s can be read: all that lies there counts as somebody else's.", output_path
        )
        return None
    is_marins = lease is not None and lease.written_by_marin
    return () if is_marins or {STATUS_FILE, INFO_FILE} & {*list_names(output_path)} else None


def check_no_nested_outputs(output_path: str) -> list[StoredFile]:
    """All that lies at ``output_path``, where no other step may have an output below.

    Raises:
        OccupiedFolderError: One has.
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


def _look(output_path: str) -> tuple[str, ...]:
    check_no_nested_outputs(output_path)
    found = [file.path for file in output_files(output_path)]
    if (
        len(found) > MAX_PREEXISTING_FILES
        or sum(len(path.encode(errors="surrogatepass")) for path in found) > _LONGEST_LIST_BYTES
    ):
        raise OccupiedFolderError(
            f"{output_path} holds {len(found):,} files that no step has made, more than the {MAX_PREEXISTING_FILES:,} "
            "that an attempt's record lists: move them, make them the step's result with `tradewind adopt`, or give "
            "the step another override_output_path. Nothing was claimed."
        )
    if found:
        logger.warning("%s", _warning(output_path, found))
    return tuple(found)


def _warning(output_path: str, found: Sequence[str]) -> str:
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return (
        f"{output_path} holds files that no step has made: {', '.join(found[:_SHOWN])}{more}. They stay, and "
        "will count as files of the result."
    )


def _readable(path: str) -> Attempt | None:
    try:
        return read_attempt(path)
    except BadAttemptError as error:
        logger.warning("%s", error)
        return None
