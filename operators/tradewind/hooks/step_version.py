"""Versions and records for users' own operators: a task that runs once per version.

``with StepVersionHook().step(name, config) as step:`` does in a task what a step of an experiment does: it computes the
version, ends the task if the output is a result, waits while another task makes it, and otherwise owns the lease for
the length of the block. The files that the block writes to ``step.output_path`` become the result when it succeeds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from airflow.sdk import BaseHook, Context, get_current_context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

from tradewind.attempts.decisions import RerunRequest, TaskIdentity
from tradewind.attempts.protocol import AttemptHandler, AttemptProtocol, Continuation
from tradewind.attempts.renewal import ActiveAttempt, LeaseEndReason, LeaseRenewer
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease, describe_claimer
from tradewind.attempts.store_retry import retry_store
from tradewind.ray_jobs.secret_patterns import redact_tokens, secret_variable
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome
from tradewind.records.cleanup import remove_leftovers
from tradewind.records.info_files import info_json
from tradewind.records.lease import Lease
from tradewind.records.lease_store import HeldLease
from tradewind.serialization.masking import Masker
from tradewind.steps import ExecutorStep, ResolvedStep, RunValues
from tradewind.tasks.address import TaskKey
from tradewind.tasks.context import ExperimentSettings, PlacedExperiment, heartbeat_s
from tradewind.tasks.errors import (
    AdoptedFailureError,
    failing_without_retry,
    translated_store_errors,
    unnamed_deployment,
)
from tradewind.tasks.jobs.exposed_secrets import warn_of_secrets
from tradewind.tasks.plan_lines import push_unplanned
from tradewind.tasks.step_notes import ClaimNotes, tries_now, with_tries
from tradewind.triggers.lease import wait_for_release

NOTE = "tradewind_step"
"""Key of the note in the task state store: the attempt that this task made, and the tries that Airflow allowed then."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepVersion:
    """A version of a step.

    Attributes:
        name: The step's name.
        version: ``name-hash``.
        output_path: The path of its output.
        config: The config with every placeholder filled in.
    """

    name: str
    version: str
    output_path: str
    config: Any


class StepVersionHook(BaseHook):
    """Computes versions, and lets a task make each of them once.

    Args:
        prefix: Parent of the outputs; default: the deployment's; see ``experiment_dag``.
        timezone: Time zone of ``night()``.
    """

    def __init__(self, prefix: str | None = None, timezone: str = "UTC") -> None:
        super().__init__()
        self._settings = ExperimentSettings(prefix=prefix, timezone=timezone)

    def version(self, name: str, config: Any, *, values: RunValues | None = None) -> StepVersion:
        """Return the version of the step ``name`` with this config.

        Args:
            values: The values of the run; default: those of the running task.

        Raises:
            BadInputError: The config has no stable identity, or no prefix is configured.
        """
        with failing_without_retry():
            return _version(self._placed(name, config, values)[1])

    @contextmanager
    def step(self, name: str, config: Any) -> Iterator[StepVersion]:
        """Make the output of this version in the block, unless it is a result already.

        Raises:
            AirflowSkipException: Another task made it; clearing this task makes it again.
            DownstreamTasksSkipped: An earlier try made it and died before its end. It names no task, so Airflow ends
                this one as succeeded.
            AdoptedFailureError: The attempt of another task that this one waited for failed.
            BadInputError: As ``version`` does.
            UnnamedDeploymentError: A task of the same name runs an attempt, perhaps in another Airflow.
            LeaseLostError: Another task took the lease over, for example after a minute without an answer of the store.
        """
        context: Any = get_current_context()
        with failing_without_retry():
            placed, resolved = self._placed(name, config, None)
        warn_of_secrets(f"Step {name!r}", _recorded(resolved.config))
        push_unplanned(context, resolved)
        task = _HookAttemptHandler(resolved, placed, context)
        path = task.step_lease.path
        with translated_store_errors(f"Step {name!r}"):
            held, attempt = AttemptProtocol(task.step_lease, task, retry_store).result()
            with LeaseRenewer(task.step_lease.store, held, _end_work) as renewer:
                if attempt.number > 1:
                    renewer.retry_store(lambda: remove_leftovers(path, (), renewer.check, attempt.found))
                yield from _work(resolved, ActiveAttempt(path, attempt, renewer))
        _note(context, attempt.number)

    def _placed(self, name: str, config: Any, values: RunValues | None) -> tuple[PlacedExperiment, ResolvedStep]:
        step = ExecutorStep(name, None, config)
        placed = self._settings.resolve([step], values or self._settings.values_of(get_current_context()))
        return placed, placed.experiment.of(step)


class _HookAttemptHandler(AttemptHandler[tuple[HeldLease, Attempt]]):
    """A task that makes the attempt itself, as the lease owner; its result is the lease and the attempt."""

    def __init__(self, step: ResolvedStep, placed: PlacedExperiment, context: Context) -> None:
        by = TaskKey.of(context).claim(context)
        self._context = context
        self._notes = ClaimNotes(context, by)
        self._task = TaskIdentity(by, claimed=self._notes.jobs())
        self._claimed = ""
        self.step_lease = StepLease(step, by, heartbeat_s(), self._note_claim, placed.roots)

    def task(self) -> TaskIdentity:
        return self._task

    def rerun_request(self) -> RerunRequest:
        """Return whether a user cleared this task after it had ended with an output."""
        note: Any = self._context["task_state_store"].get(NOTE) or {}
        return replace(with_tries(RerunRequest(), note, self._context), finished_attempt=note.get("attempt"))

    def warn(self, sentence: str) -> None:
        logger.warning("%s", sentence)

    def finished(self, lease: Lease | None) -> NoReturn:
        """End the task without its block: as succeeded if an earlier try made the output and died before its end."""
        step = self.step_lease.step
        made = f"by {describe_claimer(lease.by)}" if lease is not None and lease.by else "elsewhere"
        sentence = f"Step {step.name!r}, version {step.hash}, is finished: made {made}."
        logger.info("%s", sentence)
        if lease is None or lease.written_by_marin:
            _note(self._context, 0)
            raise AirflowSkipException(sentence)
        _note(self._context, lease.attempt)
        if self._task.owns(lease):
            raise DownstreamTasksSkipped(tasks=[])  # of none: Airflow's one way to end a task as succeeded from within
        raise AirflowSkipException(sentence)

    def failure(self, lease: Lease | None) -> AdoptedFailureError:
        attempt = retry_store(partial(self.step_lease.attempt, lease.attempt)) if lease is not None else None
        error = attempt.error if attempt is not None else None
        where = f" in {describe_claimer(lease.by)}" if lease is not None else ""
        why = f" with {error.type}: {error.message}" if error is not None else ""
        return AdoptedFailureError(f"Step {self.step_lease.step.name!r} failed{where}{why}")

    def ownership_unknown(self, lease: Lease) -> NoReturn:
        raise unnamed_deployment(self.step_lease.name, lease, self.step_lease.by)

    def wait(self, lease: Lease) -> None:
        self._await_end(lease)
        self._task = replace(self._task, waited_for=lease.attempt)

    def reattach(self, lease: Lease) -> Continuation:
        """Wait: the process of that try is gone, or ends with its lease."""
        self._await_end(lease)
        return Continuation.RECHECK

    def cancel_previous(self, lease: Lease) -> None:
        logger.info("A user cleared this task: stopping attempt %d at %s first.", lease.attempt, self.step_lease.name)
        retry_store(partial(self.step_lease.stop, lease))
        self._await_end(lease)

    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        def try_claim() -> ClaimedAttempt | None:
            since = over
            if self._claimed and self.step_lease.end_unstarted(self._claimed, AttemptOutcome.LOST):
                since = self.step_lease.read().lease  # the store accepted a part of the claim and refused the rest
            with failing_without_retry():
                return self.step_lease.claim(since, lambda: _spec(self.step_lease.step), withdraws=withdraws)

        return retry_store(try_claim)

    def missing_input(self, error: MissingInputError) -> NoReturn:
        raise error  # cannot happen: its config names no other step

    def run(self, claimed: ClaimedAttempt) -> tuple[HeldLease, Attempt]:
        begin = partial(self.step_lease.store.take_over, claimed.attempt.job, uuid.uuid4().hex)
        return retry_store(begin, claimed.held.lease.fence_s), claimed.attempt

    def _note_claim(self, job: str) -> None:
        self._notes.add(job)
        self._claimed = job

    def _await_end(self, lease: Lease) -> None:
        name, claimer = self.step_lease.name, describe_claimer(lease.by)
        logger.info("Attempt %d at %s is in progress in %s; waiting.", lease.attempt, name, claimer)
        asyncio.run(wait_for_release(self.step_lease.path, lease.attempt, logger.info))


def _work(step: ResolvedStep, active: ActiveAttempt) -> Iterator[StepVersion]:
    try:
        yield _version(step)
    except Exception as error:
        active.fail(AttemptError(*map(_redacted, (type(error).__qualname__, str(error), traceback.format_exc()))))
        raise
    except BaseException:  # Airflow or a user ended the task
        if active.renewer.end in (None, LeaseEndReason.STOP_REQUESTED):
            active.stop(AttemptOutcome.STOPPED)
        raise
    active.commit()


def _redacted(text: str) -> str:
    """Return ``text`` for a record: without values that Airflow masks in logs, secrets of this process, and tokens."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    own = Masker(value for name, value in os.environ.items() if secret_variable(name, value) is not None)
    return redact_tokens(own.text(str(redact(text))))


def _recorded(config: Any) -> Any:
    """Return ``config`` as its record shows it, in plain JSON without the ``$`` prefix of placeholder keys."""
    return json.loads(
        info_json(config), object_pairs_hook=lambda pairs: {name.lstrip("$"): value for name, value in pairs}
    )


def _note(context: Any, attempt: int) -> None:
    """Note the attempt that this task ended with, and the tries that Airflow allowed then: Clear changes those."""
    context["task_state_store"].set(NOTE, {"attempt": attempt, **tries_now(context)})


def _version(step: ResolvedStep) -> StepVersion:
    return StepVersion(step.name, step.version_name, step.output_path, step.config)


def _spec(step: ResolvedStep) -> Any:
    from tradewind.serialization.spec import StepSpec

    worker = {"kind": "airflow_worker"}
    return StepSpec(step.name, step.version_name, step.output_path, "", None, None, worker, False)


def _end_work(end: LeaseEndReason) -> None:
    logger.error("Stopping this task's attempt: %s.", end.value)
    os.kill(os.getpid(), signal.SIGTERM)
