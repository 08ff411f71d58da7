"""The outputs below a prefix, found by listing folders: one that holds a record is an output, and is not looked into.

Names of steps may hold ``/``, so a folder without a record is looked into, also that of the experiments' files, since a
step may be named ``experiments/x``; hidden folders are not. The folders of one depth are listed together.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tradewind.records.leases.lease import LEASE_FILE
from tradewind.records.outputs.manifests import RECORDS_OF_AN_OUTPUT
from tradewind.records.outputs.pins import OWN_FOLDER
from tradewind.records.status import STATUS_FILE
from tradewind.records.step_info import INFO_FILE
from tradewind.steps.paths import self_and_parents
from tradewind.storage import Location, StorageError, file_system_at
from tradewind.storage.files import existing_many
from tradewind.storage.swap import read_stored
from tradewind.storage.trees import StoredFile, list_files

MOST_AT_ONCE: Final = 32


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
class Below:
    """What was found below a prefix.

    Attributes:
        outputs: Their paths, in order.
        prefixes: The folders with pins, which were prefixes of their own; the prefix itself may be among them.
    """

    outputs: tuple[str, ...]
    prefixes: tuple[str, ...]


def look_below(prefix: str) -> Below:
    """Find all outputs below ``prefix``; nothing when there is no such folder."""
    listed = [_list(prefix)]
    level = list(listed[0].folders)
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        while level:
            listings = list(pool.map(_list, level))
            listed += listings
            level = [folder for listing in listings if not listing.is_output for folder in listing.folders]
    outputs = sorted(listing.folder for listing in listed[1:] if listing.is_output)
    return Below(tuple(outputs), tuple(listing.folder for listing in listed if listing.is_prefix))


def find_outputs(prefix: str) -> Sequence[str]:
    """The paths of all outputs below ``prefix``, in order."""
    return look_below(prefix).outputs


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
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
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
