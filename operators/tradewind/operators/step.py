"""One step as an Airflow task: starts or joins its attempt on the cluster, follows it deferred, reads the record."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context, conf

from tradewind.links.ray import RayJobLink, RayLogLink, push_links
from tradewind.operators.code import code_folder
from tradewind.operators.errors import (
    PlanOutdatedError,
    StepBusyError,
    StepFailedError,
    StepLostError,
    StepStoppedError,
    failing_at_once,
)
from tradewind.operators.following import follow_here, log_last_lines, pause_before_attempt, stop_here
from tradewind.operators.job_errors import WORTH_ANOTHER_ATTEMPT
from tradewind.operators.run_context import ExperimentSettings
from tradewind.operators.step_job import claimed_spec, connect, demand_of, submit
from tradewind.operators.task_key import TaskKey
from tradewind.operators.worker_process import run_in_worker
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.start import Claim, ClearedTask, Finished, Follow, Start, decide_start
from tradewind.ray_jobs.endings import Ending, EndingKind
from tradewind.ray_jobs.ids import step_job_id
from tradewind.ray_jobs.outcome import Watch
from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    Outcome,
    attempt_folder,
    attempt_path,
    claim_attempt,
    end_attempt,
    newest_attempt,
)
from tradewind.records.attempts import read_attempt as read_attempt_file
from tradewind.records.status import Status, read_status, read_statuses, write_status
from tradewind.records.step_info import write_step_info
from tradewind.runtime.kept_output import DRIVER_LOG
from tradewind.runtime.process_guard import GRACE_SECONDS
from tradewind.runtime.run_step import LOOK_INTERVAL_S
from tradewind.steps import AirflowWorker, ExecutorStep, ResolvedStep, resolve
from tradewind.triggers.kill import stop_from_on_kill
from tradewind.triggers.place_in_log import TaskAddress
from tradewind.triggers.ray_job import DEFAULT_LOG_BYTES, RayJobTrigger, job_logger

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster

NOTE = "finished"
"""Key of the note in the task state store: which attempt this task ended green with, and the tries allowed then."""


MOST_LOSSES = 100
"""How many nodes or heads in a row a step may lose within one try."""
FENCE_S = LOOK_INTERVAL_S + 2 * GRACE_SECONDS
"""After this long, a driver that lives on after the loss of its head has seen that its attempt was ended."""
_SIGNAL_BASE = 128
"""A shell adds this to the number of the signal that ended its command."""
_DIED_IN_WORKER = Ending(EndingKind.UNKNOWN, "Its driver in the worker ended without saying how.")


class StepOperator(BaseOperator):
    """Makes one step's output, unless it is there already.

    Args:
        step: The step.
        settings: What the experiment's tasks share.
        plan_task_id: The task whose XCom holds the run's plan.
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
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.settings = settings or ExperimentSettings()
        self.plan_task_id = plan_task_id
        self.deferrable = deferrable
        self._followed: tuple[RayCluster, str, TaskAddress] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Start or join the step's attempt and wait for its end; returns the output's path and its attempt."""
        return self._start(context, losses=0)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Judge the attempt whose job has ended, by its record."""
        attempt = read_attempt_file(attempt_path(event["output_path"], event["attempt"]))
        assert attempt is not None, "attempts are never deleted"
        return self._judge(event["output_path"], attempt, Ending.from_json(event["ending"]), event["losses"], context)

    def on_kill(self) -> None:
        """Stop the job that this worker follows, if a person marked or cleared the task."""
        if self._followed is not None:
            stop_from_on_kill(*self._followed)

    def _start(self, context: Context, losses: int) -> dict[str, Any]:
        with failing_at_once():
            step = self._resolve(context)
        planned = self._planned(context)
        if planned is not None and planned.hash != step.hash:
            raise PlanOutdatedError(
                f"Step {step.name!r} is version {step.hash} now, but this run was planned with {planned.hash}: its "
                "config was edited meanwhile. Clear the plan task too."
            )
        start = self._decide_start(step, planned, context)
        if isinstance(start, Finished):
            by = f"by {_task_name(start.attempt.by)}, attempt {start.attempt.number}" if start.attempt else "elsewhere"
            self.log.info("Step %r, version %s, is finished: made %s.", step.name, step.hash, by)
            return self._finish(step.output_path, start.attempt, context)
        if isinstance(step.step.resources, AirflowWorker):
            return self._run_in_worker(step, start, context)
        return self._run_on_cluster(step, start, losses, context)

    def _resolve(self, context: Context) -> ResolvedStep:
        values = self.settings.values_of(context)
        return resolve([self.step], self.settings.prefix_of(values), values).of(self.step)

    def _planned(self, context: Context) -> PlannedStep | None:
        plan = context["ti"].xcom_pull(task_ids=self.plan_task_id)
        return Plan.from_json(plan).of_task(self.task_id) if plan else None

    def _cleared(self, context: Context, planned: PlannedStep | None) -> ClearedTask:
        note: Any = context["task_state_store"].get(NOTE) or {}
        return ClearedTask(
            finished_attempt=note.get("attempt"),
            tries_allowed_then=note.get("max_tries", 0),
            tries_allowed_now=context["ti"].max_tries,
            was_reused=planned is not None and planned.decision is Decision.REUSE,
        )

    def _decide_start(self, step: ResolvedStep, planned: PlannedStep | None, context: Context) -> Start:
        newest = newest_attempt(step.output_path)
        mine = newest is not None and _is_same_task(newest.by, self._by(context))
        cleared = self._cleared(context, planned)
        if newest is not None and mine and self._was_cleared_at_work(newest, context):
            newest = self._stopped(step, newest)
        start = decide_start(read_status(step.output_path), newest, cleared, mine)
        if not isinstance(start, Follow) or start.attempt.cluster:
            return start
        if not mine:
            raise _busy(step, start.attempt)
        lost = end_attempt(step.output_path, start.attempt, Outcome.LOST)  # it was in the worker of a try that died
        return decide_start(None, lost, cleared, mine)

    def _was_cleared_at_work(self, attempt: Attempt, context: Context) -> bool:
        is_open = attempt.outcome is None and bool(attempt.cluster)
        return is_open and context["ti"].max_tries > attempt.by.get("max_tries", context["ti"].max_tries)

    def _stopped(self, step: ResolvedStep, attempt: Attempt) -> Attempt:
        """Stop the attempt of an earlier try, which a person cleared; its end as it stands in the record then."""
        self.log.info("The task was cleared: stopping Ray job %s before the step is run again.", attempt.job)
        stop_here(connect(step.name, attempt.cluster).cluster, attempt.job, self.log.info)
        ended = read_attempt_file(attempt_path(step.output_path, attempt.number))
        assert ended is not None, "attempts are never deleted"
        return ended if ended.outcome else end_attempt(step.output_path, ended, Outcome.STOPPED)

    def _claim(self, step: ResolvedStep, start: Claim, cluster: str, context: Context) -> Attempt:
        """Claim the next attempt; everything that can be refused is refused before anything is written."""
        _check_inputs(step)
        with failing_at_once():
            spec = claimed_spec(step, code_folder(context["dag"]))
        job = step_job_id(step.name, step.output_path, step.hash, start.number)
        claim = Attempt(start.number, job, cluster, self._by(context), spec.to_json())
        attempt = claim_attempt(step.output_path, claim)
        write_step_info(step, spec.fn_name)
        if start.withdraws:
            write_status(step.output_path, Status.RUNNING)
        return attempt

    def _run_in_worker(self, step: ResolvedStep, start: Claim | Follow, context: Context) -> dict[str, Any]:
        attempt = self._claim(step, start, "", context) if isinstance(start, Claim) else start.attempt
        if not _is_same_task(attempt.by, self._by(context)):
            raise _busy(step, attempt)
        run_in_worker(attempt_path(step.output_path, attempt.number), code_folder(context["dag"]), job_logger)
        ended = read_attempt_file(attempt_path(step.output_path, attempt.number)) or attempt
        return self._judge(step.output_path, ended, _DIED_IN_WORKER, MOST_LOSSES, context)

    def _run_on_cluster(
        self, step: ResolvedStep, start: Claim | Follow, losses: int, context: Context
    ) -> dict[str, Any]:
        cluster = start.attempt.cluster if isinstance(start, Follow) else self.settings.cluster_of(step.step)
        jobs = connect(step.name, cluster)
        attempt = start.attempt if isinstance(start, Follow) else self._claim(step, start, cluster, context)
        if attempt.cluster != cluster:  # somebody on another cluster claimed it a moment before us
            jobs = connect(step.name, attempt.cluster)
        submitted = submit(jobs, attempt, code_folder(context["dag"]))
        push_links(context["ti"], jobs.cluster, attempt.job)
        verb = "submitted as" if submitted else "joined: it was submitted before as"
        self.log.info("Attempt %d at %s-%s %s Ray job %s.", attempt.number, step.name, step.hash, verb, attempt.job)
        return self._follow(jobs.cluster, step.output_path, attempt, losses, context)

    def _follow(
        self, cluster: RayCluster, output_path: str, attempt: Attempt, losses: int, context: Context
    ) -> dict[str, Any]:
        """Wait for the end of the attempt's job, in the triggerer or here."""
        watch = Watch(attempt.job, demand_of(attempt))
        full_log = posixpath.join(attempt_folder(output_path, attempt.number), DRIVER_LOG)
        mine = _is_same_task(attempt.by, self._by(context))
        if self.deferrable:
            trigger = RayJobTrigger(
                attempt.cluster,
                watch.to_json(),
                log_bytes=DEFAULT_LOG_BYTES,
                full_log=full_log,
                owns_job=mine,
                payload={"output_path": output_path, "attempt": attempt.number, "losses": losses},
            )
            self.defer(trigger=trigger, method_name=self.execute_complete.__name__)
        self._followed = (cluster, attempt.job, TaskKey.of(context).address) if mine else None
        ending = follow_here(cluster, watch, DEFAULT_LOG_BYTES, full_log).ending
        ended = read_attempt_file(attempt_path(output_path, attempt.number)) or attempt
        return self._judge(output_path, ended, ending, losses, context)

    def _judge(
        self, output_path: str, attempt: Attempt, ending: Ending, losses: int, context: Context
    ) -> dict[str, Any]:
        """End the task by how its attempt ended: the record's word counts, Ray's only where the record has none."""
        name = attempt.spec["name"]
        if attempt.outcome is Outcome.SUCCEEDED:
            self.log.info("Step %r is finished: %s", name, output_path)
            return self._finish(output_path, attempt, context)
        if attempt.outcome is Outcome.FAILED and attempt.error is not None:
            raise StepFailedError(f"Step {name!r} failed with {attempt.error.type}: {attempt.error.message}")
        if attempt.outcome is Outcome.STOPPED or ending.kind is EndingKind.STOPPED:
            end_attempt(output_path, attempt, Outcome.STOPPED)
            if not _is_same_task(attempt.by, self._by(context)):
                self.log.info("Attempt %d was stopped by %s.", attempt.number, _task_name(attempt.by))
                return self._start(context, losses)
            raise StepStoppedError(f"Step {name!r}: Ray job {attempt.job} was stopped; clear the task to try again.")
        log_last_lines(self.log, ending)
        sentence = f"Step {name!r}, attempt {attempt.number}: {ending.sentence}"
        if not _is_worth_another_attempt(ending):
            end_attempt(output_path, attempt, Outcome.FAILED, AttemptError(ending.kind.name, ending.sentence))
            raise StepFailedError(sentence)
        end_attempt(output_path, attempt, Outcome.LOST)
        if ending.kind is EndingKind.NOT_STARTED:
            self.log.info("%s It queues again.", sentence)
            return self._start(context, losses)
        if losses >= MOST_LOSSES:
            raise StepLostError(f"{sentence} Airflow's next try makes a new attempt.")
        pause_s = max(FENCE_S, pause_before_attempt(losses))
        self.log.warning("%s The next attempt follows in %.0f s.", sentence, pause_s)
        time.sleep(pause_s)
        return self._start(context, losses + 1)

    def _finish(self, output_path: str, attempt: Attempt | None, context: Context) -> dict[str, Any]:
        """End green: complete the record, note which attempt it was, and return what the task's XCom holds."""
        number = attempt.number if attempt else 0
        if read_status(output_path) is not Status.SUCCESS:  # its driver died just before it wrote that
            newest = newest_attempt(output_path)
            if newest is not None and newest.number == number:  # or somebody has withdrawn it meanwhile
                write_status(output_path, Status.SUCCESS)
        note: Any = {"attempt": number, "max_tries": context["ti"].max_tries}
        context["task_state_store"].set(NOTE, note)
        return {"output_path": output_path, "attempt": number}

    def _by(self, context: Context) -> dict[str, Any]:
        ti = context["ti"]
        return {
            "dag": ti.dag_id,
            "run": ti.run_id,
            "task": ti.task_id,
            "map_index": ti.map_index,
            "try": ti.try_number,
            "max_tries": ti.max_tries,
        }


def _check_inputs(step: ResolvedStep) -> None:
    statuses = read_statuses([dependency.output_path for dependency in step.dependencies])
    for dependency in step.dependencies:
        if statuses.get(dependency.output_path) is not Status.SUCCESS:
            raise PlanOutdatedError(
                f"Step {step.name!r} reads step {dependency.name!r}, which has no finished output at "
                f"{dependency.output_path}: clear the plan task too, and it will be made."
            )


def _busy(step: ResolvedStep, attempt: Attempt) -> StepBusyError:
    return StepBusyError(
        f"Step {step.name!r}: attempt {attempt.number} is at work outside any cluster, started by "
        f"{_task_name(attempt.by)}; the next try looks again."
    )


def _is_worth_another_attempt(ending: Ending) -> bool:
    """Our driver notes how its function ended, unless it is killed: then the fault is not the step's."""
    was_killed = ending.exit_code is None or not 0 <= ending.exit_code < _SIGNAL_BASE
    return ending.kind in WORTH_ANOTHER_ATTEMPT or (ending.kind is EndingKind.USER_ERROR and was_killed)


def _is_same_task(by: dict[str, Any], task: dict[str, Any]) -> bool:
    return all(by.get(key) == task[key] for key in ("dag", "run", "task", "map_index"))


def _task_name(by: dict[str, Any]) -> str:
    return f"task {by.get('task')} of run {by.get('run')} of {by.get('dag')}" if "run" in by else str(by)
