"""Make a step's task wait for its run's plan where Airflow has no edge between the two.

Only steps that read no other step are directly below ``plan``; the others follow their inputs. That suffices until a
user clears ``plan`` together with a later step whose inputs exist: Airflow then starts both at once. The step's task
waits here as it would behind an edge. It releases its worker slot, which the plan may need, and never returns if the
plan skips it meanwhile.
"""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from tradewind.tasks.address import states_now
from tradewind.tasks.errors import PlanOutdatedError
from tradewind.tasks.plan_lines import pull_values, was_skipped_by_plan

logger = logging.getLogger(__name__)

MAX_POLLS: Final = 10
POLL_S: Final = 0.5
"""For a running plan: it skips right before it ends, and the following tasks then start at once."""
RESCHEDULE_S: Final = 5.0

_TASK_ALONE: Final = "AIRFLOW_TEST_MODE"
_FAILED = frozenset({"failed", "upstream_failed"})
_ENDED = frozenset({"success", "skipped", "removed"})


def await_plan(context: Context, plan_task_id: str) -> None:
    """Return once the plan's task has ended; ``airflow tasks test`` runs this task alone and does not wait.

    Raises:
        PlanOutdatedError: The plan's task failed, so there is no plan.
        AirflowRescheduleException: It has not ended yet: the task resumes later, within the same try.
    """
    if os.environ.get(_TASK_ALONE) == "True":
        return
    for _ in range(MAX_POLLS):
        state = states_now(context, [plan_task_id]).get(plan_task_id, "removed")
        if state in _ENDED:
            return
        if state in _FAILED:
            raise PlanOutdatedError(
                f"Task {plan_task_id!r} failed, so this run has no plan. Clear {plan_task_id!r} and this task."
            )
        if state != "running":
            break
        time.sleep(POLL_S)
    logger.info("Task %r has not ended yet. Waiting for the new plan.", plan_task_id)
    raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=RESCHEDULE_S))


def planned_values(context: Context, plan_task_id: str) -> dict[str, Any]:
    """Return the values that the plan of a task group was made with.

    The plan has none while it is made again, and if it was skipped with what is upstream of the group.

    Raises:
        AirflowSkipException: The plan was skipped.
        AirflowRescheduleException: The plan has not ended yet.
        PlanOutdatedError: The plan's task failed, or did not run.
    """
    values = pull_values(context, plan_task_id)
    if values is None:
        await_plan(context, plan_task_id)
        values = pull_values(context, plan_task_id)
    if values is not None:
        return values
    if states_now(context, [plan_task_id]).get(plan_task_id) == "skipped":
        raise AirflowSkipException(f"Task {plan_task_id!r} was skipped, so its group has nothing to do.")
    raise PlanOutdatedError(f"Task {plan_task_id!r} has left no plan. Run it first: clear it and this task.")


def skip_if_not_planned(context: Context, plan_task_id: str) -> None:
    """Skip this task before a new attempt, if only its wait prevented the plan from skipping it.

    Raises:
        AirflowSkipException: The plan has no work for this task, and no user has cleared a task since.
    """
    if was_skipped_by_plan(context, plan_task_id):
        raise AirflowSkipException("The new plan has no work for this step.")
