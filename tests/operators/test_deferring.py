"""A step's task that defers to the triggerer, and the state with which it resumes."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from tests.operators.contexts import context_of
from tests.operators.loopback_head import LoopbackHead
from tests.operators.test_lost_attempts import commits
from tradewind import ExecutorStep
from tradewind.operators.step import StepOperator
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind
from tradewind.records.lease_store import LeaseStore
from tradewind.tasks import attempt_runner
from tradewind.tasks.context import ExperimentSettings

LOST = Ending(EndingKind.PREEMPTED, "Its node died.")
DONE = Ending(EndingKind.SUCCEEDED, "It ended well.", 0)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHead]:
    monkeypatch.setattr(attempt_runner, "pause_before_attempt", lambda losses: 0.0)
    server = LoopbackHead()
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_DEFERRING", json.dumps({"conn_type": "ray", "host": server.url}))
    yield server
    server.stop()


def deferred(call: Any, *arguments: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the trigger as Airflow stores it, and the method at which the task resumes."""
    with pytest.raises(TaskDeferred) as left:
        call(*arguments)
    path, fields = left.value.trigger.serialize()
    return path, left.value.method_name, fields["payload"]


def test_a_task_that_defers_goes_on_where_it_was(head: LoopbackHead, tmp_path: Path) -> None:
    step = ExecutorStep("made", posixpath.join, {})
    settings = ExperimentSettings(prefix=str(tmp_path), cluster="deferring")
    with DAG("deferring") as dag:
        task = StepOperator(task_id="t", step=step, settings=settings, plan_task_id="", deferrable=True)
    context = context_of(dag)

    path, method, first = deferred(task.execute, context)
    assert (path, method) == ("tradewind.triggers.step_job.StepJobTrigger", "execute_complete")
    assert first["progress"] == {"losses": 0, "without_keeper": 0, "waited_for": None}

    _, method, second = deferred(task.execute_complete, context, {"ending": LOST.to_json(), **first})
    assert (method, list(head.jobs)) == ("execute_complete", [first["job"], second["job"]])
    assert second["progress"] == {"losses": 1, "without_keeper": 1, "waited_for": None}

    LeaseStore(second["output_path"]).take_over(second["job"], "keeper")
    path, method, waiting = deferred(task.execute_complete, context, {"ending": LOST.to_json(), **second})
    assert (path, method) == ("tradewind.triggers.lease.LeaseTrigger", "execute_waited")
    assert waiting == {"progress": {"losses": 2, "without_keeper": 0, "waited_for": None}, "is_theirs": False}

    _, method, third = deferred(task.execute_waited, context, {"attempt": 2, **waiting})
    assert (third["job"], third["progress"]) == (second["job"], waiting["progress"]), "its driver lives after all"

    commits(third["job"], third["output_path"])
    made = task.execute_complete(context, {"ending": DONE.to_json(), **third})
    assert (made["output_path"], made["attempt"]) == (third["output_path"], 2)
