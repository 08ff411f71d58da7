"""``tradewind jobs submit``: a job runs on, whatever becomes of the command, unless ``--auto-stop`` was given."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.interrupts import Interrupted, Interrupts
from tradewind.cli.jobs.clusters import ends_with_us, options_for
from tradewind.cli.jobs.named_cluster import NamedCluster
from tradewind.cli.jobs.submission import command_words, id_for, job_to_submit, ray_command
from tradewind.cli.output import say, write_lines
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobRefusedError, RayUnreachableError
from tradewind.ray_jobs.follow.endings import EndingKind
from tradewind.ray_jobs.follow.outcome import Watch, await_outcome
from tradewind.ray_jobs.nodes.demand import Demand
from tradewind.ray_jobs.request import JobRequest
from tradewind.timeouts import within

STOPPING_S = 600.0
"""How long ``--auto-stop`` waits for the job's end; a cluster that is gone must not hold its caller for ever."""


def check_usage(arguments: argparse.Namespace) -> None:
    """Refuse what makes no sense on any cluster, before one is looked for.

    Raises:
        UsageError: The options do not go together, or no command stands behind ``--``.
    """
    command_words(arguments.command)
    if arguments.no_wait and (arguments.auto_stop or arguments.timeout):
        option = "--auto-stop" if arguments.auto_stop else "--timeout"
        raise UsageError(f"--no-wait and {option} do not go together: with --no-wait, nobody is there to stop the job.")


def submit(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Submit the job and follow it; 0 if it succeeded.

    Raises:
        UsageError: The job or the cluster is not for this person.
        CommandError: Something that is needed cannot be had.
        RayJobsError: The job is no good, or the cluster refuses it or does not answer.
    """
    request = job_to_submit(arguments, id_for(arguments), Path.cwd(), say)
    _check_owner(arguments.named, request.metadata.get("user", ""))
    submission = Submission(
        request,
        cluster,
        interrupts,
        options_for(arguments.named, cluster),
        is_id_new=arguments.submission_id is None,
        is_address_ours=ends_with_us(arguments.named, cluster),
    )
    return submission.run(no_wait=arguments.no_wait, auto_stop=arguments.auto_stop, timeout_s=arguments.timeout)


def _check_owner(named: NamedCluster | None, user: str) -> None:
    """Refuse a cluster of the fleet that is for the jobs of somebody else."""
    cluster = named.of_fleet if named else None
    if cluster is not None and cluster.owner not in (None, user):
        raise UsageError(f"{cluster.not_for(user or 'nobody')} Name another cluster with --cluster.")


class Submission:
    """One job on its way.

    Args:
        where: The options that mean the cluster on another command line.
        is_id_new: Nobody else can have used this id: whatever job has it is ours.
        is_address_ours: Nobody else can use the cluster's address, so it is not shown.
    """

    def __init__(
        self,
        request: JobRequest,
        cluster: RayCluster,
        interrupts: Interrupts,
        where: Sequence[str],
        *,
        is_id_new: bool,
        is_address_ours: bool = False,
    ) -> None:
        self._request = request
        self._job = request.submission_id
        self._cluster = cluster
        self._interrupts = interrupts
        self._where = where
        self._is_ours = is_id_new
        self._is_address_ours = is_address_ours
        self._has_ended = False

    def run(self, *, no_wait: bool, auto_stop: bool, timeout_s: float | None) -> int:
        """Submit it, and follow it unless ``no_wait``; the exit code."""
        from tradewind.ray_jobs.client import RayJobs

        jobs = RayJobs(self._cluster)
        if not self._is_address_ours:
            say(f"The same with Ray's own command: {ray_command(self._request, self._cluster)}")
        with self._stopping() if auto_stop else self._leaving():
            try:
                is_new = jobs.submit_or_attach(self._request)
            except RayJobRefusedError:
                self._has_ended = True
                raise
            except RayUnreachableError as error:
                raise RayUnreachableError(f"{error} Job {self._job} may have been submitted nevertheless.") from None
            self._is_ours |= is_new
            verb = "submitted" if is_new else "was submitted before"
            where = f" on {self._cluster.name}." if self._is_address_ours else f": {self._cluster.job_url(self._job)}"
            say(f"Job {self._job} {verb}{where}")
            if no_wait:
                write_lines([self._job])
                self._has_ended = True
                return 0
            return self._followed(timeout_s)

    def _followed(self, timeout_s: float | None) -> int:
        from tradewind.ray_jobs.logs.lines import JobLog

        deadline = None if timeout_s is None else time.time() + timeout_s
        watch = Watch(self._job, Demand.of(self._request), deadline=deadline)
        log = JobLog(write_lines, max_bytes=None)
        told: list[str] = []

        def notice(sentence: str) -> None:
            told.append(sentence)
            say(sentence)

        outcome = self._interrupts.run(await_outcome(self._cluster, watch, log, notice))
        self._has_ended = True
        if outcome.ending.sentence not in told:
            say(outcome.ending.sentence)
        return 0 if outcome.ending.kind is EndingKind.SUCCEEDED else 1

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Who interrupts is told that the job goes on."""
        try:
            yield
        except Interrupted:
            say(
                f"Job {self._job} goes on. Follow it with '{self._command('logs -f')}', stop it with "
                f"'{self._command('stop')}'."
            )
            raise

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """However this ends, the job has ended afterwards."""
        try:
            yield
        finally:
            if not self._has_ended and self._is_ours:
                self._stop()
            elif not self._has_ended:
                say(f"Job {self._job} was not submitted by this command, so it goes on.")

    def _stop(self) -> None:
        say(f"Stopping job {self._job}.")
        try:
            found = self._interrupts.run(self._stopped())
        except (TimeoutError, Interrupted) as error:
            say(f"Job {self._job} was told to stop, but may run still: '{self._command('stop')}' waits for its end.")
            if isinstance(error, Interrupted):
                raise
            raise CommandError(f"Job {self._job} did not stop within {STOPPING_S:.0f} s.") from None
        if found is not None:
            say(f"Job {self._job} is {found}.")

    async def _stopped(self) -> str | None:
        from tradewind.ray_jobs.api import JobsApi
        from tradewind.ray_jobs.follow.stopping import stop_job

        async with within(STOPPING_S), JobsApi(self._cluster) as api:
            details = await stop_job(api, self._job, say)
        return details.status if details is not None else None

    def _command(self, what: str) -> str:
        return shlex.join(["tradewind", "jobs", *what.split(), *self._where, self._job])
