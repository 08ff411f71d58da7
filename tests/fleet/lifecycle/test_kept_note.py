"""A lock's note of backed-up jobs is bounded for every writer, and reads back as written."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.fleet.lifecycle.job_preservation import BackupNote, BadBackupNoteError, FleetError

NOTE = BackupNote("ada@laptop", "laptop", "/home/ada/backup", ("a", "b"))
DETAILS = NOTE.to_details()


def test_backup_note_is_read_as_written() -> None:
    assert BackupNote.of({**DETAILS, "other": 1}, "here") == NOTE == NOTE.check("here")
    assert BackupNote.of({"other": 1}, "here") is None
    largest = BackupNote("a", "b", "c", tuple(str(number) for number in range(5000)))
    assert BackupNote.of(largest.check("here").to_details(), "here") == largest


@pytest.mark.parametrize(
    "details",
    [
        *({**DETAILS, "kept_jobs": jobs} for jobs in (["a"] * 5001, ["a" * 501], [["a"]], [1], {"a": 1}, "ab")),
        *({**DETAILS, **changed} for changed in ({"kept_by": None}, {"kept_in": "a" * 5000}, {"left_behind": "c"})),
        {"kept_jobs": ["a"]},
        {"kept_on": "laptop", "kept_in": "/x"},
    ],
    ids=lambda details: ascii(details)[-40:],
)
def test_invalid_or_unbounded_note_is_refused(details: dict[str, Any]) -> None:
    says = "Cluster here: its lock does not say which unmanaged jobs were backed up, 5,000 at most."
    with pytest.raises(BadBackupNoteError, match=says):
        BackupNote.of(details, "here")


@pytest.mark.parametrize("jobs", [["a"] * 5001, ["ü" * 500] * 200], ids=len)
def test_backup_note_too_large_for_lock_is_refused_before_write(jobs: list[str]) -> None:
    with pytest.raises(FleetError, match="Cluster here: .* unmanaged jobs .* Ray was not touched."):
        BackupNote("a", "b", "c", tuple(jobs)).check("here")


def test_sentence_of_a_note_is_one_short_line() -> None:
    assert NOTE.sentence(["a"]) == "1 job that ada@laptop backed up on laptop in /home/ada/backup (a)"
    many = NOTE.sentence(list("abcdefgh"))
    assert many.startswith("8 jobs ") and many.endswith("(a, b, c, d, e, 3 more)")
    hostile = BackupNote("ada\n", "\x1b[2J", "/a\rb", ("a\nb", "c" * 500)).sentence(["a\nb", "c" * 500])
    assert hostile.isprintable() and len(hostile) < 300
