"""Users' jobs survive a restart, whichever user completes it.

The restart reports the jobs that it would abandon before it continues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fleet.fleets import write_fleet
from tests.fleet.lifecycle.filed_jobs import FiledJobs
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager
from tradewind.fleet.lifecycle.inventory import Inventory, VirtualMachine
from tradewind.fleet.lifecycle.job_preservation import (
    AbandonedJobsError,
    BackupNote,
    BadBackupNoteError,
    FleetError,
    JobBackupError,
    JobPreservation,
    JobRestoreError,
    prune_backups,
    this_host,
)
from tradewind.fleet.lifecycle.restart import ClusterRestart
from tradewind.fleet.lock import ClusterLock, HeldClusterLock, LockRecord, LockState
from tradewind.ray_jobs.job_backup import backups_of

NOTE = BackupNote("ada@laptop", "laptop", "/home/ada/backup", ("a", "b"))


class Interruption(Exception):
    pass


@dataclass
class Laptop:
    """One user's machine, which restarts the cluster."""

    who: str
    cluster: FleetCluster
    folder: Path
    dies: str = ""
    told: list[str] = field(default_factory=list)

    @property
    def kept(self) -> FiledJobs:
        return FiledJobs(self.cluster, self.told.append, self.folder / self.who, self.folder / "running")

    @property
    def marker(self) -> ClusterLock:
        return ClusterLock("here", str(self.folder / "marker.json"))

    @property
    def marked(self) -> LockRecord:
        found = self.marker.read()
        assert found is not None
        return found.marker

    def check_restartable(self, *, is_begun: bool) -> None:
        pass

    def inventory(self) -> Inventory:
        return Inventory([VirtualMachine("head", "RUNNING", {"ray-node-type": "head"})])

    def relaunch(self, held: HeldClusterLock) -> None:
        self._die_at("before Ray ends")
        self.kept.end_all()
        self._die_at("after Ray ended")

    def _die_at(self, point: str) -> None:
        if self.dies == point:
            raise Interruption

    def restart(self, kept: FiledJobs | None = None, **options: bool) -> list[str]:
        """Restart the cluster and return the submission IDs of the restored jobs."""
        jobs = JobPreservation(self.cluster, kept or self.kept, self.told.append, **options)
        restart = ClusterRestart(cast(ClusterManager, self), self.marker, jobs, self.told.append)
        return [one.new or "" for one in restart.run(holder=self.who)]

    def prune(self) -> None:
        """Delete obsolete backups, as every command does first."""
        prune_backups("here", self.kept, self.marker.read(), self.told.append)

    def backups(self) -> list[str]:
        return [job.job for backup in backups_of(self.kept.folder) for job in backup.jobs()]


@pytest.fixture
def ada(tmp_path: Path) -> Laptop:
    (tmp_path / "running").write_text("a b")
    return Laptop("ada@laptop", load_fleet(write_fleet(tmp_path)).cluster(), tmp_path)


@pytest.fixture
def bob(ada: Laptop) -> Laptop:
    return Laptop("bob@desk", ada.cluster, ada.folder)


@contextmanager
def interrupted(laptop: Laptop, point: str) -> Iterator[str]:
    """Interrupt a restart by ``laptop`` at ``point``; yield the suffix of the restored submission IDs."""
    laptop.dies = point
    with pytest.raises(Interruption):
        laptop.restart()
    laptop.dies = ""
    yield f"-r-{laptop.marked.run[:8]}"


def test_jobs_come_back_once_and_nothing_of_them_is_left(ada: Laptop) -> None:
    assert ada.restart() == ada.kept.running and len(ada.kept.running) == 2
    assert ada.backups() == [] and ada.marked.state is LockState.DONE and ada.marked.details["kept_jobs"] == []


def test_jobs_named_like_restored_ones_get_distinct_ids(ada: Laptop) -> None:
    """Ray would refuse the second of equal IDs, and the restart would take it for an earlier submission."""
    ada.kept.file.write_text("sweep-r-1 sweep-r-2 sweep-r-0123abcd sweep")
    assert len(set(ada.restart())) == 4 == len(ada.kept.running)


def test_too_many_jobs_for_lock_are_refused_before_touching_ray(ada: Laptop) -> None:
    ada.kept.file.write_text(" ".join(str(number) for number in range(5001)))
    with pytest.raises(FleetError, match="5,001 unmanaged jobs"):
        ada.restart()
    assert len(ada.kept.running) == 5001
    ada.kept.file.write_text("a b")
    assert len(ada.restart()) == 2, "it goes on once there are fewer"


@pytest.mark.parametrize("point", ["before Ray ends", "after Ray ended"])
def test_who_was_interrupted_goes_on_with_what_was_kept(ada: Laptop, point: str) -> None:
    with interrupted(ada, point) as ending:
        assert ada.marked.details == {
            "kept_by": "ada@laptop", "kept_on": this_host(), "kept_in": str(ada.kept.folder / ending[3:]),
            "kept_jobs": ["a", "b"],
        }  # fmt: skip
        assert ada.restart() == [f"a{ending}", f"b{ending}"] == ada.kept.running


def test_other_user_resumes_restart_while_all_jobs_still_run(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends") as ending:
        bob.kept.file.write_text("a b c")
        assert bob.restart() == [f"a{ending}", f"b{ending}", f"c{ending}"]


def test_other_user_must_confirm_abandoning_backed_up_jobs(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "after Ray ended") as ending:
        bob.kept.file.write_text("c")
        with pytest.raises(AbandonedJobsError) as refused:
            bob.restart()
        assert str(refused.value) == (
            f"Cluster here: continuing here leaves 2 jobs that ada@laptop backed up on {this_host()} in "
            f"{ada.kept.folder / ending[3:]} (a, b) behind. Run the same command there, or add --abandon-kept-jobs, "
            f"after which only 'tradewind cluster restore-jobs here --backup {ending[3:]}' there restores them."
        )
        assert bob.kept.running == ["c"] and bob.marked.state is LockState.LEFT, "Ray was not touched"
        assert bob.restart(may_abandon=True) == [f"c{ending}"]
        assert any(told.startswith("Left behind: 2 jobs that ada@laptop") for told in bob.told)
        assert ada.backups() == ["a", "b"], "they can still be brought back, under the same ids"
        [backup] = ada.kept.backups()
        assert [one.new for one in ada.kept.restore(backup)] == [f"a{ending}", f"b{ending}"]


# ---- backups on the machine of the user who began


def test_backup_is_pruned_after_other_user_finished_restart(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends"):
        ada.prune()
        assert ada.backups() == ["a", "b"], "it may still be needed"
        bob.restart()
        [copy] = ada.kept.backups()
        assert any(f"on {this_host()} stays in {copy.folder} until this is finished" in line for line in bob.told)
        ada.prune()
    assert ada.backups() == [] and not copy.folder.exists()
    assert ada.told[-1] == f"Deleted {copy.folder}: restart of here was finished by bob@desk."


def test_what_somebody_left_behind_is_not_deleted_and_named(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "after Ray ended"):
        bob.kept.file.write_text("b c")
        bob.restart(may_abandon=True)
        bob.prune()
        assert "has jobs of here" not in " ".join(bob.told)
        ada.prune()
        assert ada.backups() == ["a"], "b is back, and nobody but Ada has a"
        assert re.search(r"has jobs of here \(a\), with .* 'tradewind cluster restore-jobs here --backup", ada.told[-1])
        ada.prune()
        assert ada.backups() == ["a"]


def test_backup_not_named_in_lock_is_never_pruned(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends"):
        bob.restart()
    bob.restart()
    ada.prune()
    assert ada.backups() == ["a", "b"] and "(a, b), with their variables in clear" in ada.told[-1]


def test_the_next_restart_deletes_it_too(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends"):
        bob.restart()
    [copy] = ada.kept.backups()
    ada.restart()
    assert not copy.folder.exists()


def test_first_user_returning_restores_all_jobs_or_is_told(ada: Laptop, bob: Laptop) -> None:
    """Ada's backup has the same name as Bob's and fewer jobs."""
    with interrupted(ada, "before Ray ends") as ending:
        bob.kept.file.write_text("a b c")
        with interrupted(bob, "after Ray ended"), pytest.raises(AbandonedJobsError, match=r"bob@desk .* \(c\) behind"):
            ada.restart()
        assert bob.restart() == [f"a{ending}", f"b{ending}", f"c{ending}"]


def test_restart_without_preserve_still_restores_earlier_backup(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends") as ending:
        ada.kept.file.write_text("a b c")
        with pytest.raises(AbandonedJobsError):
            bob.restart(is_to_keep=False)
        assert ada.restart(is_to_keep=False) == [f"a{ending}", f"b{ending}"]


def test_what_ended_by_itself_is_missed_by_nobody(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends") as ending:
        bob.kept.file.write_text("b")
        kept = bob.kept
        kept.over = frozenset({"a"})
        assert bob.restart(kept) == [f"b{ending}"]


def test_a_backup_that_somebody_removed_is_missed(ada: Laptop) -> None:
    """This also holds on a machine with the same host name as another."""
    with interrupted(ada, "after Ray ended"):
        [backup] = ada.kept.backups()
        backup.delete()
        with pytest.raises(AbandonedJobsError, match="2 jobs that ada@laptop backed up"):
            ada.restart()


def test_failed_job_backup_aborts_restart_unless_made_before(ada: Laptop) -> None:
    silent = ada.kept
    silent.is_silent = True
    with pytest.raises(
        JobBackupError, match="silent. Ray was not touched. If its jobs may end, run 'tradewind cluster r"
    ):
        ada.restart(silent)
    assert ada.kept.running == ["a", "b"]
    with interrupted(ada, "after Ray ended"), pytest.raises(JobRestoreError):
        ada.restart(silent)
    assert ada.marked.phase == "bringing jobs back" and ada.backups() == ["a", "b"]
    assert len(ada.restart()) == 2


def test_what_does_not_come_back_stays_kept_and_is_named(ada: Laptop) -> None:
    kept = ada.kept
    kept.lost = frozenset({"b"})
    assert ada.restart(kept)[1:] == [""] and ada.backups() == ["b"]
    assert ada.marked.details["kept_jobs"] == ["b"] and ada.marked.state is LockState.DONE
    ada.prune()
    assert ada.backups() == ["b"] and "(b), with their variables in clear" in ada.told[-1]


def test_nothing_is_read_or_deleted_where_a_marker_says(ada: Laptop, tmp_path: Path) -> None:
    """Other writers of the bucket cannot make this machine submit or remove files of another folder."""
    theirs = FiledJobs(ada.cluster, print, tmp_path / "elsewhere", ada.kept.file).back_up("abc").backup
    with interrupted(ada, "after Ray ended"):
        found = ada.marker.read()
        assert found is not None
        note = BackupNote("ada@laptop", this_host(), str(theirs.folder), ("a", "b")).to_details()
        ada.marker.swap(found.marker.changed(0.0, details=note, phase="bringing jobs back"), found.tag)
        [own] = ada.kept.backups()
        own.delete()
        with pytest.raises(AbandonedJobsError):
            ada.restart()
        assert theirs.exists


# ---- the note


def test_a_note_says_whose_jobs_lie_where_and_holds_nothing_else() -> None:
    assert (
        BackupNote.of({**NOTE.to_details(), "other": 1}, "here") == NOTE and BackupNote.of({"other": 1}, "here") is None
    )
    assert NOTE.sentence(["a"]) == "1 job that ada@laptop backed up on laptop in /home/ada/backup (a)"
    many = NOTE.sentence(list("abcdefgh"))
    assert many.startswith("8 jobs ") and many.endswith("(a, b, c, d, e, 3 more)")


@pytest.mark.parametrize(
    "details",
    [
        {"kept_on": "laptop", "kept_in": "/x"},
        {**NOTE.to_details(), "kept_jobs": "ab"},
        {**NOTE.to_details(), "kept_jobs": [1]},
        {**NOTE.to_details(), "left_behind": "c"},
        {**NOTE.to_details(), "kept_by": None},
        {**NOTE.to_details(), "kept_in": "x" * 5000},
    ],
)
def test_a_note_that_cannot_be_read_loses_nothing(details: dict[str, Any]) -> None:
    with pytest.raises(
        BadBackupNoteError, match="Cluster here: its lock does not say which unmanaged jobs were backed up"
    ):
        BackupNote.of(details, "here")
