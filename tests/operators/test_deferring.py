"""A step's task that defers to the triggerer, and the state with which it resumes."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.timeout import timeout

from tests.operators.contexts import step_task
from tests.operators.loopback_head import LoopbackHead
from tests.operators.test_lost_attempts import commits
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.tasks import attempt_runner
from tradewind.tasks.errors import StepTimedOutError
from tradewind.tasks.jobs.following import follow_in_worker

LOST = Ending(EndingKind.PREEMPTED, "Its node died.")
DONE = Ending(EndingKind.SUCCEEDED, "It ended well.", 0)


def deferred(call: Any, *arguments: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the trigger as Airflow stores it, and the method at which the task resumes."""
    with pytest.raises(TaskDeferred) as left:
        call(*arguments)
    path, fields = left.value.trigger.serialize()
    return path, left.value.method_name, fields["payload"]


def test_deferred_task_resumes_where_it_was(
    head: LoopbackHead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attempt_runner, "pause_before_attempt", lambda losses: 0.0)
    task, context = step_task(tmp_path, deferrable=True)

    path, method, first = deferred(task.execute, context)
    assert (path, method) == ("tradewind.triggers.step_job.StepJobTrigger", "execute_complete")
    assert first["progress"] == {"losses": 0, "without_keeper": 0, "waited_for": None}

    _, method, second = deferred(task.execute_complete, context, {"ending": LOST.to_json(), **first})
    assert (method, list(head.jobs)) == ("execute_complete", [first["job"], second["job"]])
    assert second["progress"] == {"losses": 1, "without_keeper": 1, "waited_for": None}

    LeaseStore(second["output_path"]).take_over(second["job"], "owner")
    path, method, waiting = deferred(task.execute_complete, context, {"ending": LOST.to_json(), **second})
    assert (path, method) == ("tradewind.triggers.lease.LeaseTrigger", "execute_waited")
    assert waiting == {"progress": {"losses": 2, "without_keeper": 0, "waited_for": None}, "is_theirs": False}

    _, method, third = deferred(task.execute_waited, context, {"attempt": 2, **waiting})
    assert (third["job"], third["progress"]) == (second["job"], waiting["progress"]), "its driver survives after all"

    commits(third["job"], third["output_path"])
    made = task.execute_complete(context, {"ending": DONE.to_json(), **third})
    assert (made["output_path"], made["attempt"]) == (third["output_path"], 2)


def alarmed(*arguments: Any) -> Any:
    """Follow the job, with Airflow's alarm soon."""
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    return follow_in_worker(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("deferrable", [False, True])
def test_execution_timeout_stops_attempt(
    head: LoopbackHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    task, context = step_task(tmp_path, deferrable=deferrable)
    task.execution_timeout = timedelta(seconds=3)
    context["ti"].start_date = datetime.now(UTC) - timedelta(hours=1)
    monkeypatch.setattr(attempt_runner, "follow_in_worker", alarmed)
    with pytest.raises(StepTimedOutError, match=r"'made', attempt 1 was stopped: it exceeded its task's exec"):
        if deferrable:
            with pytest.raises(TaskDeferred) as left:
                task.execute(context)
            trigger = type(left.value.trigger)(**left.value.trigger.serialize()[1])
            task.execute_complete(context, asyncio.run(anext(trigger.run())).payload)
        with timeout(600):
            task.execute(context)
    assert [job["status"] for job in head.jobs.values()] == ["STOPPED"]
    [output] = tmp_path.glob("made-*")
    held = LeaseStore(str(output)).read()
    assert held is not None and held.lease.phase is Phase.STOPPED
