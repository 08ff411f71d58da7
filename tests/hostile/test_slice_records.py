"""Malformed slice repair records: one sentence with the file name; a bad lock counts as held."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tradewind.cloud_tpu.repair.records import STALE_S, RepairLock, SliceRecord, SliceRecordError, SliceRecords

DELETION: Final[dict[str, Any]] = {"name": "a", "identity": "1", "at": 5.0, "body": {}, "is_certain": False}
BAD_TEXTS: Final = {
    "empty": b"",
    "not-utf-8": b'["\xff"]',
    "null": b"null",
    "a-number": b"7",
    "deep": b"[" * 100_000,
    "long-integer": b"[" + b"9" * 5000 + b"]",
}
BAD_FIELDS: Final = [
    {"name": 5},
    {"name": None},
    {"name": []},
    {"identity": 1},
    {"at": "5"},
    {"at": None},
    {"at": True},
    {"at": float("nan")},
    {"at": float("inf")},
    {"at": -1},
    {"at": 1e12},
    {"body": []},
    {"body": "x"},
    {"is_certain": "no"},
    {"other": 1},
]
BAD_NOTES: Final = [
    {"since": "5"},
    {"since": float("nan")},
    {"since": -1},
    {"trouble": 5},
    {"refusals": "3"},
    {"refusals": 10**12},
    {"refusals": -1},
    {"retry_at": None},
    {"retry_at": float("inf")},
    {"denied": {}},
    {"body": {}},
    {"name": "b"},
]


def test_what_is_no_record_is_told_in_a_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in ("deleted-1.json", "notes.json"):
        for kind, text in BAD_TEXTS.items():
            with subtests.test(f"{name} {kind}"):
                (tmp_path / name).write_bytes(text)
                _is_told(tmp_path, name)
        (tmp_path / name).unlink()


def test_a_deletion_of_wrong_types_is_told_in_a_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for changed in BAD_FIELDS:
        with subtests.test(str(changed)):
            (tmp_path / "deleted-1.json").write_text(json.dumps([DELETION, DELETION | changed]))
            _is_told(tmp_path, "deleted-1.json")


def test_a_note_of_wrong_types_is_told_in_a_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for note in BAD_NOTES:
        with subtests.test(str(note)):
            (tmp_path / "notes.json").write_text(json.dumps({"a": note}))
            _is_told(tmp_path, "notes.json")


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path), lambda path: _sparse(path, 65 << 20)],
    ids=["pipe", "folder", "link", "large"],
)
@pytest.mark.parametrize("name", ["deleted-1.json", "notes.json"])
def test_path_that_is_no_slice_record_file_is_never_opened(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    _is_told(tmp_path, name)
    if name == "notes.json":
        with pytest.raises(SliceRecordError, match="damaged"):
            SliceRecords(str(tmp_path)).write_notes({"a": SliceRecord("a", trouble="gone")})


@dataclass(frozen=True)
class There:
    """The stored object of the repair lock."""

    text: str
    age_s: float
    tag: str = "1"


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", "{}", '{"holder": null}', '{"holder": 0}', "[" * 100_000])
def test_unreadable_repair_lock_is_foreign_until_stale(text: str) -> None:
    def write(path: str, new: str, tag: str | None) -> There:
        return There(new, 0.0, "2")

    assert not RepairLock("turn", lambda path: There(text, 1.0), write).acquire()
    assert RepairLock("turn", lambda path: There(text, STALE_S), write).acquire()


def _is_told(folder: Path, name: str) -> None:
    with pytest.raises(SliceRecordError) as told:
        SliceRecords(str(folder)).read()
    assert name in str(told.value)
    assert str(told.value).count("\n") == 0


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)
