"""Persistent records of a repair: the body that recreates a slice is stored before its deletion.

Two kinds of files are in one folder of any store, and a pass reads each of them once for all slices. ``notes.json``
holds the start of each slice's trouble, and times of retries after refusals. Of two concurrent repairs, the last one
writes it; a lost note costs only time. ``deleted-*.json`` hold deletions and the bodies that recreate the slices. Each
is written once, before its deletions, and never changed, so that no repair can overwrite another one's. They hold the
bodies of create calls, the nodes' metadata included: keep the folder as private as the project. To give a slice up for
good, remove its entry from the file.

The repair lock serializes deletions by the repairs that share a folder of records. The Cloud TPU API deletes by name,
whatever resource has that name by then. So a repair acquires the lock, takes a snapshot, deletes, and releases the
lock; the next repair sees the result. A holder sends nothing more ``HOLD_S`` after the acquisition, by its own clock,
which continues while a process is frozen or its machine suspended. Others take over after ``STALE_S`` by the store's
clock: by then, the holder's last calls have been answered or given up.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from fsspec.implementations.local import LocalFileSystem

from tradewind.cloud_tpu.api import CALL_TIMEOUT_S
from tradewind.machine import boot_time, write_private_file
from tradewind.storage import file_system_at
from tradewind.storage.filesystems import remove_file
from tradewind.storage.swap import StoredObject, read_stored, write_if

RECORDS_FOLDER: Final = "slice-records"
"""Folder of records in the cluster's bucket, unless a task names another."""
KEEP_S: Final = 3600.0
"""How long a deletion is kept and counts towards the limits."""
HOLD_S: Final = 60.0
STALE_S: Final = HOLD_S + CALL_TIMEOUT_S
_NOTES: Final = "notes.json"
_DELETED: Final = "deleted-"
_SUFFIX: Final = ".json"
_MAX_FILES: Final = 8
_READERS: Final = 16
_NOTE_FIELDS: Final = ("trouble", "since", "refusals", "refusal", "retry_at", "denied")
_MAX_BYTES: Final = 64 << 20
"""Limit of one file; a deletion has a few thousand bytes."""
_MAX_TIME_S: Final = 1e11
"""In seconds since 1970; the range of calendars."""
_MAX_REFUSALS: Final = 10**9

T = TypeVar("T")


class SliceRecordError(Exception):
    """A record cannot be read."""


@dataclass(frozen=True)
class Deletion:
    """One deletion for repair, recorded before it is sent.

    Attributes:
        name: Name of the deleted resource.
        identity: Its identity.
        at: Time, in seconds since the epoch.
        body: Body that recreates it; None if it is not, or no longer, to be recreated.
        is_certain: Google itself reported it gone, so no limit applies.
    """

    name: str
    identity: str
    at: float
    body: Mapping[str, Any] | None = None
    is_certain: bool = False


@dataclass(frozen=True)
class SliceRecord:
    """Recorded state of one node or queued resource, beyond what Google and Ray report.

    Attributes:
        name: Its name.
        trouble: What it was last seen waiting for; empty if nothing.
        since: Start of the trouble, in seconds since the epoch.
        is_wanted: It was deleted for repair, and its successor has not been seen READY yet.
        body: Body that recreates it.
        identity: Identity of the last deleted one.
        deleted_at: Times of its deletions for repair that count towards limits.
        refusals: Number of its consecutive refused or failed creations.
        refusal: Text of the last one.
        retry_at: Time of the next try.
        denied: After a refusal that waiting does not mend: the refused kind of body, or ``*`` for any.
    """

    name: str
    trouble: str = ""
    since: float | None = None
    is_wanted: bool = False
    body: Mapping[str, Any] | None = None
    identity: str = ""
    deleted_at: tuple[float, ...] = ()
    refusals: int = 0
    refusal: str = ""
    retry_at: float = 0.0
    denied: str = ""

    def with_trouble(self, trouble: str, now: float) -> SliceRecord:
        """Return the record of the slice, seen in this trouble at ``now``."""
        if trouble == self.trouble:
            return self
        return replace(self, trouble=trouble, since=now if trouble else None)

    def with_creation(self) -> SliceRecord:
        """Return the record once its creation was accepted."""
        return replace(self, refusals=0, refusal="", retry_at=0.0, denied="")

    def with_refusal(self, refusal: str, retry_at: float, denied: str = "") -> SliceRecord:
        """Return the record after a refused creation."""
        return replace(self, refusals=self.refusals + 1, refusal=refusal, retry_at=retry_at, denied=denied)

    def with_deletion(self, deletion: Deletion) -> SliceRecord:
        """Return the record with one more deletion."""
        is_counted = deletion.is_certain or deletion.at in self.deleted_at  # two repairs may have settled at once
        counted = self.deleted_at if is_counted else (*self.deleted_at, deletion.at)
        if deletion.body is None:
            return replace(self, deleted_at=counted)
        return replace(self, deleted_at=counted, is_wanted=True, body=deletion.body, identity=deletion.identity)

    def notes(self) -> dict[str, Any]:
        """Return the fields for the notes; empty if there are none."""
        return {key: getattr(self, key) for key in _NOTE_FIELDS} if self.trouble or self.refusals else {}


class SliceRecords:
    """Records in one folder: a path, or a URL that fsspec understands."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/")
        self._fs, self._root = file_system_at(self.folder)
        self._files: dict[str, list[Deletion]] = {}

    def read(self) -> dict[str, SliceRecord]:
        """Return all records, by slice name.

        Raises:
            SliceRecordError: One of them is damaged.
        """
        self._fs.invalidate_cache()
        try:
            listed = [entry for entry in self._fs.ls(self._root, detail=True) if entry["name"].endswith(_SUFFIX)]
        except FileNotFoundError:
            listed = []
        for entry in listed:
            _check_file(entry["name"], entry["type"] == "file" and not entry.get("islink"), entry["size"] or 0)
        paths = [entry["name"] for entry in listed]
        with ThreadPoolExecutor(_READERS, thread_name_prefix="slice-records") as pool:
            texts = list(pool.map(self._text, paths))
        found = {path: text for path, text in zip(paths, texts, strict=True) if text is not None}
        notes = {path: text for path, text in found.items() if path.endswith(f"/{_NOTES}")}
        self._files = {path: _parse(path, text, _deletions_of) for path, text in found.items() if path not in notes}
        records: dict[str, SliceRecord] = {}
        for path, text in notes.items():
            records.update(_parse(path, text, _notes_of))
        for deletion in sorted(self._deletions(), key=lambda deletion: deletion.at):
            records[deletion.name] = records.get(deletion.name, SliceRecord(deletion.name)).with_deletion(deletion)
        return records

    def write_notes(self, records: Mapping[str, SliceRecord]) -> None:
        """Write the notes of these slices; those of all others stay unchanged."""
        path = f"{self._root}/{_NOTES}"
        text = self._text(path)
        known = _parse(path, text, _notes_of) if text is not None else {}
        notes = {name: record.notes() for name, record in {**known, **records}.items()}
        self._write(path, {name: note for name, note in notes.items() if note})

    def write_deletions(self, deletions: Sequence[Deletion]) -> None:
        """Record these deletions durably before they are sent."""
        if deletions:
            path = f"{self._root}/{_DELETED}{uuid.uuid4().hex}{_SUFFIX}"
            self._write(path, [asdict(deletion) for deletion in deletions])

    def forget(self, name: str, now: float) -> None:
        """Record that a slice of this name is no longer wanted."""
        self.read()
        self.settle(lambda deletion: deletion.name == name, now)

    def settle(self, is_back: Callable[[Deletion], bool], now: float) -> None:
        """Remove read bodies of slices that are back, and deletions that are long over."""
        deletions = self._deletions()
        remaining = [
            replace(deletion, body=None) if deletion.body is not None and is_back(deletion) else deletion
            for deletion in _newest(deletions)
        ]
        remaining = [
            deletion
            for deletion in remaining
            if deletion.body is not None or (deletion.at > now - KEEP_S and not deletion.is_certain)
        ]
        if remaining == deletions and len(self._files) <= _MAX_FILES:
            return
        self.write_deletions(remaining)
        for path in self._files:
            remove_file(self._fs, path)  # another repair may have done the same

    def _deletions(self) -> list[Deletion]:
        return [deletion for file in self._files.values() for deletion in file]

    def _text(self, path: str) -> bytes | None:
        try:
            if isinstance(self._fs, LocalFileSystem):
                itself = os.lstat(path)  # a pipe is never opened: that would block
                _check_file(path, stat.S_ISREG(itself.st_mode), itself.st_size)
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:  # removed since the listing
            return None

    def _write(self, path: str, fields: Any) -> None:
        text = json.dumps(fields, sort_keys=True, indent=1).encode()
        if isinstance(self._fs, LocalFileSystem):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_private_file(path, text)
        else:
            self._fs.pipe_file(path, text)


def _newest(deletions: Sequence[Deletion]) -> list[Deletion]:
    """Return the deletions, with the body only in each slice's newest: there may be many tries."""
    newest = {
        (deletion.name, deletion.identity): deletion
        for deletion in sorted(deletions, key=lambda deletion: deletion.at)
        if deletion.body is not None
    }
    return [
        deletion if newest.get((deletion.name, deletion.identity)) is deletion else replace(deletion, body=None)
        for deletion in deletions
    ]


def _notes_of(fields: Any) -> dict[str, SliceRecord]:
    _check(isinstance(fields, dict), "it is not a JSON object")
    return {name: SliceRecord(name, **_fields(entry, _NOTE_KINDS, ())) for name, entry in fields.items()}


def _deletions_of(fields: Any) -> list[Deletion]:
    _check(isinstance(fields, list), "it is not a list")
    return [Deletion(**_fields(entry, _DELETION_KINDS, ("name", "identity", "at"))) for entry in fields]


def _fields(value: Any, kinds: Mapping[str, Callable[[Any], bool]], required: Sequence[str]) -> dict[str, Any]:
    """Return an entry's fields. An unknown field is refused: its information must not be lost."""
    _check(isinstance(value, dict), "an entry is not an object")
    _check(value.keys() <= kinds.keys(), "an entry has an unknown field")
    for name in required:
        _check(name in value, f"an entry has no {name}")
    for name, field in value.items():
        _check(kinds[name](field), f"{name} of an entry is invalid")
    return dict(value)


def _check(is_right: bool, flaw: str) -> None:
    if not is_right:
        raise ValueError(flaw)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_moment(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MAX_TIME_S


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_REFUSALS


_NOTE_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "trouble": _is_text,
    "since": lambda value: value is None or _is_moment(value),
    "refusals": _is_count,
    "refusal": _is_text,
    "retry_at": _is_moment,
    "denied": _is_text,
}
_DELETION_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "name": _is_text,
    "identity": _is_text,
    "at": _is_moment,
    "body": lambda value: value is None or isinstance(value, dict),
    "is_certain": lambda value: isinstance(value, bool),
}


def _check_file(path: str, is_file: bool, size: int) -> None:
    flaw = "" if is_file else "it is no regular file"
    if is_file and size > _MAX_BYTES:
        flaw = f"it has more than {_MAX_BYTES:,} bytes"
    if flaw:
        raise _damaged(path, flaw)


def _parse(path: str, text: bytes, parse: Callable[[Any], T]) -> T:
    try:
        fields = json.loads(text)
    except RecursionError:
        raise _damaged(path, "it is nested too deeply") from None
    except ValueError:
        raise _damaged(path, "it holds no JSON, or only the beginning of one") from None
    try:
        return parse(fields)
    except ValueError as flaw:
        raise _damaged(path, str(flaw)) from None


def _damaged(path: str, flaw: str) -> SliceRecordError:
    return SliceRecordError(
        f"The slice record {path} is damaged ({flaw}): check that its slices exist, and remove the file."
    )


class RepairLock:
    """Repair lock of one folder, as one repair sees it.

    Args:
        path: A file that is written by compare-and-swap only.
        read: Reads it, as ``read_stored`` does.
        write: Swaps it, as ``write_if`` does.
        hold_s: Maximum time for which it is held.
        stale_s: Time without a change after which other repairs take it over.
        clock: Seconds, continuing while the machine is suspended.
    """

    def __init__(
        self,
        path: str,
        read: Callable[[str], StoredObject | None] = read_stored,
        write: Callable[[str, str, str | None], StoredObject | None] = write_if,
        *,
        hold_s: float = HOLD_S,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._path = path
        self._read = read
        self._write = write
        self._hold_s = hold_s
        self._stale_s = stale_s
        self._clock = clock
        self._held: StoredObject | None = None
        self._until = 0.0

    @property
    def is_held(self) -> bool:
        """Return whether deletions are still allowed; nothing is read."""
        return self._held is not None and self._clock() < self._until

    def acquire(self) -> bool:
        """Acquire the lock, or renew it for its whole time; False: another repair holds it."""
        began = self._clock()
        existing = self._read(self._path)
        if existing is not None:
            is_own = self._held is not None and existing.tag == self._held.tag
            if not (is_own or existing.age_s >= self._stale_s or _holder(existing.text) == ""):
                self._held = None
                return False
        self._held = self._write(self._path, _text(uuid.uuid4().hex), existing.tag if existing else None)
        self._until = began + self._hold_s
        return self.is_held

    def release(self) -> None:
        """Release the lock, unless another repair has taken it over."""
        held, self._held = self._held, None
        if held is not None:
            self._write(self._path, _text("", of=held.text), held.tag)


def _holder(text: str) -> str | None:
    """Return the holder; None if unreadable: another repair then holds it until it is stale."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    holder = found.get("holder") if isinstance(found, dict) else None
    return holder if isinstance(holder, str) else None


def _text(holder: str, of: str = "") -> str:
    """Return a unique text, so that a reader recognizes its own."""
    return json.dumps({"holder": holder, "before": json.loads(of)["holder"] if of else ""})
