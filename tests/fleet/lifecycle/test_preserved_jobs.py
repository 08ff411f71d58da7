"""Users' jobs survive a restart, whichever user completes it; none is abandoned without a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from tests.fleet.lifecycle.filed_jobs import FiledJobs, OneHeadManager
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager
from tradewind.fleet.lifecycle.job_preservation import (
    AbandonedJobsError,
    BackupNote,
    FleetError,
    JobBackupError,
    JobPreservation,
    JobRestoreError,
    prune_backups,
    this_host,
)
from tradewind.fleet.lifecycle.restart import ClusterRestart
from tradewind.fleet.lock import ClusterLock, LockRecord, LockState
from tradewind.ray_jobs.job_backup import backups_of


class Interruption(Exception):
    pass


@dataclass
class Laptop:
    """One user's machine, which restarts the cluster."""

    who: str
    cluster: FleetCluster
    folder: Path
    dies_at: str = ""
    messages: list[str] = field(default_factory=list)

    @property
    def jobs(self) -> FiledJobs:
        return FiledJobs(self.cluster, self.messages.append, self.folder / self.who, self.folder / "running")

    @property
    def lock(self) -> ClusterLock:
        return ClusterLock("here", str(self.folder / "marker.json"))

    @property
    def record(self) -> LockRecord:
        found = self.lock.read()
        assert found is not None
        return found.marker

    def relaunch(self) -> None:
        self._die_at("before Ray ends")
        self.jobs.end_all()
        self._die_at("after Ray ended")

    def _die_at(self, point: str) -> None:
        if self.dies_at == point:
            raise Interruption

    def restart(self, filed: FiledJobs | None = None, **options: bool) -> list[str]:
        """Restart the cluster and return the submission IDs of the restored jobs."""
        jobs = JobPreservation(self.cluster, filed or self.jobs, self.messages.append, **options)
        manager = cast(ClusterManager, OneHeadManager(self.relaunch))
        restart = ClusterRestart(manager, self.lock, jobs, self.messages.append)
        return [one.new or "" for one in restart.run(holder=self.who)]

    def prune(self) -> None:
        """Delete obsolete backups, as every command does first."""
        prune_backups("here", self.jobs, self.lock.read(), self.messages.append)

    def backups(self) -> list[str]:
        return [job.job for backup in backups_of(self.jobs.folder) for job in backup.jobs()]


@pytest.fixture
def ada(cluster: FleetCluster, tmp_path: Path) -> Laptop:
    (tmp_path / "running").write_text("a b")
    return Laptop("ada@laptop", cluster, tmp_path)


@pytest.fixture
def bob(ada: Laptop) -> Laptop:
    return Laptop("bob@desk", ada.cluster, ada.folder)


@contextmanager
def interrupted(laptop: Laptop, point: str) -> Iterator[str]:
    """Interrupt a restart by ``laptop`` at ``point``; yield the suffix of the restored submission IDs."""
    laptop.dies_at = point
    with pytest.raises(Interruption):
        laptop.restart()
    laptop.dies_at = ""
    yield f"-r-{laptop.record.run[:8]}"


def test_jobs_are_restored_once_and_the_backup_deleted(ada: Laptop) -> None:
    assert ada.restart() == ada.jobs.running and len(ada.jobs.running) == 2
    assert ada.backups() == ada.record.details["kept_jobs"] == [] and ada.record.state is LockState.DONE


def test_jobs_named_like_restored_ones_get_distinct_ids(ada: Laptop) -> None:
    """Ray would refuse the second of equal IDs, and the restart would take it for an earlier submission."""
    ada.jobs.file.write_text("sweep-r-1 sweep-r-2 sweep-r-0123abcd sweep")
    assert len(set(ada.restart())) == 4 == len(ada.jobs.running)


def test_too_many_jobs_for_lock_are_refused_before_touching_ray(ada: Laptop) -> None:
    ada.jobs.file.write_text(" ".join(str(number) for number in range(5001)))
    with pytest.raises(FleetError, match="5,001 unmanaged jobs"):
        ada.restart()
    assert len(ada.jobs.running) == 5001
    ada.jobs.file.write_text("a b")
    assert len(ada.restart()) == 2, "it goes on once there are fewer"


@pytest.mark.parametrize("point", ["before Ray ends", "after Ray ended"])
def test_interrupted_user_resumes_from_the_backup(ada: Laptop, point: str) -> None:
    with interrupted(ada, point) as ending:
        assert ada.record.details == {
            "kept_by": "ada@laptop", "kept_on": this_host(), "kept_in": str(ada.jobs.folder / ending[3:]),
            "kept_jobs": ["a", "b"],
        }  # fmt: skip
        assert ada.restart() == [f"a{ending}", f"b{ending}"] == ada.jobs.running


def test_other_user_resumes_restart_while_all_jobs_still_run(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends") as ending:
        bob.jobs.file.write_text("a b c")
        assert bob.restart() == [f"a{ending}", f"b{ending}", f"c{ending}"]


def test_other_user_must_confirm_abandoning_backed_up_jobs(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "after Ray ended") as ending:
        bob.jobs.file.write_text("c")
        with pytest.raises(AbandonedJobsError) as refused:
            bob.restart()
        assert str(refused.value) == (
            f"Cluster here: continuing here leaves 2 jobs that ada@laptop backed up on {this_host()} in "
            f"{ada.jobs.folder / ending[3:]} (a, b) behind. Run the same command there, or add --abandon-kept-jobs, "
            f"after which only 'tradewind cluster restore-jobs here --backup {ending[3:]}' there restores them."
        )
        assert bob.jobs.running == ["c"] and bob.record.state is LockState.LEFT, "Ray was not touched"
        assert bob.restart(may_abandon=True) == [f"c{ending}"]
        assert any(line.startswith("Left behind: 2 jobs that ada@laptop") for line in bob.messages)
        assert ada.backups() == ["a", "b"], "they can still be brought back, under the same ids"
        [backup] = ada.jobs.backups()
        assert [one.new for one in ada.jobs.restore(backup)] == [f"a{ending}", f"b{ending}"]


@pytest.mark.parametrize("command", ["status", "restart"])
def test_backup_is_pruned_after_other_user_finished_restart(command: str, ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends"):
        ada.prune()
        assert ada.backups() == ["a", "b"], "it may still be needed"
        bob.restart()
        [copy] = ada.jobs.backups()
        assert any(f"on {this_host()} stays in {copy.folder} until this is finished" in line for line in bob.messages)
        ada.prune() if command == "status" else ada.restart()
    assert ada.backups() == [] and not copy.folder.exists()
    assert f"Deleted {copy.folder}: restart of here was finished by bob@desk." in ada.messages


def test_abandoned_jobs_stay_in_their_backup_and_are_named(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "after Ray ended"):
        bob.jobs.file.write_text("b c")
        bob.restart(may_abandon=True)
        bob.prune()
        assert "has jobs of here" not in " ".join(bob.messages)
        ada.prune()
        assert ada.backups() == ["a"], "b is back, and only Ada has a"
        assert re.search(r"has jobs of here \(a\), with .* 'tradewind cluster restore-jobs here --b", ada.messages[-1])
        ada.prune()
        assert ada.backups() == ["a"]


def test_backup_not_named_in_lock_is_never_pruned(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends"):
        bob.restart()
    bob.restart()
    ada.prune()
    assert ada.backups() == ["a", "b"] and "(a, b), with their variables in clear" in ada.messages[-1]


def test_first_user_returning_restores_all_jobs_or_is_told(ada: Laptop, bob: Laptop) -> None:
    """Ada's backup has the same name as Bob's and fewer jobs."""
    with interrupted(ada, "before Ray ends") as ending:
        bob.jobs.file.write_text("a b c")
        with interrupted(bob, "after Ray ended"), pytest.raises(AbandonedJobsError, match=r"bob@desk .* \(c\) behind"):
            ada.restart()
        assert bob.restart() == [f"a{ending}", f"b{ending}", f"c{ending}"]


def test_restart_without_preserve_still_restores_earlier_backup(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends") as ending:
        ada.jobs.file.write_text("a b c")
        with pytest.raises(AbandonedJobsError):
            bob.restart(is_to_keep=False)
        assert ada.restart(is_to_keep=False) == [f"a{ending}", f"b{ending}"]


def test_job_that_ended_by_itself_is_not_reported_abandoned(ada: Laptop, bob: Laptop) -> None:
    with interrupted(ada, "before Ray ends") as ending:
        bob.jobs.file.write_text("b")
        jobs = bob.jobs
        jobs.over = frozenset({"a"})
        assert bob.restart(jobs) == [f"b{ending}"]


def test_removed_backup_is_reported(ada: Laptop) -> None:
    """This also holds on a machine with the same host name as another."""
    with interrupted(ada, "after Ray ended"):
        [backup] = ada.jobs.backups()
        backup.delete()
        with pytest.raises(AbandonedJobsError, match="2 jobs that ada@laptop backed up"):
            ada.restart()


def test_failed_job_backup_aborts_restart_unless_made_before(ada: Laptop) -> None:
    silent = ada.jobs
    silent.is_silent = True
    with pytest.raises(
        JobBackupError, match="silent. Ray was not touched. If its jobs may end, run 'tradewind cluster r"
    ):
        ada.restart(silent)
    assert ada.jobs.running == ["a", "b"]
    with interrupted(ada, "after Ray ended"), pytest.raises(JobRestoreError):
        ada.restart(silent)
    assert ada.record.phase == "bringing jobs back" and ada.backups() == ["a", "b"]
    assert len(ada.restart()) == 2


def test_jobs_that_are_not_restored_stay_in_the_backup(ada: Laptop) -> None:
    jobs = ada.jobs
    jobs.lost = frozenset({"b"})
    assert ada.restart(jobs)[1:] == [""] and ada.backups() == ["b"]
    assert ada.record.details["kept_jobs"] == ["b"] and ada.record.state is LockState.DONE
    ada.prune()
    assert ada.backups() == ["b"] and "(b), with their variables in clear" in ada.messages[-1]


def test_folder_named_in_a_lock_is_neither_read_nor_deleted(ada: Laptop, tmp_path: Path) -> None:
    """Other writers of the bucket cannot make this machine submit or remove files of another folder."""
    theirs = FiledJobs(ada.cluster, print, tmp_path / "elsewhere", ada.jobs.file).back_up("abc").backup
    with interrupted(ada, "after Ray ended"):
        found = ada.lock.read()
        assert found is not None
        note = BackupNote("ada@laptop", this_host(), str(theirs.folder), ("a", "b")).to_details()
        ada.lock.swap(found.marker.changed(0.0, details=note, phase="bringing jobs back"), found.tag)
        [own] = ada.jobs.backups()
        own.delete()
        with pytest.raises(AbandonedJobsError):
            ada.restart()
        assert theirs.exists
