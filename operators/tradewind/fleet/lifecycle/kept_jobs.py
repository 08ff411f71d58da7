"""The jobs of people outlive a restart of their cluster: they are kept before it, and brought back after it.

Those that belong to Airflow's tasks or to steps are left alone: who waits for them makes the next attempt.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tradewind.fleet.access.reached import reached_anyhow, reached_memory
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.local_paths import state_folder
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError, RayUnreachableError
from tradewind.ray_jobs.keeping.backup import BadBackupError, JobBackup, backups_of, private_folder
from tradewind.ray_jobs.keeping.gcs_reader import GcsReadError, read_head
from tradewind.ray_jobs.keeping.returning import JobReturn, JobsReturn
from tradewind.ray_jobs.nodes.nodes import fetch_nodes

_OVER: Final = ("SUCCEEDED", "STOPPED")
"""Of jobs that nobody has to bring back. One that failed may have done so because its head did not answer."""
_LOOK_S: Final = 2.0
_HEAD_S: Final = 600.0


class JobsNotKeptError(FleetError):
    """The jobs of a cluster could not be kept; it was left as it is."""


class JobsNotBackError(FleetError):
    """The jobs of a cluster could not be brought back yet."""


@dataclass(frozen=True)
class KeptNow:
    """What was kept.

    Attributes:
        over: The ids of jobs that have ended by themselves.
    """

    backup: JobBackup
    over: frozenset[str]


class KeptJobs:
    """Keeps the jobs of one cluster, and brings them back.

    Args:
        root: Below it lie the backups of all clusters.
        reach: Opens the way to the cluster.
        reach_memory: Opens that to its head's memory.
        patience_s: For how long a head may not answer once it was started again.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        tell: Callable[[str], None],
        *,
        root: Path | None = None,
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = reached_anyhow,
        reach_memory: Callable[[FleetCluster], AbstractContextManager[str]] = reached_memory,
        patience_s: float = _HEAD_S,
    ) -> None:
        self.folder = (root or backups_root()) / cluster.project / cluster.name
        self._cluster = cluster
        self._tell = tell
        self._reach = reach
        self._reach_memory = reach_memory
        self._patience_s = patience_s

    def keep(self, restart: str, *, is_anew: bool = True) -> KeptNow:
        """Write down the jobs that run or wait now.

        Args:
            is_anew: Forget what an earlier try has kept; else that stays, but for jobs that have ended by themselves.

        Raises:
            JobsNotKeptError: They cannot be read.
        """
        backup = JobBackup(self.folder / restart)
        private_folder(self.folder)
        if is_anew:
            backup.delete()
        try:
            with tempfile.TemporaryDirectory(prefix=".reading-", dir=self.folder) as aside:
                with self._reach(self._cluster) as there, self._reach_memory(self._cluster) as memory:
                    found = read_head(memory, there.token, Path(aside))
                    heads = asyncio.run(_heads(there))
                    jobs = [replace(job, on_head=job.node_id in heads) for job in found.jobs]
                    over = [job.job for job in RayJobs(there).jobs() if job.status in _OVER]
                backup.add(jobs, found.packages, without=over)
        except (FleetError, RayJobsError, GcsReadError, BadBackupError) as error:
            raise JobsNotKeptError(f"Cluster {self._cluster.name}: its jobs cannot be kept: {error}") from None
        self._tell(f"Kept {_counted(len(jobs))} of people in {backup.folder}.")
        for unkept in found.unkept:
            self._tell(unkept.sentence)
        for job in jobs:
            if job.missing:
                self._tell(f"Job {job.job} cannot be brought back: the head has lost {', '.join(job.missing)}.")
        return KeptNow(backup, frozenset(over))

    def bring_back(
        self,
        backup: JobBackup,
        check: Callable[[], None] = lambda: None,
        note_rest: Callable[[Collection[str]], None] = lambda jobs: None,
    ) -> list[JobReturn]:
        """Bring the jobs of ``backup`` back, and delete it, but for what may still come back.

        Args:
            check: Raises when nothing may be done any more.
            note_rest: Given the ids of what may still come back, before the others are deleted.

        Raises:
            JobsNotBackError: The head does not answer, or the backup cannot be read; both may be mended.
        """
        deadline, found = time.monotonic() + self._patience_s, dict[str, JobReturn]()
        while True:
            check()
            try:
                for one in self._returns(backup, check):
                    if one.job not in found:
                        self._tell(one.sentence)
                    found[one.job] = one
                break
            except BadBackupError as error:
                raise JobsNotBackError(f"Cluster {self._cluster.name}: {error}") from None
            except (FleetError, RayUnreachableError) as error:
                if time.monotonic() >= deadline:
                    raise JobsNotBackError(
                        f"Cluster {self._cluster.name}: its head does not take its jobs back yet: {error} They are "
                        f"kept in {backup.folder}."
                    ) from None
            except RayJobsError as error:
                raise JobsNotBackError(f"Cluster {self._cluster.name}: {error}") from None
            time.sleep(_LOOK_S)
        rest = [one.job for one in found.values() if one.may_come_back]
        note_rest(rest)
        backup.keep_only(rest)
        return list(found.values())

    def backups(self) -> list[JobBackup]:
        """Those that there are of this cluster, the newest last."""
        return backups_of(self.folder)

    def _returns(self, backup: JobBackup, check: Callable[[], None]) -> Iterator[JobReturn]:
        if backup.jobs():
            with self._reach(self._cluster) as there:
                yield from JobsReturn(RayJobs(there), backup, check=check).run()


def backups_root() -> Path:
    """Where this user's backups are: ``$XDG_STATE_HOME/tradewind/jobs``, else ``~/.local/state/tradewind/jobs``."""
    return state_folder() / "jobs"


def this_host() -> str:
    """Which machine a backup lies on."""
    return socket.gethostname()


async def _heads(there: RayCluster) -> set[str]:
    """The head's own nodes, those of its former lives included."""
    async with JobsApi(there) as api:
        return {node.node_id for node in await fetch_nodes(api) if node.is_head}


def _counted(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"
