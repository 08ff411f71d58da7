"""The files of this folder as they travel to a slice: the same that a job of this folder would take along.

``.gitignore`` and ``.rayignore`` count, and histories, environments and ``.env`` stay here. What a host has already,
by size and time of change, is not sent again.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tradewind.fleet.dev.on_host import LISTING
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.environment.working_dir import NEVER_NEEDED, SELDOM_NEEDED, TravellingFolder

_MOST_BYTES: Final = 512 * 1024 * 1024


class TreeChangedError(FleetError):
    """A file changed while it was read."""


class TreeTooLargeError(FleetError):
    """More would travel than is sensible."""


@dataclass(frozen=True)
class FileFacts:
    """One file by its facts: size in bytes, time of change in ns, mode."""

    size: int
    changed_ns: int
    mode: int


Listing = Mapping[str, FileFacts]
"""Path, relative to the folder → the file."""


class LocalTree:
    """One folder of this machine.

    Args:
        excludes: What stays here besides, in the language of ``.gitignore``.
    """

    def __init__(self, folder: Path, excludes: Sequence[str] = ()) -> None:
        self.folder = folder
        self._travelling = TravellingFolder(folder, [*NEVER_NEEDED, *SELDOM_NEEDED, *excludes])

    def listing(self) -> dict[str, FileFacts]:
        """What travels, as it is now.

        Raises:
            TreeTooLargeError: It is more than 512 MiB.
            BadWorkingDirError: A link would take along what does not travel by itself.
        """
        found = {}
        for file in self._travelling.files():
            path = self.folder / file.path
            try:
                if path.is_file():
                    there = path.stat()
                    found[file.path] = FileFacts(there.st_size, there.st_mtime_ns, there.st_mode & 0o777)
            except FileNotFoundError:  # removed at this moment
                continue
        if (size := sum(one.size for one in found.values())) > _MOST_BYTES:
            largest = max(found, key=lambda path: found[path].size)
            raise TreeTooLargeError(
                f"{self.folder} has {size / 2**20:.0f} MiB that would travel, and 512 MiB may; the largest is "
                f"{largest}: leave out what is not needed with --exclude, .gitignore or .rayignore."
            )
        return found

    def pack(self, listing: Listing, paths: Collection[str], target: IO[bytes]) -> None:
        """Write what a host needs to have ``listing``, of which it lacks ``paths``.

        Raises:
            TreeChangedError: One of them is not what it was.
        """
        told = json.dumps({path: [one.size, one.changed_ns, one.mode] for path, one in listing.items()}).encode()
        with tarfile.open(fileobj=target, mode="w|") as tar:
            _add(tar, LISTING, io.BytesIO(told), len(told))
            for path in sorted(paths):
                try:
                    with (self.folder / path).open("rb") as file:
                        _add(tar, path, file, listing[path].size)
                except OSError:  # tarfile's own one too, of a file that became shorter
                    raise TreeChangedError(f"{path} changed while it was read: try again.") from None


def lacking(listing: Listing, has: Mapping[str, Any]) -> set[str]:
    """The paths that are not there as ``listing`` has them, by what a host says that it has."""
    return {path for path, one in listing.items() if has.get(path) != [one.size, one.changed_ns]}


def _add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    tar.addfile(entry, content)
