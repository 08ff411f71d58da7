"""Versions and records for people who write their own operators: a task that runs once for each version.

``with StepVersionHook().step(name, config) as step:`` in a task does what a step of an experiment does: it computes the
version, ends the task if that output is there, waits while somebody else makes it, and otherwise holds the lease for
the length of the block. What the block leaves at ``step.output_path`` is the output, once the block has ended well.
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
from typing import Any

from airflow.sdk import BaseHook, get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, DownstreamTasksSkipped

from tradewind.operators.claim_notes import ClaimNotes
from tradewind.operators.errors import AdoptedFailureError, asking_store, failing_at_once, unnamed_deployment
from tradewind.operators.exposed_secrets import warn_of_secrets
from tradewind.operators.plan_lines import push_unplanned
from tradewind.operators.run_context import ExperimentSettings, PlacedExperiment, heartbeat_s
from tradewind.operators.step_notes import compared, tries_now
from tradewind.operators.task_key import TaskKey
from tradewind.plans.start import (
    Adopt,
    Asked,
    Claim,
    Doubt,
    Finished,
    Rejoin,
    StopFirst,
    Task,
    Wait,
    decide_start,
    start_warning,
)
from tradewind.ray_jobs.secret_signs import secret_variable
from tradewind.ray_jobs.token_forms import without_tokens
from tradewind.records.attempts import Attempt, AttemptError, Outcome
from tradewind.records.lease_store import Held
from tradewind.records.leases import Lease, Phase
from tradewind.records.leftovers import remove_leftovers
from tradewind.records.step_info import info_json
from tradewind.records.turns import commit_turn, complete_commit, fail_turn, stop_turn
from tradewind.runtime.keeper import Keeper, TurnEnd
from tradewind.runtime.masking import Masker
from tradewind.runtime.step_turns import StepTurns, Turn, task_name
from tradewind.runtime.store_patience import until_answered
from tradewind.steps import ExecutorStep, ResolvedStep, RunValues
from tradewind.triggers.lease import await_turn_end

NOTE = "tradewind_step"
"""Key of the note in the task state store: what this task made, and the tries that Airflow allowed then."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepVersion:
    """A version of a step.

    Attributes:
        name: The step's name.
        version: ``name-hash``.
        output_path: Where its output is, or goes.
        config: The config with every placeholder filled in.
    """

    name: str
    version: str
    output_path: str
    config: Any


class StepVersionHook(BaseHook):
    """Computes versions, and lets a task make each of them once.

    Args:
        prefix: Where outputs go, if not where the deployment says; see ``experiment_dag``.
        timezone: Of ``night()``.
    """

    def __init__(self, prefix: str | None = None, timezone: str = "UTC") -> None:
        super().__init__()
        self._settings = ExperimentSettings(prefix=prefix, timezone=timezone)

    def version(self, name: str, config: Any, *, values: RunValues | None = None) -> StepVersion:
        """The version of the step ``name`` with this config.

        Args:
            values: The values of the run; those of the task that is running if not given.

        Raises:
            BadInputError: The config has no stable identity, or nothing says where outputs go.
        """
        with failing_at_once():
            return _version(self._placed(name, config, values)[1])

    @contextmanager
    def step(self, name: str, config: Any) -> Iterator[StepVersion]:
        """Make the output of this version in the block, unless it is there.

        Raises:
            AirflowSkipException: Somebody else made it; clearing the task makes it again.
            DownstreamTasksSkipped: This task made it, and died before it ended; of no task, so that it ends well.
            AdoptedFailureError: Somebody else's attempt was waited for, and failed.
            BadInputError: As ``version`` does.
            UnnamedDeploymentError: A task of the same name is at work, perhaps in another Airflow.
            LeaseLostError: The turn went to somebody else, for example after the store did not answer for a minute.
        """
        context: Any = get_current_context()
        with failing_at_once():
            placed, resolved = self._placed(name, config, None)
        warn_of_secrets(f"Step {name!r}", _recorded(resolved.config))
        push_unplanned(context, resolved)
        by = TaskKey.of(context).claim(context)
        claims = _Claims(ClaimNotes(context, by))
        turns = StepTurns(resolved, by, heartbeat_s(), claims.add, placed.roots)
        with asking_store(f"Step {name!r}"):
            held, attempt = _take(turns, claims, context)
            keeper = Keeper(turns.store, held, _end_work)
            with keeper:
                if attempt.number > 1:
                    keeper.until_answered(lambda: remove_leftovers(turns.path, (), keeper.check, attempt.found))
                yield from _work(turns, attempt, keeper)
        _note(context, attempt.number)

    def _placed(self, name: str, config: Any, values: RunValues | None) -> tuple[PlacedExperiment, ResolvedStep]:
        step = ExecutorStep(name, None, config)
        placed = self._settings.resolve([step], values or self._settings.values_of(get_current_context()))
        return placed, placed.experiment.of(step)


class _Claims:
    """The claims of this process, each noted before it is made."""

    def __init__(self, notes: ClaimNotes) -> None:
        self.notes = notes
        self._last = ""

    def add(self, job: str) -> None:
        self.notes.add(job)
        self._last = job

    def make(self, turns: StepTurns, over: Lease | None, *, withdraws: bool) -> Turn | None:
        """Claim the turn after ``over``; to be called again when the store takes a part of it and refuses the rest."""
        if self._last and turns.end_unstarted(self._last, Phase.STOPPED, Outcome.LOST):
            over = turns.read().lease
        with failing_at_once():
            return turns.claim(over, lambda: _spec(turns.step), withdraws=withdraws)


def _take(turns: StepTurns, claims: _Claims, context: Any) -> tuple[Held, Attempt]:
    """The lease and the attempt of the next turn, as its keeper, once nobody else is at work."""
    task = Task(turns.by, claimed=claims.notes.jobs())
    while True:
        record = until_answered(turns.read)
        start = decide_start(record, task, _asked(context))
        match start:
            case Finished():
                if warning := start_warning(start, turns.step):
                    logger.warning("%s", warning)
                raise _already_made(turns, task, start.lease, context)
            case Adopt():
                raise AdoptedFailureError(until_answered(partial(_failure, turns, start.lease)))
            case Doubt():
                raise unnamed_deployment(turns.name, start.lease, turns.by)
            case Wait():
                _await_end(turns, start.lease)
                task = replace(task, waited_for=start.lease.attempt)
            case Rejoin():  # the process of that try is gone, or ends with its turn
                _await_end(turns, start.lease)
            case StopFirst():
                logger.info("The task was cleared: attempt %d is stopped first.", start.lease.attempt)
                until_answered(partial(_stop, turns, start.lease))
                _await_end(turns, start.lease)
            case Claim():
                make = partial(claims.make, turns, record.lease, withdraws=start.withdraws)
                if (turn := until_answered(make)) is not None:
                    begin = partial(turns.store.begin, turn.attempt.job, uuid.uuid4().hex)
                    return until_answered(begin, turn.held.lease.fence_s), turn.attempt


def _stop(turns: StepTurns, lease: Lease) -> None:
    turns.store.request_stop(lease.job, turns.by)
    turns.end_unstarted(lease.job, Phase.STOPPED, Outcome.STOPPED)


def _await_end(turns: StepTurns, lease: Lease) -> None:
    logger.info("Attempt %d at %s is in progress in %s; waiting.", lease.attempt, turns.name, task_name(lease.by))
    asyncio.run(await_turn_end(turns.path, lease.attempt, logger.info))


def _already_made(turns: StepTurns, task: Task, lease: Lease | None, context: Any) -> AirflowException:
    """What ends the task without its block: green if an earlier try made the output and died before it could say so."""
    made = f"by {task_name(lease.by)}" if lease is not None and lease.by else "elsewhere"
    sentence = f"Step {turns.step.name!r}, version {turns.step.hash}, is finished: made {made}."
    logger.info("%s", sentence)
    if lease is None or lease.is_marins:
        _note(context, 0)
        return AirflowSkipException(sentence)
    until_answered(partial(complete_commit, turns.path, lease))
    _note(context, lease.attempt)
    if task.owns(lease):
        return DownstreamTasksSkipped(tasks=[])  # of none: Airflow's one way to end a task well from within
    return AirflowSkipException(sentence)


def _failure(turns: StepTurns, lease: Lease | None) -> str:
    attempt = turns.attempt(lease.attempt) if lease is not None else None
    error = attempt.error if attempt is not None else None
    whose = f" in {task_name(lease.by)}" if lease is not None else ""
    why = f" with {error.type}: {error.message}" if error is not None else ""
    return f"Step {turns.step.name!r} failed{whose}{why}"


def _work(turns: StepTurns, attempt: Attempt, keeper: Keeper) -> Iterator[StepVersion]:
    try:
        yield _version(turns.step)
    except Exception as error:
        described = AttemptError(*map(_shown, (type(error).__qualname__, str(error), traceback.format_exc())))
        keeper.until_answered(lambda: fail_turn(keeper.finish, turns.path, attempt, described))
        raise
    except BaseException:  # the task was ended from outside
        if keeper.end in (None, TurnEnd.STOP_REQUESTED):
            keeper.until_answered(lambda: stop_turn(keeper.finish, turns.path, attempt, Outcome.STOPPED))
        raise
    keeper.until_answered(lambda: commit_turn(keeper.finish, turns.path, attempt, keeper.check))


def _shown(text: str) -> str:
    """``text`` as a record may hold it: without what Airflow masks in logs, this process's secrets, and tokens."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    own = Masker(value for name, value in os.environ.items() if secret_variable(name, value) is not None)
    return without_tokens(own.text(str(redact(text))))


def _recorded(config: Any) -> Any:
    """``config`` as its record shows it, in plain JSON, in which no key that begins with ``$`` is one of ours."""
    return json.loads(info_json(config), object_pairs_hook=lambda pairs: {name.lstrip("$"): one for name, one in pairs})


def _asked(context: Any) -> Asked:
    """Whether a person cleared this task after it had ended with an output."""
    note = context["task_state_store"].get(NOTE) or {}
    return replace(compared(Asked(), note, context), finished_attempt=note.get("attempt"))


def _note(context: Any, attempt: int) -> None:
    """Keep which attempt this task ended with, and what Airflow allowed it then: Clear changes that."""
    context["task_state_store"].set(NOTE, {"attempt": attempt, **tries_now(context)})


def _version(step: ResolvedStep) -> StepVersion:
    return StepVersion(step.name, f"{step.name}-{step.hash}", step.output_path, step.config)


def _spec(step: ResolvedStep) -> Any:
    from tradewind.runtime.spec import StepSpec

    version = f"{step.name}-{step.hash}"
    return StepSpec(step.name, version, step.output_path, "", None, None, {"kind": "airflow_worker"}, False)


def _end_work(end: TurnEnd) -> None:
    logger.error("This task's turn is over: %s.", end.value)
    os.kill(os.getpid(), signal.SIGTERM)
