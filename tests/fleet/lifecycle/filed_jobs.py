"""Jobs of a cluster as lines of a file, and a manager of its one head, for tests of the code around a head.

The backup is real. A restore adds each line once, as Ray accepts each submission ID once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.lifecycle.inventory import Inventory, VirtualMachine
from tradewind.fleet.lifecycle.job_preservation import BackupResult, ClusterJobBackup, JobBackupError, JobRestoreError
from tradewind.fleet.lock import HeldClusterLock
from tradewind.ray_jobs.job_backup import JobBackup, SavedJob, restored_id
from tradewind.ray_jobs.job_restore import RestoreResult


class OneHeadManager:
    """Stand-in for the cluster manager of a cluster with one head, which a function relaunches."""

    def __init__(self, relaunch: Callable[[], None]) -> None:
        self._relaunch = relaunch

    def check_restartable(self, *, is_begun: bool) -> None:
        pass

    def inventory(self) -> Inventory:
        return Inventory([VirtualMachine("head", "RUNNING", {"ray-node-type": "head"})])

    def relaunch(self, held: HeldClusterLock) -> None:
        held.check()
        self._relaunch()


class FiledJobs(ClusterJobBackup):
    """Back up and restore the jobs in ``file``.

    Attributes:
        over: Jobs that have ended by themselves.
        is_silent: The head does not answer.
        lost: Jobs that this restore does not bring back.
    """

    def __init__(self, cluster: FleetCluster, tell: Callable[[str], None], root: Path, file: Path) -> None:
        super().__init__(cluster, tell, root=root)
        self._name = cluster.name
        self.file = file
        self.over: frozenset[str] = frozenset()
        self.is_silent = False
        self.lost: frozenset[str] = frozenset()

    @property
    def running(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    def end_all(self) -> None:
        """End all jobs, as a restart does."""
        self.file.unlink(missing_ok=True)

    def back_up(self, restart: str, *, is_anew: bool = True) -> BackupResult:
        if self.is_silent:
            raise JobBackupError(f"Cluster {self._name}: its jobs cannot be backed up: the head is silent.")
        backup = JobBackup(self.folder / restart)
        if is_anew:
            backup.delete()
        backup.add([SavedJob(job, "RUNNING", "true") for job in self.running], {}, without=self.over)
        return BackupResult(backup, self.over)

    def restore(
        self,
        backup: JobBackup,
        check: Callable[[], None] = lambda: None,
        note_rest: Callable[[Collection[str]], None] = lambda jobs: None,
    ) -> list[RestoreResult]:
        if self.is_silent:
            raise JobRestoreError(f"Cluster {self._name}: its head does not accept its jobs yet.")
        found = []
        for job in backup.jobs():
            check()
            new = restored_id(job.job, backup.restart)
            if job.job in self.lost:
                found.append(RestoreResult(job.job, why="refused", is_lost=True, is_retryable=True))
                continue
            if new not in self.running:
                self.file.write_text("\n".join([*self.running, new]))
            found.append(RestoreResult(job.job, new))
        rest = [one.job for one in found if one.is_retryable]
        note_rest(rest)
        backup.keep_only(rest)
        return found
