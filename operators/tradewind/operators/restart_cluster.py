"""Restart a cluster of the fleet from a DAG: list the users' jobs that run there, then restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tradewind.fleet.errors import FleetError
from tradewind.operators.fleet import task_fleet
from tradewind.ray_jobs.details import is_managed, owner_of
from tradewind.tasks.errors import BadInputError
from tradewind.text import format_columns

if TYPE_CHECKING:
    from tradewind.fleet.clusters import Fleet, FleetCluster
    from tradewind.ray_jobs.details import JobDetails
    from tradewind.ray_jobs.job_restore import RestoreResult

_HEAD: Final = ("JOB", "STATUS", "OWNER")


class ClusterRestartError(AirflowException):
    """The restart is incomplete; Airflow's next try continues it."""


class JobsLostError(AirflowFailException):
    """The cluster was restarted, and a user's job was not restored."""


class RayClusterPeopleOperator(BaseOperator):
    """Lists users whose jobs a cluster restart would interrupt, so that they can be asked.

    Jobs that Airflow's tasks or steps wait for continue by themselves. Jobs of the user who triggered the run (``user``
    in the job's metadata) are that user's own decision. Neither kind is listed. An unresponsive head may have jobs of
    any user.

    XCom: ``ask``, whether a user must agree, ``jobs``, their ids, and ``table``, a readable table of all of it.

    Args:
        cluster: Its name in the fleet file.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("cluster",)

    def __init__(self, *, cluster: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster

    def execute(self, context: Context) -> dict[str, Any]:
        """Read the cluster's jobs."""
        from tradewind.fleet.access.connect import connected
        from tradewind.ray_jobs.client import RayJobs
        from tradewind.ray_jobs.errors import RayJobsError

        _, [cluster] = task_fleet(self.task_id, [self.cluster])
        run: Any = context["dag_run"]
        try:
            with connected(cluster) as connection:
                jobs = others_jobs(RayJobs(connection).jobs(), getattr(run, "triggering_user_name", None))
        except (FleetError, RayJobsError) as error:
            table = f"The jobs on cluster {cluster.name} and their users are unknown: {error}"
            self.log.warning("%s", table)
            return {"ask": True, "jobs": [], "table": table}
        rows = [(job.job, job.status, owner_of(job.metadata)) for job in jobs]
        no_jobs = f"Cluster {cluster.name} runs no job of another user."
        table = "\n".join(format_columns([_HEAD, *rows])) if rows else no_jobs
        self.log.info("%s", table)
        return {"ask": bool(jobs), "jobs": [job.job for job in jobs], "table": table}


RayClusterUsersOperator = RayClusterPeopleOperator


class RayClusterRestartOperator(BaseOperator):
    """Restarts a cluster of the fleet, as ``tradewind cluster restart`` does.

    It backs up and restores users' jobs; jobs of Airflow's tasks and of steps continue by claim and lease. A try after
    an interrupted one continues it. The worker needs the fleet file with its cluster files, the SSH key that the file
    names, ``ssh``, and Google credentials.

    XCom: ``cluster``, and ``jobs`` with ``job``, ``new`` (its new id, or null) and ``why`` for each user's job.

    Args:
        cluster: Its name in the fleet file.
        preserve_jobs: Restore users' jobs.
        reason: The reason, for the log and the announcement.
        wait: End when Ray has the minimum of slices.
        timeout_s: Maximum time in seconds.
        backups: The folder for job backups, which include the jobs' variables; default: one of the worker's user. If a
            retry may run on another worker, use a folder that both share.
        abandon_kept_jobs: Continue an interrupted restart without the job backups that are elsewhere, as
            ``--abandon-kept-jobs`` does.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("cluster", "preserve_jobs", "reason", "abandon_kept_jobs")

    def __init__(
        self,
        *,
        cluster: str,
        preserve_jobs: bool | str = True,
        reason: str = "",
        wait: bool = True,
        timeout_s: float = 1800.0,
        backups: str | None = None,
        abandon_kept_jobs: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.preserve_jobs = preserve_jobs
        self.reason = reason
        self.wait = wait
        self.timeout_s = timeout_s
        self.backups = backups
        self.abandon_kept_jobs = abandon_kept_jobs

    def execute(self, context: Context) -> dict[str, Any]:
        """Restart the cluster, or continue an interrupted restart."""
        fleet, [cluster] = task_fleet(self.task_id, [self.cluster])
        may_preserve = _as_bool(self.task_id, "preserve_jobs", self.preserve_jobs)
        may_abandon = _as_bool(self.task_id, "abandon_kept_jobs", self.abandon_kept_jobs)
        holder = f"task {self.task_id} of {context['ti'].dag_id}, {context['ti'].run_id}"
        self._announce(f"Cluster {cluster.name} is being restarted. {self.reason}".strip(), cluster)
        try:
            jobs = self._restart(fleet, cluster, holder, may_preserve=may_preserve, may_abandon=may_abandon)
        except FleetError as error:
            raise ClusterRestartError(f"Task {self.task_id!r}: {error}") from error
        result = {"cluster": cluster.name, "jobs": [{"job": job.job, "new": job.new, "why": job.why} for job in jobs]}
        if lost := [job.job for job in jobs if job.is_lost]:
            context["ti"].xcom_push(key="return_value", value=result)  # a task that fails returns nothing
            raise JobsLostError(
                f"Task {self.task_id!r}: not restored on {cluster.name}: {', '.join(lost)}. The log has the reasons."
            )
        return result

    def _restart(
        self, fleet: Fleet, cluster: FleetCluster, holder: str, *, may_preserve: bool, may_abandon: bool
    ) -> list[RestoreResult]:
        from tradewind.fleet.lifecycle.cluster_manager import cluster_manager
        from tradewind.fleet.lifecycle.job_preservation import ClusterJobBackup, JobPreservation
        from tradewind.fleet.lifecycle.restart import ClusterRestart, Readiness
        from tradewind.fleet.lock import ClusterLock

        def log(line: str) -> None:
            self.log.info("%s", line)

        root = Path(self.backups) if self.backups else None
        backup = ClusterJobBackup(cluster, log, root=root)
        jobs = JobPreservation(cluster, backup, log, is_to_keep=may_preserve, may_abandon=may_abandon)
        manager = cluster_manager(cluster, fleet, log, log)
        restored = ClusterRestart(manager, ClusterLock.of(cluster), jobs, log).run(holder=holder)
        if self.wait:
            Readiness(log).wait(cluster, self.timeout_s)
        return restored

    def _announce(self, text: str, cluster: FleetCluster) -> None:
        """Notify users, if this deployment has notifiers; a failing notifier does not stop the restart."""
        from tradewind.deployment.announce import announce, configured_notifiers

        try:
            if configured_notifiers():
                announce(text, [cluster.name], announced_by=f"Airflow, task {self.task_id}")
        except FleetError as error:
            self.log.warning("%s", error)


def others_jobs(jobs: Sequence[JobDetails], user: str | None) -> list[JobDetails]:
    """Return the running or waiting unmanaged jobs that are not those of ``user``."""
    active = (job for job in jobs if not job.has_ended and not is_managed(job.metadata))
    return [job for job in active if not user or owner_of(job.metadata) != user]


def _as_bool(task_id: str, field: str, value: bool | str) -> bool:
    """Parse a template's boolean."""
    parsed = {"true": True, "false": False}.get(str(value).strip().lower())
    if parsed is None:
        raise BadInputError(f"Task {task_id!r}: {field} is {value!r}, neither true nor false.")
    return parsed
