"""How a step's task takes its turn: it claims, submits the attempt's job or runs it here, and follows it to its end."""

from __future__ import annotations

import asyncio
import posixpath
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowException

from tradewind.calls.references import CodeFolder
from tradewind.deployment.fleet import refuse_others_clusters
from tradewind.deployment.kill import stop_from_on_kill
from tradewind.links.ray import push_links
from tradewind.ray_jobs.follow.endings import Ending, EndingKind
from tradewind.ray_jobs.follow.outcome import Watch
from tradewind.records.attempts import AttemptError, AttemptOutcome, attempt_folder
from tradewind.records.leases.lease import Lease, Phase
from tradewind.runtime.driver.kept_output import DRIVER_LOG
from tradewind.steps import AirflowWorker
from tradewind.tasks.address import TaskKey
from tradewind.tasks.cluster_slices import refuse_missing_slice_types
from tradewind.tasks.code import code_folder
from tradewind.tasks.errors import (
    PlanOutdatedError,
    StepFailedError,
    StepStoppedError,
    failing_at_once,
    unnamed_deployment,
)
from tradewind.tasks.jobs.following import follow_here, log_last_lines, pause_before_attempt
from tradewind.tasks.steps.endings import job_end, process_ending
from tradewind.tasks.steps.job import claimed_spec, cluster_of_job, connect, demand_of, submit
from tradewind.tasks.steps.losses import after_loss
from tradewind.tasks.steps.plan_wait import skip_what_plan_left_alone
from tradewind.tasks.steps.step_try import StepTry
from tradewind.tasks.steps.story import story_of
from tradewind.tasks.steps.worker_process import run_in_worker
from tradewind.triggers.lease import await_turn_end
from tradewind.triggers.ray_job import DEFAULT_LOG_BYTES, job_logger
from tradewind.triggers.step_job import StepJobTrigger
from tradewind.turns.claims import MissingInputError, Turn, task_name
from tradewind.turns.end import Verdict
from tradewind.turns.protocol import Claimant, EndedJob, Next, TurnProtocol, go_on_after
from tradewind.turns.renewal import renewed_while_claimed
from tradewind.turns.start import Asked, Task
from tradewind.turns.stop import stop_step_job

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster


class TurnTaker(Claimant[dict[str, Any]]):
    """Takes turns for one try of a step's task; the result is the task's XCom."""

    def __init__(self, step_try: StepTry) -> None:
        self._try = step_try
        self._turns = step_try.turns
        self._log = step_try.given.log
        self._has_job = False
        self._followed: tuple[RayCluster, str] | None = None

    def result(self) -> dict[str, Any]:
        """The result, after however many looks and attempts; a task that defers leaves here."""
        return TurnProtocol(self._turns, self).result()

    def result_after(self, job: str, ending: Ending) -> dict[str, Any]:
        """The same for a task that comes back since its ``job`` has ended."""
        return TurnProtocol(self._turns, self).result_after(job, job_end(ending), EndedStepJob(self._try, job, ending))

    def stop_if_person_acted(self) -> None:
        """Stop the job that is followed here, if a person marked or cleared the task."""
        if self._followed is None:
            return
        cluster, job = self._followed
        key, path = TaskKey.of(self._try.context), self._turns.path
        by = asdict(key)
        stop_from_on_kill(lambda: stop_step_job(cluster, job, path, by, job_logger.info), key.address)

    def task(self) -> Task:
        return self._try.task()

    def asked(self) -> Asked:
        return self._try.asked()

    def warn(self, sentence: str) -> None:
        self._log.warning("%s", sentence)

    def finished(self, lease: Lease | None) -> dict[str, Any]:
        return self._try.finish_reused(lease)

    def failure(self, lease: Lease | None) -> StepFailedError:
        return self._try.failure(lease)

    def doubt(self, lease: Lease) -> NoReturn:
        raise unnamed_deployment(self._turns.name, lease, self._turns.by)

    def wait(self, lease: Lease) -> None:
        whose, name = task_name(lease.by), self._turns.name
        self._log.info("Attempt %d at %s is in progress in %s; waiting.", lease.attempt, name, whose)
        self._try.wait(self._turns.path, lease.attempt, is_theirs=True)

    def stop_first(self, lease: Lease) -> None:
        turns = self._turns
        self._log.info("The task was cleared: attempt %d is stopped before the step runs again.", lease.attempt)
        if lease.cluster:
            cluster = connect(turns.step.name, lease.cluster, has_job=True).cluster
            asyncio.run(stop_step_job(cluster, lease.job, turns.path, turns.by, self._log.info))
        else:
            turns.stop(lease)
        asyncio.run(await_turn_end(turns.path, lease.attempt, self._log.info))

    def rejoin(self, lease: Lease) -> dict[str, Any] | Next:
        turns = self._turns
        cluster = cluster_of_job(turns.step.name, lease.cluster, lease.job) if lease.cluster else None
        if cluster is not None:
            self._log.info("Attempt %d at %s joined: Ray job %s.", lease.attempt, turns.name, lease.job)
            return self._follow(cluster, lease)
        if lease.phase is Phase.CLAIMED:
            self._log.info("Attempt %d was claimed by a try that died before it submitted it.", lease.attempt)
            return Next.CLAIM
        self._log.info("Attempt %d is lost; what it left may live on for a while.", lease.attempt)
        self._try.wait(turns.path, lease.attempt, is_theirs=False)
        return Next.LOOK

    def claim(self, over: Lease | None, withdraws: bool) -> Turn | None:
        turns, given, code = self._turns, self._try.given, self._code
        if given.may_overtake_plan:
            skip_what_plan_left_alone(self._try.context, given.plan_task_id)
        self._has_job = over is not None and self._may_have_job(over)
        cluster = "" if self._is_in_worker else given.settings.cluster_of(given.step)
        if cluster:
            connect(turns.step.name, cluster, has_job=self._has_job)  # nothing is claimed for one that cannot be used
        with failing_at_once():
            if cluster:
                task: Any = self._try.context["task"]
                refuse_others_clusters([cluster], task.owner, f"Step {turns.step.name!r}")
            refuse_missing_slice_types([turns.step], given.settings.cluster_of)
            return turns.claim(
                over,
                lambda: claimed_spec(turns.step, code),
                withdraws=withdraws,
                cluster=cluster,
                code_commit=CodeFolder(code).commit(),
            )

    def missing_input(self, error: MissingInputError) -> None:
        if error.at_work is None:
            raise PlanOutdatedError(f"{error} Clear the plan task too, and it will be made.") from error
        self._log.info("%s It is being made; waiting.", error)
        self._try.wait(error.output_path, error.at_work.attempt, is_theirs=False)

    def run(self, turn: Turn) -> dict[str, Any] | Next:
        turns, attempt = self._turns, turn.attempt
        if self._is_in_worker:
            self._log.info("Attempt %d at %s runs in this worker.", attempt.number, turns.name)
            return self._judge(attempt.job, process_ending(run_in_worker(attempt, self._code, job_logger)))
        try:
            with renewed_while_claimed(turns.path, attempt.job):  # a large folder takes its time to travel
                cluster = submit(attempt, self._code, has_job=self._has_job)
        except AirflowException:  # nobody has to wait until this claim runs out
            turns.end_unstarted(attempt.job, AttemptOutcome.LOST)
            raise
        self._log.info("Attempt %d at %s submitted as Ray job %s.", attempt.number, turns.name, attempt.job)
        return self._follow(cluster, turn.held.lease)

    def _follow(self, cluster: RayCluster, lease: Lease) -> dict[str, Any] | Next:
        """Wait for the end of the job of a turn, in the triggerer or here."""
        given, path = self._try.given, self._turns.path
        push_links(self._try.context["ti"], cluster, lease.job)
        watch = Watch(lease.job, demand_of(lease.job, given.step))
        full_log = posixpath.join(attempt_folder(path, lease.attempt), DRIVER_LOG)
        if given.defer_job is not None:
            given.defer_job(
                StepJobTrigger(
                    lease.cluster,
                    watch.to_json(),
                    log_bytes=DEFAULT_LOG_BYTES,
                    full_log=full_log,
                    owns_job=True,
                    payload={"output_path": path, "job": lease.job, "progress": asdict(self._try.progress)},
                )
            )
        self._followed = (cluster, lease.job)
        with renewed_while_claimed(path, lease.job):
            ending = follow_here(cluster, watch, DEFAULT_LOG_BYTES, full_log).ending
        return self._judge(lease.job, ending)

    def _judge(self, job: str, ending: Ending) -> dict[str, Any] | Next:
        return go_on_after(self._turns, job, job_end(ending), EndedStepJob(self._try, job, ending))

    def _may_have_job(self, lease: Lease) -> bool:
        """Whether this task may have a job at work, or had one in this try."""
        return self._try.owns(lease) and (lease.is_live or lease.by.get("try") == self._turns.by.get("try"))

    @property
    def _code(self) -> Path:
        return code_folder(self._try.context["dag"])

    @property
    def _is_in_worker(self) -> bool:
        return isinstance(self._try.given.step.resources, AirflowWorker)


class EndedStepJob(EndedJob[dict[str, Any]]):
    """The job of an attempt that a try followed has ended."""

    def __init__(self, step_try: StepTry, job: str, ending: Ending) -> None:
        self._try = step_try
        self._turns = step_try.turns
        self._log = step_try.given.log
        self._job = job
        self._ending = ending
        self.fault = AttemptError(ending.kind.name, ending.sentence, "\n".join(ending.last_lines))

    def made(self, lease: Lease) -> dict[str, Any]:
        self._log.info("Step %r is finished: %s", self._turns.step.name, self._turns.path)
        self._tell_story(lease)
        return self._try.finish_made(lease)

    def failure(self, verdict: Verdict, lease: Lease) -> Exception:
        turns, name = self._turns, repr(self._turns.step.name)
        match verdict:
            case Verdict.STOPPED:
                return StepStoppedError(f"Step {name}: Ray job {self._job} was stopped; clear the task to try again.")
            case Verdict.CHANGED:
                return StepFailedError(
                    f"Step {name}: what attempt {lease.attempt} was to run has been changed below {turns.path} since "
                    "it was claimed, so nothing was run. Look who may write there, and clear the task to try again."
                )
            case Verdict.CONTRADICTION:
                return StepFailedError(
                    f"Step {name}: Ray says that job {self._job} succeeded, but its lease was never committed; its "
                    "output is not used. Look at the job's log, and clear the task to try again."
                )
            case Verdict.FAULTY_JOB:
                return StepFailedError(self._sentence(lease))
        self._tell_story(lease)
        return self._try.failure(lease)

    def show_log(self) -> None:
        log_last_lines(self._log, self._ending)

    def lost(self, lease: Lease, *, may_live_on: bool) -> Next:
        sentence = self._sentence(lease)
        if self._ending.kind is EndingKind.NOT_STARTED:
            self._log.info("%s It queues again.", sentence)
            return Next.LOOK
        losses = self._try.progress.losses
        self._try.progress = after_loss(self._turns, lease, self._ending, self._try.progress)
        if may_live_on:
            self._log.warning("%s The next attempt follows when its lease has run out.", sentence)
            self._try.wait(self._turns.path, lease.attempt, is_theirs=False)
            return Next.LOOK
        pause_s = pause_before_attempt(losses)
        self._log.warning("%s The next attempt follows in %.0f s.", sentence, pause_s)
        time.sleep(pause_s)
        return Next.LOOK

    def _sentence(self, lease: Lease) -> str:
        return f"Step {self._turns.step.name!r}, attempt {lease.attempt}: {self._ending.sentence}"

    def _tell_story(self, lease: Lease) -> None:
        """One line about the slices or hosts of an attempt that had to start again."""
        if story := story_of(self._turns.path, lease.attempt, self._turns.step.step.resources):
            self._log.info("Attempt %d at %s: %s", lease.attempt, self._turns.name, story)
