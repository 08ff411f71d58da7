"""Job backups: only the owner can read them, they are complete or absent, and leave no other files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tradewind.ray_jobs.job_backup import BadBackupError, JobBackup, SavedJob, backups_of

PACKAGE = "gcs://_ray_pkg_a.zip"


def job(name: str, status: str = "RUNNING") -> SavedJob:
    return SavedJob(name, status, "true", {"working_dir": PACKAGE, "env_vars": {"KEY": "hidden"}})


def backup(tmp_path: Path) -> JobBackup:
    package = tmp_path / "0"
    package.write_bytes(b"zip")
    one = JobBackup(tmp_path / "state" / "cluster" / "abc")
    one.add([job("a"), job("b")], {PACKAGE: package})
    return one


def test_all_of_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    one = backup(tmp_path)
    one.note_ending("a/../b")
    for found in one.folder.rglob("*"):
        assert stat.S_IMODE(found.stat().st_mode) == (0o700 if found.is_dir() else 0o600), found
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700
    assert one.package(PACKAGE).read_bytes() == b"zip"
    assert one.jobs() == [job("a"), job("b")] and one.restart == "abc"


def test_what_is_added_replaces_what_has_the_same_id(tmp_path: Path) -> None:
    one = backup(tmp_path)
    one.add([job("b", "PENDING"), job("c")], {})
    assert one.jobs() == [job("a"), job("b", "PENDING"), job("c")]
    one.add([], {}, without=["a", "x"])
    assert one.jobs() == [job("b", "PENDING"), job("c")]


def test_what_was_not_written_to_its_end_is_no_backup(tmp_path: Path) -> None:
    one = JobBackup(tmp_path / "abc")
    (one.folder / "packages").mkdir(parents=True)
    (one.folder / ".1.new").write_text("[")
    assert not one.exists and backups_of(tmp_path) == []
    with pytest.raises(BadBackupError, match="There is no backup of jobs in"):
        one.jobs()
    (one.folder / "jobs.json").write_text("[")
    with pytest.raises(BadBackupError, match="it was changed"):
        one.jobs()


def test_backup_shrinks_to_unrestored_jobs_and_then_vanishes(tmp_path: Path) -> None:
    one = backup(tmp_path)
    one.keep_only(["b"])
    assert one.jobs() == [job("b")] and backups_of(one.folder.parent) == [one]
    one.keep_only([])
    assert list(one.folder.parent.iterdir()) == []
    one.delete()


def test_the_ending_of_a_job_is_remembered(tmp_path: Path) -> None:
    one = backup(tmp_path)
    assert not one.has_noted_ending("a")
    one.note_ending("a")
    assert one.has_noted_ending("a") and not one.has_noted_ending("b")


@pytest.mark.parametrize("uri", ["gcs://../../x", "gcs://", "gcs://a/b.zip"])
def test_a_package_lies_in_the_backup_and_nowhere_else(tmp_path: Path, uri: str) -> None:
    with pytest.raises(BadBackupError, match="no package of Ray's"):
        JobBackup(tmp_path).package(uri)


def test_job_ending_is_noted_for_long_or_unusual_job_ids(tmp_path: Path) -> None:
    backup = JobBackup(tmp_path / "1a2b")
    for job in ("a" * 200, "../b", "\ud800"):
        assert not backup.has_noted_ending(job)
        backup.note_ending(job)
        assert backup.has_noted_ending(job)
