"""One copy of a mirrored path, made by whoever holds its lease: all of it as the source had it at one time, or none.

On a disk it is made in the folder of its record and renamed to its place, so that nobody ever sees a part of it. In a
bucket, which cannot rename a folder, each file appears in its place whole, and counts once the lease is committed. What
is to be copied is written down first (``LIST_FILE``): an attempt after a kill leaves the whole files that are there, as
long as the source is still what the list says, and removes them otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from tradewind.calls.mirrors import MirroredPath
from tradewind.records.leases.holding import TurnKeeper, check_goes_on
from tradewind.records.parsing import RAW_TEXT, Flaw, is_relative, known_fields, parse_object
from tradewind.runtime.mirrors.errors import MirrorCopyError, MirrorOccupiedError, MirrorOutsideError
from tradewind.runtime.mirrors.places import FoundSource, is_on_disk, listed_again, record_of
from tradewind.storage import file_system_at, place_of
from tradewind.storage.copying import CopyRefusedError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError
from tradewind.storage.files import read_text, write_text
from tradewind.storage.trees import StoredFile, list_files, remove_files

LIST_FILE: Final = "files.json"
MOST_AT_ONCE: Final = 8
_STAGED: Final = "copy-"
"""Before the digest of a list: the folder with its copy, on a disk. So what is shown is no part of another copy."""
_DROPPED: Final = "dropped-"
_KINDS: Final = {"path": RAW_TEXT}


class MirrorCopy:
    """A copy under way.

    Args:
        found: The source.
        turn: The lease of the copy, which is held and renewed.
    """

    def __init__(self, mirror: MirroredPath, found: FoundSource, turn: TurnKeeper) -> None:
        self._mirror = mirror
        self._found = found
        self._turn = turn
        self._record = record_of(mirror.prefix, mirror.name)
        self._parts = posixpath.join(self._record, "parts")
        self._is_staged = is_on_disk(mirror.path)
        place = posixpath.dirname(mirror.path) if found.is_file else mirror.path
        self._list = json.dumps({"name": mirror.name, "from": found.prefix, "files": _told(found.files)})
        self._root = posixpath.join(self._record, f"{_STAGED}{self.digest[:16]}") if self._is_staged else place
        self._has_ended = threading.Event()

    @property
    def digest(self) -> str:
        """The SHA-256 of the list of what is copied."""
        return hashlib.sha256(self._list.encode()).hexdigest()

    def make(self) -> int:
        """Copy what is not there yet, and put all in its place; how many files were copied.

        Raises:
            MirrorCopyError: The source changed, or gave other bytes than its store says; what was copied is removed.
            MirrorOccupiedError: Something else lies in its place.
            MirrorOutsideError: A link leads its place out of the prefix.
            LeaseLostError: Somebody else holds the lease.
            StoreError: A store does not answer; what was copied stays for the next attempt.
        """
        todo = self._begin()
        try:
            self._copy(todo)
            if _told(listed_again(self._found)) != _told(self._found.files):
                raise MirrorCopyError(
                    f"{self._mirror.field}: {self._found.root} changed while it was copied: mirror what nobody writes "
                    "to, and clear the task."
                )
        except TargetOccupiedError as error:
            raise MirrorOccupiedError(f"{self._mirror.field}: {error} Move it away, or mirror another path.") from error
        except CopyRefusedError as error:
            self._discard()
            raise MirrorCopyError(f"{self._mirror.field}: {error} Nothing of it was kept.") from error
        except MirrorCopyError:
            self._discard()
            raise
        if self._is_staged:
            self._show()
        return len(todo)

    def go_on(self) -> None:
        """Asked between any two mebibytes.

        Raises:
            LeaseLostError: The copy is to end.
        """
        check_goes_on(self._turn)
        if self._has_ended.is_set():
            raise LeaseLostError("The copy has ended.")

    def _begin(self) -> Sequence[StoredFile]:
        """Remove what is no part of this copy, and write its list down; the files that are not there yet."""
        before = read_text(posixpath.join(self._record, LIST_FILE))
        check_goes_on(self._turn)
        remove_files(self._parts, [file.path for file in list_files(self._parts)])
        if before is not None and before != self._list and not self._is_staged:
            remove_files(self._root, _paths_in(before))
        there, wanted = self._there(), {file.path: file for file in self._found.files}
        other = [path for path, file in there.items() if path not in wanted or not _is_copy(file, wanted[path])]
        if self._is_staged:
            self._drop_other_copies()
            remove_files(self._root, other)
            there = {path: file for path, file in there.items() if path not in other}
        elif other := [path for path in other if path in wanted]:
            raise MirrorOccupiedError(
                f"{self._mirror.field}: {posixpath.join(self._root, other[0])} is another file than "
                f"{posixpath.join(self._found.root, other[0])}: move it away, or mirror another path."
            )
        if before != self._list:
            write_text(posixpath.join(self._record, LIST_FILE), self._list)
        return [file for file in self._found.files if file.path not in there]

    def _drop_other_copies(self) -> None:
        """Remove those of other lists; renamed first, so that whoever wakes up to show one shows all of it or none."""
        _, record = file_system_at(self._record)
        mine = posixpath.basename(self._root)
        for name in os.listdir(record) if os.path.isdir(record) else []:
            if name.startswith((_STAGED[:-1], _DROPPED)) and name != mine:
                dropped = posixpath.join(record, f"{_DROPPED}{uuid.uuid4().hex}")
                with suppress(FileNotFoundError):  # it has just been shown
                    os.rename(posixpath.join(record, name), dropped)
                    shutil.rmtree(dropped)

    def _there(self) -> dict[str, StoredFile]:
        if self._found.is_file and not self._is_staged:  # its folder may hold a million others
            return {}
        return {file.path: file for file in list_files(self._root)}

    def _copy(self, files: Sequence[StoredFile]) -> None:
        with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="mirror") as threads:
            try:
                for _ in threads.map(self._copy_one, files):
                    pass
            except BaseException:  # also a request to stop, after which nobody waits for the others
                self._has_ended.set()
                raise

    def _copy_one(self, file: StoredFile) -> None:
        aside = posixpath.join(self._parts, uuid.uuid4().hex)
        copy_file(self._found.root, file, posixpath.join(self._root, file.path), aside, self.go_on)

    def _discard(self) -> None:
        check_goes_on(self._turn)
        remove_files(self._root, [file.path for file in self._found.files])

    def _show(self) -> None:
        """Rename the copy to its place."""
        _, root = file_system_at(self._root)
        _, place = file_system_at(self._mirror.path)
        folder = posixpath.dirname(place)
        check_goes_on(self._turn)
        os.makedirs(folder, exist_ok=True)
        if not place_of(self._mirror.path).is_below(place_of(self._mirror.prefix)):
            raise MirrorOutsideError(f"{self._mirror.field}: {self._mirror.path} leads out of the prefix by a link.")
        try:
            if self._found.is_file:
                os.link(posixpath.join(root, self._found.files[0].path), place)
                shutil.rmtree(root)
            else:
                os.rename(root, place)
        except FileNotFoundError as error:
            raise LeaseLostError(f"{self._root} is gone: somebody else has begun another copy.") from error
        except OSError as error:
            raise MirrorOccupiedError(
                f"{self._mirror.field}: the copy cannot be put at {self._mirror.path}: {error}. Move what is there "
                "away, or mirror another path."
            ) from error


def _is_copy(there: StoredFile, file: StoredFile) -> bool:
    """Whether what is there may be a copy of ``file``, by size, and by checksums of one kind."""
    sums = (there.checksum or "", file.checksum or "")
    is_same_kind = sums[0].partition(":")[0] == sums[1].partition(":")[0]
    return there.size == file.size and (not is_same_kind or sums[0] == sums[1])


def _paths_in(text: str) -> list[str]:
    """The paths in a list that an earlier copy wrote; of one that somebody else wrote, nothing is believed."""
    try:
        paths = [str(known_fields(each, _KINDS, _KINDS)["path"]) for each in parse_object(text).get("files", ())]
    except (Flaw, TypeError):
        return []
    return [path for path in paths if is_relative(path)]


def _told(files: Sequence[StoredFile]) -> list[dict[str, object]]:
    return [asdict(file) for file in sorted(files, key=lambda file: file.path)]
