"""Notes of a step's task: its result, written when it succeeds and read when it runs again, and its claims.

Airflow keeps the note across retries and Clear. A Clear sets ``max_tries`` to the tries so far plus the retries; a
crash leaves it. That distinguishes a user's rerun from a worker that died between its note and its end. If the retries
were lowered in between, the numbers can be equal. So the note also holds the run's ``clear_number``, Airflow's count of
Clears. A step may be cleared only because a step above it was: then the results of its upstream tasks state the same
two numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from airflow.sdk import Context

from tradewind.attempts.decisions import RerunRequest, lacks_deployment_name
from tradewind.attempts.step_lease import StepLease
from tradewind.plans.plan import PlannedStep
from tradewind.tasks.address import clears_now

RESULT_KEY: Final = "finished"
CLAIMS_KEY: Final = "claimed"
"""Keys of the notes in the task state store."""
MAX_NOTED_JOBS: Final = 10
TRIES: Final = "max_tries"
CLEARS: Final = "clear_number"


def tries_now(context: Context) -> dict[str, int]:
    """Return what Airflow allows the task now, for a note."""
    return {TRIES: context["ti"].max_tries, CLEARS: clears_now(context)}


def with_tries(rerun: RerunRequest, note: Mapping[str, Any], context: Context) -> RerunRequest:
    """Return ``rerun`` with what Airflow allowed the task at the time of the note and allows it now."""
    now = tries_now(context)
    return replace(
        rerun,
        tries_allowed_then=note.get(TRIES, 0),
        tries_allowed_now=now[TRIES],
        clears_then=note.get(CLEARS, now[CLEARS]),  # older notes lack the run's Clears
        clears_now=now[CLEARS],
    )


class StepNotes:
    """Notes of one task. ``upstream`` are the ids of the tasks of the steps above it."""

    def __init__(self, context: Context, upstream: Collection[str]) -> None:
        self._context = context
        self._upstream = sorted(upstream)

    def finished(self, output_path: str, attempt: int) -> dict[str, Any]:
        """Note that the task succeeds with ``attempt``; return the task's XCom."""
        results = self._upstream_results()
        upstream: dict[str, Any] = {
            "upstream": {task_id: result[TRIES] for task_id, result in results.items()},
            "upstream_clears": {task_id: result.get(CLEARS, 0) for task_id, result in results.items()},
        }
        result: Any = {"attempt": attempt, **tries_now(self._context)}
        self._context["task_state_store"].set(RESULT_KEY, {**result, **upstream})
        return {"output_path": output_path, **result}

    def has_succeeded_with(self, attempt: int) -> bool:
        """Whether an earlier try succeeded with ``attempt`` and did not die right after its note."""
        note = self._note()
        return note.get("attempt") == attempt and self._was_cleared_since(note)

    def rerun_request(self, planned: PlannedStep | None, step_lease: StepLease) -> RerunRequest:
        """Return the rerun request for this task."""
        note = self._note()
        was_cleared_with_others = bool(note) and self._was_cleared_since(note) and self._ran_above_since(note)
        return replace(
            with_tries(RerunRequest.from_plan(planned), note, self._context),
            finished_attempt=note.get("attempt"),
            came_along=was_cleared_with_others and step_lease.has_inputs_of(note["attempt"]),
        )

    def _note(self) -> dict[str, Any]:
        note: Any = self._context["task_state_store"].get(RESULT_KEY)
        return note or {}

    def _was_cleared_since(self, note: Mapping[str, Any]) -> bool:
        return with_tries(RerunRequest(), note, self._context).was_cleared

    def _ran_above_since(self, note: Mapping[str, Any]) -> bool:
        """Whether a step above was cleared and has run again since the note."""
        tries, clears = note.get("upstream", {}), note.get("upstream_clears", {})
        return any(
            result[TRIES] != tries.get(task_id, -1)
            or result.get(CLEARS, 0) > clears.get(task_id, result.get(CLEARS, 0))
            for task_id, result in self._upstream_results().items()
        )

    def _upstream_results(self) -> dict[str, Mapping[str, int]]:
        """Return task id -> result of each step above that ran in this run; a skipped one has none."""
        if not self._upstream:
            return {}
        results: Any = self._context["ti"].xcom_pull(task_ids=self._upstream)
        pairs = zip(self._upstream, results, strict=True)
        return {task_id: result for task_id, result in pairs if isinstance(result, dict) and TRIES in result}


class ClaimNotes:
    """Claims of one task, noted in its task state store where claims are ambiguous.

    A claim names the Airflow that made it, its dag, run, task and map index. Airflows without a name can share all of
    those on one prefix, but not their own databases. So a task of such an Airflow notes a claim's job before the claim,
    and owns only leases that it noted. ``by`` is the task's name in its claims.
    """

    def __init__(self, context: Context, by: Mapping[str, Any]) -> None:
        self._is_needed = lacks_deployment_name(by)
        self._store: Any = context["task_state_store"]

    def jobs(self) -> tuple[str, ...]:
        """Return the jobs of recent claims or intended claims of the task; empty where its claims are unambiguous."""
        return tuple(self._store.get(CLAIMS_KEY) or ()) if self._is_needed else ()

    def add(self, job: str) -> None:
        """Note that the attempt of ``job`` is the task's if its claim succeeds."""
        if self._is_needed:
            self._store.set(CLAIMS_KEY, [*self.jobs(), job][-MAX_NOTED_JOBS:])
