"""A lock's note of backed-up jobs is bounded for every writer, and reads back as written."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.fleet.lifecycle.job_preservation import BackupNote, BadBackupNoteError, FleetError

NOTE = BackupNote("ada@laptop", "laptop", "/home/ada/backup", ("a", "b"))
DETAILS = NOTE.to_details()


def test_what_was_noted_is_read_again() -> None:
    assert BackupNote.of(DETAILS, "here") == NOTE == NOTE.check("here")
    assert BackupNote.of({"other": 1}, "here") is None
    most = BackupNote("a", "b", "c", tuple(str(number) for number in range(5000)))
    assert BackupNote.of(most.check("here").to_details(), "here") == most


@pytest.mark.parametrize(
    "details",
    [
        {**DETAILS, "kept_jobs": ["a"] * 5001},
        {**DETAILS, "kept_jobs": ["a" * 501]},
        {**DETAILS, "kept_jobs": [["a"]]},
        {**DETAILS, "kept_jobs": {"a": 1}},
        {**DETAILS, "kept_jobs": "ab"},
        {**DETAILS, "kept_by": None},
        {**DETAILS, "kept_in": "a" * 5000},
        {"kept_jobs": ["a"]},
    ],
    ids=lambda details: ascii(details)[-40:],
)
def test_what_is_no_note_or_has_no_end_is_refused(details: dict[str, Any]) -> None:
    with pytest.raises(
        BadBackupNoteError,
        match="Cluster here: its lock does not say which unmanaged jobs were backed up, 5,000 at most.",
    ):
        BackupNote.of(details, "here")


@pytest.mark.parametrize("jobs", [["a"] * 5001, ["ü" * 500] * 200], ids=len)
def test_backup_note_too_large_for_lock_is_refused_before_write(jobs: list[str]) -> None:
    with pytest.raises(FleetError, match="Cluster here: .* unmanaged jobs .* Ray was not touched."):
        BackupNote("a", "b", "c", tuple(jobs)).check("here")


def test_what_others_wrote_into_it_is_told_in_one_line() -> None:
    sentence = BackupNote("ada\n", "\x1b[2J", "/a\rb", ("a\nb", "c" * 500)).sentence(["a\nb", "c" * 500])
    assert sentence.isprintable() and len(sentence) < 300
