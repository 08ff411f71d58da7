"""How a step's task keeps behind its run's plan where Airflow has no edge between the two.

Only the steps that read no other step stand directly below ``plan``; the others follow from what they read. That is
enough until a person clears ``plan`` together with a step further down, whose inputs are there: Airflow then starts
both at once. The step's task waits here, as Airflow would have it wait behind an edge: it gives its worker slot back,
which the plan may need, and what the plan skips meanwhile never comes back.
"""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from tradewind.tasks.address import states_now
from tradewind.tasks.errors import PlanOutdatedError
from tradewind.tasks.plan_lines import was_skipped_by_plan

logger = logging.getLogger(__name__)

MAX_POLLS: Final = 10
POLL_S: Final = 0.5
"""For a plan that is at work: it skips right before it ends, and what follows then starts at once."""
RESCHEDULE_S: Final = 5.0

_TASK_ALONE: Final = "AIRFLOW_TEST_MODE"
_FAILED = frozenset({"failed", "upstream_failed"})
_ENDED = frozenset({"success", "skipped", "removed"})


def await_plan(context: Context, plan_task_id: str) -> None:
    """Return once the task of the plan has ended; ``airflow tasks test`` runs this task alone, so nothing is awaited.

    Raises:
        PlanOutdatedError: It failed, so there is no plan.
        AirflowRescheduleException: It has not ended yet: the task comes back, within the same try.
    """
    if os.environ.get(_TASK_ALONE) == "True":
        return
    for _ in range(MAX_POLLS):
        state = states_now(context, [plan_task_id]).get(plan_task_id, "removed")
        if state in _ENDED:
            return
        if state in _FAILED:
            raise PlanOutdatedError(
                f"The task {plan_task_id!r} failed, so nobody knows what is to run: clear it and this task."
            )
        if state != "running":
            break
        time.sleep(POLL_S)
    logger.info("The task %r has not ended yet: waiting for the new plan.", plan_task_id)
    raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=RESCHEDULE_S))


def skip_if_not_planned(context: Context, plan_task_id: str) -> None:
    """Before a new attempt: skip this task, if only its wait for the plan kept that from being skipped by it.

    Raises:
        AirflowSkipException: The plan has nothing to do for this task, and nobody has cleared any since it was made.
    """
    if was_skipped_by_plan(context, plan_task_id):
        raise AirflowSkipException("The plan that was made meanwhile has nothing to do for this step.")
