"""One step as an Airflow task: takes its turn, follows its job deferred, and reads from the record how it ended."""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context, conf
from airflow.sdk.exceptions import AirflowException

from tradewind.links.ray import RayJobLink, RayLogLink, push_links
from tradewind.operators.assets import emit_made, emit_nothing
from tradewind.operators.claim_notes import ClaimNotes
from tradewind.operators.cluster_slices import refuse_missing_slice_types
from tradewind.operators.code import code_folder
from tradewind.operators.errors import (
    PlanOutdatedError,
    StepFailedError,
    StepStoppedError,
    asking_store,
    failing_at_once,
    unnamed_deployment,
)
from tradewind.operators.following import follow_here, log_last_lines, pause_before_attempt
from tradewind.operators.plan_lines import planned_step, push_unplanned
from tradewind.operators.pod_story import story_of
from tradewind.operators.run_context import ExperimentSettings, heartbeat_s
from tradewind.operators.step_endings import job_end, process_ending
from tradewind.operators.step_job import claimed_spec, cluster_of_job, connect, demand_of, submit
from tradewind.operators.step_losses import after_loss
from tradewind.operators.step_notes import StepNotes
from tradewind.operators.step_progress import Progress
from tradewind.operators.task_key import TaskKey
from tradewind.operators.worker_process import run_in_worker
from tradewind.plans.end import Verdict, judge_end
from tradewind.plans.plan import Decision, PlannedStep
from tradewind.plans.start import (
    Adopt,
    Claim,
    Doubt,
    Finished,
    Rejoin,
    Start,
    StopFirst,
    Task,
    Wait,
    decide_start,
    start_warning,
)
from tradewind.ray_jobs.endings import Ending, EndingKind
from tradewind.ray_jobs.outcome import Watch
from tradewind.records.attempts import AttemptError, Outcome, attempt_folder
from tradewind.records.leases import Lease, Phase
from tradewind.records.turns import complete_commit
from tradewind.runtime.kept_output import DRIVER_LOG
from tradewind.runtime.references import CodeFolder
from tradewind.runtime.step_turns import MissingInputError, StepTurns, Turn, task_name
from tradewind.steps import AirflowWorker, ExecutorStep, ResolvedStep
from tradewind.triggers.claimed_lease import renewed_while_claimed
from tradewind.triggers.kill import stop_from_on_kill
from tradewind.triggers.lease import LeaseTrigger, await_turn_end
from tradewind.triggers.ray_job import DEFAULT_LOG_BYTES, job_logger
from tradewind.triggers.step_job import StepJobTrigger
from tradewind.triggers.step_stop import stop_step_job

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster

_DEFERS_BY_DEFAULT = conf.getboolean("operators", "default_deferrable", fallback=False)


class StepOperator(BaseOperator):
    """Makes one step's output, unless it is there already.

    Args:
        step: The step.
        settings: What the experiment's tasks share.
        plan_task_id: The task whose XCom holds the run's plan; empty in a DAG without one.
        index: The step's place in the plan.
        deferrable: Follow the Ray job in the triggerer, which needs no worker slot.
    """

    ui_color = "#ffe5d9"
    template_fields: Sequence[str] = ()
    operator_extra_links: tuple[BaseOperatorLink, ...] = (RayJobLink(), RayLogLink())

    def __init__(
        self,
        *,
        step: ExecutorStep,
        settings: ExperimentSettings | None = None,
        plan_task_id: str = "plan",
        index: int = 0,
        deferrable: bool = _DEFERS_BY_DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.settings = settings or ExperimentSettings()
        self.plan_task_id = plan_task_id
        self.index = index
        self.deferrable = deferrable
        self._followed: tuple[RayCluster, str, str, TaskKey] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Take the step's turn, or wait for somebody else's; returns the output's path and its attempt."""
        return self._go_round(context, Progress())

    def execute_waited(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Look again, now that nobody is at work any more."""
        return self._go_round(context, Progress.after_wait(event))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Judge the turn whose job has ended, by its lease."""
        ending, progress = Ending.from_json(event["ending"]), Progress(**event["progress"])
        with asking_store(f"Step {self.step.name!r}"):
            seen = self._judge(self._turns(context), event["job"], ending, progress, context)
        return self._go_round(context, seen) if isinstance(seen, Progress) else seen

    def on_kill(self) -> None:
        """Stop the job that this worker follows, if a person marked or cleared the task."""
        if self._followed is not None:
            cluster, job, output_path, key = self._followed
            by = asdict(key)
            stop_from_on_kill(lambda: stop_step_job(cluster, job, output_path, by, job_logger.info), key.address)

    def _go_round(self, context: Context, progress: Progress) -> dict[str, Any]:
        """Look at the step until it has a result: a loop, since a step can queue and be lost many times in one try."""
        with asking_store(f"Step {self.step.name!r}"):
            while isinstance(seen := self._look(context, progress), Progress):
                progress = seen
        return seen

    def _look(self, context: Context, progress: Progress) -> dict[str, Any] | Progress:
        """Read the record and do what it asks for."""
        turns = self._turns(context)
        planned = self._planned(turns.step, context)
        start, lease = self._decide(turns, planned, progress, context)
        match start:
            case Finished():
                if warning := start_warning(start, turns.step):
                    self.log.warning("%s", warning)
                return self._finish_reused(turns, start.lease, context)
            case Adopt():
                raise self._failure(turns, start.lease)
            case Wait():
                whose, attempt = task_name(start.lease.by), start.lease.attempt
                self.log.info("Attempt %d at %s is in progress in %s; waiting.", attempt, turns.name, whose)
                return self._wait(turns.path, attempt, progress, context, is_theirs=True)
            case Doubt():
                raise unnamed_deployment(turns.name, start.lease, turns.by)
            case StopFirst():
                self._stop_first(turns, start.lease)
                return progress
            case Rejoin():
                rejoined = self._rejoin(turns, start.lease, progress, context)
                return self._claim_and_run(turns, lease, False, progress, context) if rejoined is None else rejoined
            case Claim():
                return self._claim_and_run(turns, lease, start.withdraws, progress, context)

    def _claim_and_run(
        self, turns: StepTurns, lease: Lease | None, withdraws: bool, progress: Progress, context: Context
    ) -> dict[str, Any] | Progress:
        """Make the next attempt, or wait for an input; look again if somebody else was faster."""
        has_job = lease is not None and self._has_job(turns, lease, context)
        try:
            turn = self._claim(turns, lease, withdraws, has_job, context)
        except MissingInputError as error:
            if error.at_work is None:
                raise PlanOutdatedError(f"{error} Clear the plan task too, and it will be made.") from error
            self.log.info("%s It is being made; waiting.", error)
            return self._wait(error.output_path, error.at_work.attempt, progress, context, is_theirs=False)
        return progress if turn is None else self._run(turns, turn, has_job, progress, context)

    def _turns(self, context: Context) -> StepTurns:
        with failing_at_once():
            placed = self.settings.resolve([self.step], self.settings.values_of(context))
        by = TaskKey.of(context).claim(context)
        step = placed.experiment.of(self.step)
        return StepTurns(step, by, heartbeat_s(), ClaimNotes(context, by).add, placed.roots)

    def _planned(self, step: ResolvedStep, context: Context) -> PlannedStep | None:
        """The plan's line of the step. Raises ``PlanOutdatedError`` if it is of another version."""
        if not self.plan_task_id:
            push_unplanned(context, step)
            return None
        planned = planned_step(context, self.plan_task_id, self.index)
        if planned is not None and planned.hash != step.hash:
            raise PlanOutdatedError(
                f"Step {step.name!r} is version {step.hash} now, but this run was planned with {planned.hash}: its "
                "config was edited meanwhile. Clear the plan task too."
            )
        return planned

    def _decide(
        self, turns: StepTurns, planned: PlannedStep | None, progress: Progress, context: Context
    ) -> tuple[Start, Lease | None]:
        record = turns.read()
        retries = planned is None or planned.decision is not Decision.BLOCKED
        asked = StepNotes(context, self).asked(planned, turns)
        task = Task(turns.by, progress.waited_for, retries, ClaimNotes(context, turns.by).jobs())
        return decide_start(record, task, asked), record.lease

    def _has_job(self, turns: StepTurns, lease: Lease, context: Context) -> bool:
        """Whether this task may have a job at work, or had one in this try."""
        owns = Task(turns.by, claimed=ClaimNotes(context, turns.by).jobs()).owns(lease)
        return owns and (lease.is_live or lease.by.get("try") == turns.by.get("try"))

    def _claim(
        self, turns: StepTurns, over: Lease | None, withdraws: bool, has_job: bool, context: Context
    ) -> Turn | None:
        code = code_folder(context["dag"])
        cluster = "" if self._is_in_worker else self.settings.cluster_of(self.step)
        if cluster:
            connect(turns.step.name, cluster, has_job=has_job)  # nothing is claimed for one that cannot be used
        with failing_at_once():
            refuse_missing_slice_types([turns.step], self.settings.cluster_of)
            return turns.claim(
                over,
                lambda: claimed_spec(turns.step, code),
                withdraws=withdraws,
                cluster=cluster,
                code_commit=CodeFolder(code).commit(),
            )

    def _run(
        self, turns: StepTurns, turn: Turn, has_job: bool, progress: Progress, context: Context
    ) -> dict[str, Any] | Progress:
        attempt, code = turn.attempt, code_folder(context["dag"])
        if self._is_in_worker:
            self.log.info("Attempt %d at %s runs in this worker.", attempt.number, turns.name)
            exit_code = run_in_worker(attempt, code, job_logger)
            return self._judge(turns, attempt.job, process_ending(exit_code), progress, context)
        try:
            with renewed_while_claimed(turns.path, attempt.job):  # a large folder takes its time to travel
                cluster = submit(attempt, code, has_job=has_job)
        except AirflowException:  # nobody has to wait until this claim runs out
            turns.end_unstarted(attempt.job, Phase.STOPPED, Outcome.LOST)
            raise
        self.log.info("Attempt %d at %s submitted as Ray job %s.", attempt.number, turns.name, attempt.job)
        return self._follow(cluster, turns, turn.held.lease, progress, context)

    def _rejoin(
        self, turns: StepTurns, lease: Lease, progress: Progress, context: Context
    ) -> dict[str, Any] | Progress | None:
        """Go on with the turn of an earlier try; None when nothing of it was ever submitted."""
        cluster = cluster_of_job(turns.step.name, lease.cluster, lease.job) if lease.cluster else None
        if cluster is not None:
            self.log.info("Attempt %d at %s joined: Ray job %s.", lease.attempt, turns.name, lease.job)
            return self._follow(cluster, turns, lease, progress, context)
        if lease.phase is Phase.CLAIMED:
            self.log.info("Attempt %d was claimed by a try that died before it submitted it.", lease.attempt)
            return None
        self.log.info("Attempt %d is lost; what it left may live on for a while.", lease.attempt)
        return self._wait(turns.path, lease.attempt, progress, context, is_theirs=False)

    def _follow(
        self, cluster: RayCluster, turns: StepTurns, lease: Lease, progress: Progress, context: Context
    ) -> dict[str, Any] | Progress:
        """Wait for the end of the job of a turn, in the triggerer or here."""
        push_links(context["ti"], cluster, lease.job)
        watch = Watch(lease.job, demand_of(lease.job, self.step))
        full_log = posixpath.join(attempt_folder(turns.path, lease.attempt), DRIVER_LOG)
        if self.deferrable:
            trigger = StepJobTrigger(
                lease.cluster,
                watch.to_json(),
                log_bytes=DEFAULT_LOG_BYTES,
                full_log=full_log,
                owns_job=True,
                payload={"output_path": turns.path, "job": lease.job, "progress": asdict(progress)},
            )
            self.defer(trigger=trigger, method_name=self.execute_complete.__name__)
        self._followed = (cluster, lease.job, turns.path, TaskKey.of(context))
        with renewed_while_claimed(turns.path, lease.job):
            ending = follow_here(cluster, watch, DEFAULT_LOG_BYTES, full_log).ending
        return self._judge(turns, lease.job, ending, progress, context)

    def _wait(
        self, output_path: str, attempt: int, progress: Progress, context: Context, *, is_theirs: bool
    ) -> Progress:
        """Wait until nobody is at work at an output, in the triggerer or here, then look again.

        ``is_theirs`` says that it is this step's own output, at which somebody else is at work.
        """
        payload = {"progress": asdict(progress), "is_theirs": is_theirs}
        if self.deferrable or _DEFERS_BY_DEFAULT:  # who waits is not at work: ``max_concurrent`` does not count it
            trigger = LeaseTrigger(output_path, attempt, payload=payload)
            self.defer(trigger=trigger, method_name=self.execute_waited.__name__)
        last = asyncio.run(await_turn_end(output_path, attempt, self.log.info))
        return Progress.after_wait({"attempt": last, **payload})

    def _stop_first(self, turns: StepTurns, lease: Lease) -> None:
        """Stop the turn of an earlier try, which a person cleared, and wait until it has ended."""
        self.log.info("The task was cleared: attempt %d is stopped before the step runs again.", lease.attempt)
        if lease.cluster:
            cluster = connect(turns.step.name, lease.cluster, has_job=True).cluster
            asyncio.run(stop_step_job(cluster, lease.job, turns.path, turns.by, self.log.info))
        else:
            turns.store.request_stop(lease.job, turns.by)
            turns.end_unstarted(lease.job, Phase.STOPPED, Outcome.STOPPED)
        asyncio.run(await_turn_end(turns.path, lease.attempt, self.log.info))

    def _judge(
        self, turns: StepTurns, job: str, ending: Ending, progress: Progress, context: Context
    ) -> dict[str, Any] | Progress:
        """End the task, or go on, by what the lease says now that the job has ended."""
        held = turns.store.read()
        lease = held.lease if held else None
        match judge_end(lease, job, job_end(ending)):
            case Verdict.GREEN:
                self.log.info("Step %r is finished: %s", turns.step.name, turns.path)
                self._tell_story(turns, lease)
                return self._finish_made(turns, lease, context)
            case Verdict.FAILED:
                self._tell_story(turns, lease)
                raise self._failure(turns, lease)
            case Verdict.STOPPED:
                turns.end_unstarted(job, Phase.STOPPED, Outcome.STOPPED)
                raise StepStoppedError(
                    f"Step {turns.step.name!r}: Ray job {job} was stopped; clear the task to try again."
                )
            case Verdict.START_OVER:
                return progress
            case Verdict.CHANGED:
                turns.end_unstarted(job, Phase.STOPPED, Outcome.LOST)
                log_last_lines(self.log, ending)
                raise StepFailedError(
                    f"Step {turns.step.name!r}: what attempt {lease.attempt if lease else 0} was to run has been "
                    f"changed below {turns.path} since it was claimed, so nothing was run. Look who may write there, "
                    "and clear the task to try again."
                )
            case Verdict.CONTRADICTION:
                raise StepFailedError(
                    f"Step {turns.step.name!r}: Ray says that job {job} succeeded, but its lease was never committed; "
                    "its output is not used. Look at the job's log, and clear the task to try again."
                )
            case verdict:
                return self._go_on(turns, lease, verdict, ending, progress, context)

    def _go_on(
        self,
        turns: StepTurns,
        lease: Lease | None,
        verdict: Verdict,
        ending: Ending,
        progress: Progress,
        context: Context,
    ) -> Progress:
        """After a job that ended without a result and without a failure: the next attempt, if that can help."""
        assert lease is not None, "a job that nobody leased is nobody's"
        log_last_lines(self.log, ending)
        sentence = f"Step {turns.step.name!r}, attempt {lease.attempt}: {ending.sentence}"
        if verdict is Verdict.FAULTY_JOB:
            error = AttemptError(ending.kind.name, ending.sentence, "\n".join(ending.last_lines))
            if turns.end_unstarted(lease.job, Phase.FAILED, Outcome.FAILED, error):
                raise StepFailedError(sentence)
            return progress
        if verdict is Verdict.NEXT and not turns.end_lost(lease):
            return progress  # its driver has begun after all, or somebody has gone on
        if ending.kind is EndingKind.NOT_STARTED:
            self.log.info("%s It queues again.", sentence)
            return progress
        lost = after_loss(turns, lease, ending, progress)
        if verdict is Verdict.WAIT_UNTIL_STALE:
            self.log.warning("%s The next attempt follows when its lease has run out.", sentence)
            return self._wait(turns.path, lease.attempt, lost, context, is_theirs=False)
        pause_s = pause_before_attempt(progress.losses)
        self.log.warning("%s The next attempt follows in %.0f s.", sentence, pause_s)
        time.sleep(pause_s)
        return lost

    def _tell_story(self, turns: StepTurns, lease: Lease | None) -> None:
        """One line about the slices or hosts of an attempt that had to start again."""
        if lease is not None and (story := story_of(turns.path, lease.attempt, turns.step.step.resources)):
            self.log.info("Attempt %d at %s: %s", lease.attempt, turns.name, story)

    def _failure(self, turns: StepTurns, lease: Lease | None) -> StepFailedError:
        """The failure of an attempt, which may be another task's."""
        attempt = turns.attempt(lease.attempt) if lease is not None else None
        name = repr(turns.step.name)
        if attempt is None or attempt.error is None:
            return StepFailedError(f"Step {name} failed before, and is not to be tried again in this run.")
        whose = "" if lease is None or lease.by.get("run") == turns.by["run"] else f" in {task_name(lease.by)}"
        return StepFailedError(f"Step {name} failed{whose} with {attempt.error.type}: {attempt.error.message}")

    def _finish_reused(self, turns: StepTurns, lease: Lease | None, context: Context) -> dict[str, Any]:
        by = f"by {task_name(lease.by)}, attempt {lease.attempt}" if lease is not None and lease.by else "elsewhere"
        self.log.info("Step %r, version %s, is finished: made %s.", turns.step.name, turns.step.hash, by)
        notes = StepNotes(context, self)
        if lease is not None and not lease.is_marins:
            task = Task(turns.by, claimed=ClaimNotes(context, turns.by).jobs())
            if task.owns(lease) and not notes.told_of(lease.attempt):
                return self._finish_made(turns, lease, context)  # an earlier try made it and died before it said so
            complete_commit(turns.path, lease)
        emit_nothing(context, [turns.step.name])
        return notes.finished(turns.path, 0 if lease is None or lease.is_marins else lease.attempt)

    def _finish_made(self, turns: StepTurns, lease: Lease | None, context: Context) -> dict[str, Any]:
        """End green with what this task made: complete the record, tell consumers, and note which attempt it was."""
        assert lease is not None, "what a task made has a lease"
        complete_commit(turns.path, lease)
        producer = f"attempt {lease.attempt} of {task_name(lease.by)}"
        emit_made(context, turns.step.name, turns.name, turns.path, producer)
        return StepNotes(context, self).finished(turns.path, lease.attempt)

    @property
    def _is_in_worker(self) -> bool:
        return isinstance(self.step.resources, AirflowWorker)
