"""Run attempts of a step: claim the lease, submit the job or run it here, and follow it to its end.

An attempt can be lost. Then the next one follows within the same try, or the task ends if another attempt cannot help.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout

from tradewind.attempts.cancellation import stop_step_job
from tradewind.attempts.decisions import JobResult, NextAction, RerunRequest, TaskIdentity
from tradewind.attempts.protocol import (
    AttemptHandler,
    AttemptProtocol,
    Continuation,
    JobOutcomeHandler,
    resolve_finished_job,
)
from tradewind.attempts.renewal import renewing_while_claimed
from tradewind.attempts.spec_digest import EXIT_SPEC_CHANGED, STDIN_ARGUMENT, as_stdin_file, driver_arguments
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease, describe_claimer
from tradewind.deployment.fleet import check_cluster_access
from tradewind.deployment.task_instances import stop_from_on_kill
from tradewind.links.ray import push_links
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, FollowRequest
from tradewind.ray_jobs.worker_python import EXIT_UNUSABLE
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, attempt_folder
from tradewind.records.lease import Lease, Phase
from tradewind.runtime.driver.log_capture import DRIVER_LOG
from tradewind.runtime.driver.process_guard import guard_command
from tradewind.runtime.run_step import NOTHING_LEFT, SUPERSEDED
from tradewind.serialization.references import CodeFolder
from tradewind.steps import AirflowWorker
from tradewind.tasks.address import TaskKey
from tradewind.tasks.cluster_slices import refuse_missing_slice_types
from tradewind.tasks.code import code_folder
from tradewind.tasks.errors import (
    PlanOutdatedError,
    StepFailedError,
    StepLostError,
    StepStoppedError,
    StepTimedOutError,
    failing_without_retry,
    unnamed_deployment,
)
from tradewind.tasks.jobs.errors import LOSSES, MAX_LOSSES
from tradewind.tasks.jobs.following import follow_in_worker, log_last_lines, pause_before_attempt
from tradewind.tasks.plan_wait import skip_if_not_planned
from tradewind.tasks.pod_summary import pod_summary
from tradewind.tasks.step_job import check_cluster, claimed_spec, cluster_of_job, connect, demand_of, submit
from tradewind.tasks.step_try import Progress, StepTry
from tradewind.triggers.lease import wait_for_release
from tradewind.triggers.ray_job import DEFAULT_LOG_BYTES, job_logger
from tradewind.triggers.step_job import StepJobTrigger, timed_out

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster

_DATABASE: Final = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_NO_DATABASE: Final = "sqlite://"
"""Blocks database access like Airflow's own address for tasks, which would break a child's import of Airflow."""
MAX_ATTEMPTS_WITHOUT_DRIVER: Final = 3
"""After this many consecutive attempts whose driver never started, a dying node is an unlikely cause."""
_RESULTS: Final = {
    EndingKind.SUCCEEDED: JobResult.SUCCEEDED,
    EndingKind.RUNTIME_ENV: JobResult.UNRUNNABLE,
    EndingKind.INFEASIBLE: JobResult.UNRUNNABLE,
    EndingKind.TIMED_OUT: JobResult.STOPPED,
    EndingKind.QUEUE_TIMED_OUT: JobResult.UNRUNNABLE,
    EndingKind.NOT_STARTED: JobResult.NOT_STARTED,
    EndingKind.STOPPED: JobResult.STOPPED,
}


def to_job_result(ending: Ending) -> JobResult:
    """Convert an ending to a job result. Ray's user error is the driver's error here, so it is a loss."""
    if ending.exit_code == EXIT_SPEC_CHANGED:
        return JobResult.SPEC_CHANGED
    if ending.exit_code == EXIT_UNUSABLE:
        return JobResult.UNRUNNABLE
    if ending.exit_code == SUPERSEDED:
        return JobResult.CHILDREN_ENDED if ending.last_lines[-1:] == (NOTHING_LEFT,) else JobResult.SUPERSEDED
    return _RESULTS.get(ending.kind, JobResult.LOST)


def process_ending(exit_code: int) -> Ending:
    """Return the ending of a driver that ran in the worker."""
    if exit_code == 0:
        return Ending(EndingKind.SUCCEEDED, "Its driver in the worker succeeded.", exit_code)
    sentence = f"Its driver in the worker ended with exit code {exit_code} and recorded no reason."
    return Ending(EndingKind.USER_ERROR, sentence, exit_code)


def after_loss(step_lease: StepLease, lease: Lease, ending: Ending, progress: Progress) -> Progress:
    """Return the try's progress after the loss of the attempt of ``lease``, whose job had this ``ending``.

    Raises:
        StepLostError: Airflow's next try may succeed.
        StepFailedError: No driver of this step has started. The step itself is not marked as failed.
    """
    name, progress = step_lease.step.name, progress.after_loss(lease)
    attempt = step_lease.attempt(lease.attempt)
    if attempt is not None and attempt.outcome is AttemptOutcome.LOST and attempt.error is not None:
        raise StepLostError(
            f"Step {name!r}, attempt {lease.attempt}: {attempt.error.message} Airflow's next try makes a new attempt."
        )
    if progress.losses > MAX_LOSSES:
        raise StepLostError(
            f"Step {name!r}, attempt {lease.attempt}: {ending.sentence} This try has lost {progress.losses} attempts. "
            "Airflow's next try makes a new attempt."
        )
    if progress.without_keeper >= MAX_ATTEMPTS_WITHOUT_DRIVER:
        error = StepLostError if ending.kind in LOSSES else StepFailedError
        raise error(
            f"Step {name!r}, attempt {lease.attempt}: {ending.sentence} The drivers of {progress.without_keeper} "
            "attempts in a row ended before they owned the lease. The log of the last one is above; check it and its "
            "node."
        )
    return progress


def run_in_worker(attempt: Attempt, code_folder: Path, log: logging.Logger) -> int:
    """Run the driver of one attempt as a process that dies with this worker; its output goes to ``log``.

    The driver gets the attempt from this process: a text that another writer puts into the bucket never runs here.

    Returns:
        The exit code, or minus the signal that ended it.
    """
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_step", *driver_arguments(STDIN_ARGUMENT, attempt)]
    env = {**os.environ, _DATABASE: _NO_DATABASE} if _DATABASE in os.environ else None
    with (
        as_stdin_file(attempt) as attempt_file,
        subprocess.Popen(
            guard_command(command, watch=[], with_input=True),
            cwd=code_folder,
            env=env,
            stdin=attempt_file,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as driver,
    ):
        assert driver.stdout is not None
        try:
            for line in driver.stdout:
                log.info("%s", line.rstrip("\n"))
        except BaseException:  # the task's timeout, or Ctrl-C in ``airflow dags test``
            driver.terminate()
            raise
    return driver.returncode


class StepAttemptRunner(AttemptHandler[dict[str, Any]]):
    """Runs the attempts of one try of a step's task; the result is the task's XCom."""

    def __init__(self, step_try: StepTry) -> None:
        self._try = step_try
        self._step_lease = step_try.step_lease
        self._log = step_try.arguments.log
        self._has_job = False
        self._followed: tuple[RayCluster, str] | None = None

    def result(self) -> dict[str, Any]:
        """Return the result, after any number of polls and attempts; a task that defers leaves here."""
        return AttemptProtocol(self._step_lease, self).result()

    def result_after(self, job: str, ending: Ending) -> dict[str, Any]:
        """Return the result for a task that resumes because its ``job`` ended."""
        return AttemptProtocol(self._step_lease, self).result_after(
            job, to_job_result(ending), StepJobOutcomeHandler(self._try, job, ending)
        )

    def stop_if_user_acted(self) -> None:
        """Stop the followed job if a user marked or cleared the task."""
        if self._followed is None:
            return
        cluster, job = self._followed
        key, path = TaskKey.of(self._try.context), self._step_lease.path
        by = asdict(key)
        stop_from_on_kill(lambda: stop_step_job(cluster, job, path, by, job_logger.info), key.address)

    def task(self) -> TaskIdentity:
        return self._try.task()

    def rerun_request(self) -> RerunRequest:
        return self._try.rerun_request()

    def warn(self, sentence: str) -> None:
        self._log.warning("%s", sentence)

    def finished(self, lease: Lease | None) -> dict[str, Any]:
        return self._try.finish_reused(lease)

    def failure(self, lease: Lease | None) -> StepFailedError:
        return self._try.failure(lease)

    def ownership_unknown(self, lease: Lease) -> NoReturn:
        raise unnamed_deployment(self._step_lease.name, lease, self._step_lease.by)

    def wait(self, lease: Lease) -> None:
        claimer, name = describe_claimer(lease.by), self._step_lease.name
        self._log.info("Attempt %d at %s is in progress in %s. Waiting for its end.", lease.attempt, name, claimer)
        self._try.wait(self._step_lease.path, lease.attempt, is_theirs=True)

    def cancel_previous(self, lease: Lease) -> None:
        step_lease = self._step_lease
        self._log.info("The task was cleared. Stopping attempt %d before the step runs again.", lease.attempt)
        if lease.cluster:
            cluster = connect(step_lease.step.name, lease.cluster, has_job=True).cluster
            asyncio.run(stop_step_job(cluster, lease.job, step_lease.path, step_lease.by, self._log.info))
        else:
            step_lease.stop(lease)
        asyncio.run(wait_for_release(step_lease.path, lease.attempt, self._log.info))

    def reattach(self, lease: Lease) -> dict[str, Any] | Continuation:
        step_lease = self._step_lease
        cluster = cluster_of_job(step_lease.step.name, lease.cluster, lease.job) if lease.cluster else None
        if cluster is not None:
            self._log.info("Attempt %d at %s joined: Ray job %s.", lease.attempt, step_lease.name, lease.job)
            return self._follow(cluster, lease)
        if lease.phase is Phase.CLAIMED:
            self._log.info("Attempt %d was claimed by a try that died before it submitted it.", lease.attempt)
            return Continuation.RECLAIM
        self._log.info("Attempt %d is lost. Waiting until its lease is stale.", lease.attempt)
        self._try.wait(step_lease.path, lease.attempt, is_theirs=False)
        return Continuation.RECHECK

    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        step_lease, arguments, code = self._step_lease, self._try.arguments, self._code
        step, cluster_of = step_lease.step, arguments.settings.cluster_of
        if arguments.may_overtake_plan:
            skip_if_not_planned(self._try.context, arguments.plan_task_id)
        # It may have a running job, or had one in this try.
        self._has_job = (
            over is not None
            and self._try.owns(over)
            and (over.is_live or over.by.get("try") == step_lease.by.get("try"))
        )
        cluster = "" if self._is_in_worker else cluster_of(arguments.step)
        if cluster:
            check_cluster(step.name, cluster, has_job=self._has_job)  # no claim for an unusable cluster
        with failing_without_retry():
            if cluster:
                task: Any = self._try.context["task"]
                check_cluster_access([cluster], task.owner, f"Step {step.name!r}")
            refuse_missing_slice_types([step], cluster_of)
            return step_lease.claim(
                over,
                lambda: claimed_spec(step, code),
                withdraws=withdraws,
                cluster=cluster,
                code_commit=CodeFolder(code).commit(),
            )

    def missing_input(self, error: MissingInputError) -> None:
        if error.at_work is None:
            raise PlanOutdatedError(f"{error} Clear the plan task too, so that the run makes it.") from error
        self._log.info("%s An attempt is making it. Waiting for its end.", error)
        self._try.wait(error.output_path, error.at_work.attempt, is_theirs=False)

    def run(self, claimed: ClaimedAttempt) -> dict[str, Any] | Continuation:
        step_lease, attempt = self._step_lease, claimed.attempt
        if self._is_in_worker:
            self._log.info("Attempt %d at %s runs in this worker.", attempt.number, step_lease.name)
            try:
                ending = process_ending(run_in_worker(attempt, self._code, job_logger))
            except AirflowTaskTimeout:  # raised once; what follows has all the time it needs
                ending = timed_out(attempt.job)
            return self._resolve(attempt.job, ending)
        try:
            with renewing_while_claimed(step_lease.path, attempt.job):  # uploading a large folder takes time
                cluster = submit(attempt, self._code, has_job=self._has_job)
        except (AirflowException, AirflowTaskTimeout):  # release the claim now instead of letting it expire
            step_lease.end_unstarted(attempt.job, AttemptOutcome.LOST)
            raise
        self._log.info("Attempt %d at %s submitted as Ray job %s.", attempt.number, step_lease.name, attempt.job)
        return self._follow(cluster, claimed.held.lease)

    def _follow(self, cluster: RayCluster, lease: Lease) -> dict[str, Any] | Continuation:
        """Wait for the end of an attempt's job, in the triggerer or here."""
        arguments, path = self._try.arguments, self._step_lease.path
        push_links(self._try.context["ti"], cluster, lease.job)
        request = FollowRequest(lease.job, demand_of(lease.job, arguments.step))
        full_log = posixpath.join(attempt_folder(path, lease.attempt), DRIVER_LOG)
        if arguments.defer_job is not None:
            arguments.defer_job(
                StepJobTrigger(
                    lease.cluster,
                    request.to_json(),
                    log_bytes=DEFAULT_LOG_BYTES,
                    full_log=full_log,
                    owns_job=True,
                    payload={
                        "output_path": path,
                        "job": lease.job,
                        "progress": asdict(self._try.progress),
                        "by": self._step_lease.by,
                        "deadline": self._try.deadline,
                    },
                )
            )
        self._followed = (cluster, lease.job)
        try:
            with renewing_while_claimed(path, lease.job):
                ending = follow_in_worker(cluster, request, DEFAULT_LOG_BYTES, full_log).ending
        except AirflowTaskTimeout:
            asyncio.run(stop_step_job(cluster, lease.job, path, self._step_lease.by, job_logger.info))
            ending = timed_out(lease.job)
        return self._resolve(lease.job, ending)

    def _resolve(self, job: str, ending: Ending) -> dict[str, Any] | Continuation:
        return resolve_finished_job(
            self._step_lease, job, to_job_result(ending), StepJobOutcomeHandler(self._try, job, ending)
        )

    @property
    def _code(self) -> Path:
        return code_folder(self._try.context["dag"])

    @property
    def _is_in_worker(self) -> bool:
        return isinstance(self._try.arguments.step.resources, AirflowWorker)


class StepJobOutcomeHandler(JobOutcomeHandler[dict[str, Any]]):
    """Handles the end of an attempt's job that a try followed."""

    def __init__(self, step_try: StepTry, job: str, ending: Ending) -> None:
        self._try = step_try
        self._step_lease = step_try.step_lease
        self._log = step_try.arguments.log
        self._job = job
        self._ending = ending
        self.fault = AttemptError(ending.kind.name, ending.sentence, "\n".join(ending.last_lines))

    def succeeded(self, lease: Lease) -> dict[str, Any]:
        self._log.info("Step %r is finished: %s", self._step_lease.step.name, self._step_lease.path)
        self._log_pod_summary(lease)
        return self._try.finish_made(lease)

    def failure(self, action: NextAction, lease: Lease) -> Exception:
        name, path = repr(self._step_lease.step.name), self._step_lease.path
        match action:
            case NextAction.STOPPED if self._ending.kind is EndingKind.TIMED_OUT:
                return StepTimedOutError(
                    f"Step {name}, attempt {lease.attempt} was stopped: it exceeded its task's execution_timeout. "
                    "Clear the task to try again."
                )
            case NextAction.STOPPED:
                return StepStoppedError(f"Step {name}: Ray job {self._job} was stopped. Clear the task to try again.")
            case NextAction.SPEC_CHANGED:
                return StepFailedError(
                    f"Step {name}: the spec of attempt {lease.attempt} was changed below {path} after the claim, so "
                    "nothing was run. Check which users can write there, and clear the task to try again."
                )
            case NextAction.CONTRADICTION:
                return StepFailedError(
                    f"Step {name}: Ray says that job {self._job} succeeded, but its lease was never committed, so its "
                    "output is not used. Check the job's log, and clear the task to try again."
                )
            case NextAction.UNRUNNABLE_JOB:
                return StepFailedError(self._sentence(lease))
        self._log_pod_summary(lease)
        return self._try.failure(lease)

    def show_log(self) -> None:
        log_last_lines(self._log, self._ending)

    def lost(self, lease: Lease, *, may_survive: bool) -> Continuation:
        sentence = self._sentence(lease)
        if self._ending.kind is EndingKind.NOT_STARTED:
            self._log.info("%s It queues again.", sentence)
            return Continuation.RECHECK
        losses = self._try.progress.losses
        self._try.progress = after_loss(self._step_lease, lease, self._ending, self._try.progress)
        if may_survive:
            self._log.warning("%s The next attempt follows when its lease is stale.", sentence)
            self._try.wait(self._step_lease.path, lease.attempt, is_theirs=False)
            return Continuation.RECHECK
        pause_s = pause_before_attempt(losses)
        self._log.warning("%s The next attempt follows in %.0f s.", sentence, pause_s)
        time.sleep(pause_s)
        return Continuation.RECHECK

    def _sentence(self, lease: Lease) -> str:
        ending = self._ending
        why = ending.last_lines[-1] if ending.exit_code == EXIT_UNUSABLE and ending.last_lines else ending.sentence
        return f"Step {self._step_lease.step.name!r}, attempt {lease.attempt}: {why}"

    def _log_pod_summary(self, lease: Lease) -> None:
        """Log one line about an attempt whose slices or hosts restarted."""
        if summary := pod_summary(self._step_lease.path, lease.attempt, self._step_lease.step.step.resources):
            self._log.info("Attempt %d at %s: %s", lease.attempt, self._step_lease.name, summary)
