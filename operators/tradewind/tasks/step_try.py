"""One try of a step's task: operator arguments, context, leases and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Context

from tradewind.attempts.decisions import RerunRequest, TaskIdentity
from tradewind.attempts.step_lease import StepLease, describe_claimer
from tradewind.plans.plan import Decision, PlannedStep
from tradewind.records.lease import Lease
from tradewind.steps import ExecutorStep
from tradewind.tasks.address import TaskKey
from tradewind.tasks.assets import emit_made, emit_nothing
from tradewind.tasks.context import ExperimentSettings, heartbeat_s
from tradewind.tasks.errors import PlanOutdatedError, StepFailedError, failing_without_retry
from tradewind.tasks.plan_lines import planned_step, push_unplanned
from tradewind.tasks.step_notes import ClaimNotes, StepNotes
from tradewind.triggers.lease import LeaseTrigger, wait_for_release
from tradewind.triggers.step_job import StepJobTrigger

if TYPE_CHECKING:
    from airflow.sdk.types import Logger


@dataclass(frozen=True)
class Progress:
    """Progress of a try; it travels through the triggerer.

    Each pass over the step ends with the task's result or with a new progress for the next pass.

    Attributes:
        losses: How many attempts of this try were lost without a fault of the step.
        without_keeper: How many consecutive attempts, up to the last, ended before their driver took the lease over.
        waited_for: Another task's attempt that this try waited for.
    """

    losses: int = 0
    without_keeper: int = 0
    waited_for: int | None = None

    def after_loss(self, lease: Lease) -> Progress:
        """Return the progress after the loss of the attempt of ``lease``."""
        had_owner = lease.incarnation is not None
        return replace(self, losses=self.losses + 1, without_keeper=0 if had_owner else self.without_keeper + 1)

    @staticmethod
    def after_wait(event: Mapping[str, Any]) -> Progress:
        """Return the progress after waiting for the end of an attempt."""
        progress = Progress(**event["progress"])
        return replace(progress, waited_for=event["attempt"]) if event["is_theirs"] else progress


@dataclass(frozen=True)
class StepTask:
    """Arguments of a step's operator.

    Attributes:
        step: The step.
        settings: Settings that the experiment's tasks share.
        plan_task_id: The task whose XCom holds the run's plan; empty in a DAG without one.
        index: The step's index in the plan.
        may_overtake_plan: Airflow may start the task before the plan's has ended.
        upstream: The tasks of the steps above it.
        log: The operator's log.
        defer_job: Defers the task until its job ends; None if the worker follows it.
        defer_wait: Defers the task until no attempt runs at an output; None if the worker waits.
    """

    step: ExecutorStep
    settings: ExperimentSettings
    plan_task_id: str
    index: int
    may_overtake_plan: bool
    upstream: frozenset[str]
    log: Logger
    defer_job: Callable[[StepJobTrigger], NoReturn] | None
    defer_wait: Callable[[LeaseTrigger], NoReturn] | None


class StepTry:
    """One try.

    Attributes:
        arguments: The operator's arguments.
        context: Airflow's context.
        step_lease: The lease and attempts of the step.
        progress: The progress of the try.
    """

    def __init__(self, arguments: StepTask, context: Context, progress: Progress) -> None:
        self.arguments = arguments
        self.context = context
        self.progress = progress
        with failing_without_retry():
            placed = arguments.settings.resolve([arguments.step], arguments.settings.values_of(context))
        by = TaskKey.of(context).claim(context)
        step = placed.experiment.of(arguments.step)
        self._planned: PlannedStep | None = None
        self._claims = ClaimNotes(context, by)
        self._notes = StepNotes(context, arguments.upstream)
        self.step_lease = StepLease(step, by, heartbeat_s(), self._claims.add, placed.roots)

    def task(self) -> TaskIdentity:
        """Return the task as it decides now, by the plan's present line of the step.

        Raises:
            PlanOutdatedError: The line is for another version.
        """
        self._planned = self._read_plan()
        retries = self._planned is None or self._planned.decision is not Decision.BLOCKED
        return TaskIdentity(self.step_lease.by, self.progress.waited_for, retries, self._claims.jobs())

    def rerun_request(self) -> RerunRequest:
        """Return the rerun request for the task, by the plan that its last ``task`` used."""
        return self._notes.rerun_request(self._planned, self.step_lease)

    @property
    def deadline(self) -> float | None:
        """Unix time at which the task's ``execution_timeout`` ends, counted from the first start of the try."""
        allowed: timedelta | None = self.context["task"].execution_timeout
        return None if allowed is None else (self.context["ti"].start_date + allowed).timestamp()

    def owns(self, lease: Lease) -> bool:
        """Whether any try of this task claimed that lease."""
        return TaskIdentity(self.step_lease.by, claimed=self._claims.jobs()).owns(lease)

    def wait(self, output_path: str, attempt: int, *, is_theirs: bool) -> None:
        """Wait until no attempt runs at an output, in the triggerer or here.

        ``is_theirs`` means that it is this step's own output, and another task's attempt runs there.
        """
        payload = {"progress": asdict(self.progress), "is_theirs": is_theirs}
        if self.arguments.defer_wait is not None:
            self.arguments.defer_wait(LeaseTrigger(output_path, attempt, payload=payload))
        last = asyncio.run(wait_for_release(output_path, attempt, self.arguments.log.info))
        self.progress = Progress.after_wait({"attempt": last, **payload})

    def failure(self, lease: Lease | None) -> StepFailedError:
        """Return the failure of an attempt, possibly another task's."""
        attempt = self.step_lease.attempt(lease.attempt) if lease is not None else None
        name = repr(self.step_lease.step.name)
        if lease is None or attempt is None or attempt.error is None:
            return StepFailedError(f"Step {name} failed before, and this run does not retry it.")
        where = "" if lease.by.get("run") == self.step_lease.by["run"] else f" in {describe_claimer(lease.by)}"
        return StepFailedError(f"Step {name} failed{where} with {attempt.error.type}: {attempt.error.message}")

    def finish_reused(self, lease: Lease | None) -> dict[str, Any]:
        """Succeed with an existing output; emit events only if this task made it and died before its note."""
        step = self.step_lease.step
        by = f"by {describe_claimer(lease.by)}, attempt {lease.attempt}" if lease and lease.by else "elsewhere"
        self.arguments.log.info("Step %r, version %s, is finished: made %s.", step.name, step.hash, by)
        if lease is not None and lease.written_by_marin:
            lease = None  # it names no attempt
        if lease is not None and self.owns(lease) and not self._notes.has_succeeded_with(lease.attempt):
            return self.finish_made(lease)
        emit_nothing(self.context, step.name)
        return self._notes.finished(step.output_path, lease.attempt if lease is not None else 0)

    def finish_made(self, lease: Lease) -> dict[str, Any]:
        """Succeed with this task's output: emit events and note its attempt."""
        step = self.step_lease.step
        producer = f"attempt {lease.attempt} of {describe_claimer(lease.by)}"
        emit_made(self.context, step.name, step.version_name, step.output_path, producer)
        return self._notes.finished(step.output_path, lease.attempt)

    def _read_plan(self) -> PlannedStep | None:
        task, step = self.arguments, self.step_lease.step
        if not task.plan_task_id:
            push_unplanned(self.context, step)
            return None
        planned = planned_step(self.context, task.plan_task_id, task.index)
        if planned is not None and planned.hash != step.hash:
            raise PlanOutdatedError(
                f"Step {step.name!r} is version {step.hash} now, but this run was planned with {planned.hash}: its "
                "config was edited meanwhile. Clear the plan task too."
            )
        return planned
