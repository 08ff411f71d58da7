"""What a repair must not forget: a slice's way back is written down before the slice is deleted.

One small JSON file for each slice that is in trouble or was lately, in a folder of any store. Whoever repairs next
finds there what creates the slice again, since when it has been in trouble, and when it was deleted. A file holds the
body of a create call, the node's metadata included: keep the folder as private as the project.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

_SUFFIX: Final = ".json"


class SliceRecordError(Exception):
    """A record cannot be read."""


@dataclass(frozen=True)
class SliceRecord:
    """What is known of one node or queued resource beyond what Google and Ray say.

    Attributes:
        name: Its name.
        trouble: What it was last seen waiting for; empty if nothing.
        since: Since when, in seconds since the epoch.
        is_wanted: It was deleted for repair, and has not been created again.
        body: What creates it again.
        deleted_at: When it was deleted for repair.
        refusals: How often in a row its creation was refused for want of capacity or quota.
        refusal: The last such refusal in words.
        retry_at: When to try again.
    """

    name: str
    trouble: str = ""
    since: float | None = None
    is_wanted: bool = False
    body: Mapping[str, Any] | None = None
    deleted_at: tuple[float, ...] = ()
    refusals: int = 0
    refusal: str = ""
    retry_at: float = 0.0

    def in_trouble(self, trouble: str, now: float) -> SliceRecord:
        """The record of the slice, seen in this trouble at ``now``."""
        if trouble == self.trouble:
            return self
        return replace(self, trouble=trouble, since=now if trouble else None)

    def deleting(self, body: Mapping[str, Any] | None, now: float, keep_s: float) -> SliceRecord:
        """The record just before the deletion; a slice without ``body`` will not be created again."""
        lately = tuple(at for at in self.deleted_at if at > now - keep_s)
        return replace(self, is_wanted=body is not None, body=body, deleted_at=(*lately, now))

    def begun(self) -> SliceRecord:
        """The record once its creation was accepted; it is wanted until it has been seen."""
        return replace(self, refusals=0, refusal="", retry_at=0.0)

    def created(self) -> SliceRecord:
        """The record once the new slice was seen READY."""
        return replace(self.begun(), is_wanted=False, body=None)

    def refused(self, refusal: str, retry_at: float) -> SliceRecord:
        """The record after a creation for which there was no capacity or quota."""
        return replace(self, refusals=self.refusals + 1, refusal=refusal, retry_at=retry_at)

    def is_empty(self, now: float, keep_s: float) -> bool:
        """Whether nothing in it is of use any more."""
        lately = any(at > now - keep_s for at in self.deleted_at)
        return not (self.is_wanted or self.trouble or self.refusals or lately)


class SliceRecords:
    """The records in one folder, which is a path or a URL that fsspec understands."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/")
        self._fs, self._root = fsspec.core.url_to_fs(self.folder)

    def read(self) -> dict[str, SliceRecord]:
        """All records, by slice name.

        Raises:
            SliceRecordError: One of them is damaged.
        """
        self._fs.invalidate_cache()
        try:
            paths = [path for path in self._fs.ls(self._root, detail=False) if path.endswith(_SUFFIX)]
        except FileNotFoundError:
            return {}
        records = [record for path in paths if (record := self._read(path))]
        return {record.name: record for record in records}

    def write(self, record: SliceRecord) -> None:
        """Write a record whole; afterwards it is there."""
        text = json.dumps(asdict(record), sort_keys=True).encode()
        path = self._path(record.name)
        if isinstance(self._fs, LocalFileSystem):
            _replace_file(path, text)
        else:
            self._fs.pipe_file(path, text)

    def remove(self, name: str) -> None:
        """Remove the record of ``name``, if there is one."""
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}{_SUFFIX}"

    def _read(self, path: str) -> SliceRecord | None:
        try:
            fields = json.loads(self._fs.cat_file(path))
            return SliceRecord(**{**fields, "deleted_at": tuple(fields["deleted_at"])})
        except FileNotFoundError:  # removed since the listing
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise SliceRecordError(
                f"The slice record {path} is damaged ({error}): see that its slice is there, and remove the file."
            ) from error


def _replace_file(path: str, text: bytes) -> None:
    """Readers see the old file or the new one, never a part; only its owner can read it."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
