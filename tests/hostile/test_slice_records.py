"""Malformed slice repair records: one sentence with the file name; a bad lock counts as held."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tradewind.cloud_tpu.repair.records import STALE_S, RepairLock, SliceRecord, SliceRecordError, SliceRecords

DELETION: Final[dict[str, Any]] = {"name": "a", "identity": "1", "at": 5.0, "body": {}, "is_certain": False}
NAMES: Final = ("deleted-1.json", "notes.json")
BAD_TEXTS: Final = (b"", b'["\xff"]', b"null", b"7", b"[" * 100_000, b"[" + b"9" * 5000 + b"]")
BAD_DELETIONS: Final[list[dict[str, Any]]] = [
    {"name": 5}, {"name": None}, {"name": []}, {"identity": 1}, {"at": "5"}, {"at": None}, {"at": True},
    {"at": float("nan")}, {"at": float("inf")}, {"at": -1}, {"at": 1e12}, {"body": []}, {"body": "x"},
    {"is_certain": "no"}, {"other": 1},
]  # fmt: skip
BAD_NOTES: Final[list[dict[str, Any]]] = [
    {"since": "5"}, {"since": float("nan")}, {"since": -1}, {"trouble": 5}, {"refusals": "3"}, {"refusals": 10**12},
    {"refusals": -1}, {"retry_at": None}, {"retry_at": float("inf")}, {"denied": {}}, {"body": {}}, {"name": "b"},
]  # fmt: skip
BAD_RECORDS: Final = [
    *((name, text) for name in NAMES for text in BAD_TEXTS),
    *((NAMES[0], json.dumps([DELETION, DELETION | wrong]).encode()) for wrong in BAD_DELETIONS),
    *((NAMES[1], json.dumps({"a": wrong}).encode()) for wrong in BAD_NOTES),
]


def _check_refused(folder: Path, name: str) -> None:
    with pytest.raises(SliceRecordError) as refusal:
        SliceRecords(str(folder)).read()
    assert name in str(refusal.value) and "\n" not in str(refusal.value)


def test_malformed_slice_record_is_refused_by_file_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, content) in enumerate(BAD_RECORDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(content)
        with subtests.test(f"{name} {content[:80]!r}"):
            _check_refused(folder, name)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 65 << 20)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, partial(os.symlink, "/etc/passwd"), _sparse], ids=["pipe", "folder", "link", "large"]
)
@pytest.mark.parametrize("name", NAMES)
def test_path_that_is_no_slice_record_file_is_never_opened(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    _check_refused(tmp_path, name)
    if name == "notes.json":
        with pytest.raises(SliceRecordError, match="damaged"):
            SliceRecords(str(tmp_path)).write_notes({"a": SliceRecord("a", trouble="gone")})


@dataclass(frozen=True)
class StoredLock:
    """The stored object of the repair lock."""

    text: str
    age_s: float
    tag: str = "1"


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", "{}", '{"holder": null}', '{"holder": 0}', "[" * 100_000])
def test_unreadable_repair_lock_is_foreign_until_stale(text: str) -> None:
    def write(path: str, new: str, tag: str | None) -> StoredLock:
        return StoredLock(new, 0.0, "2")

    assert not RepairLock("lock", lambda path: StoredLock(text, 1.0), write).acquire()
    assert RepairLock("lock", lambda path: StoredLock(text, STALE_S), write).acquire()
