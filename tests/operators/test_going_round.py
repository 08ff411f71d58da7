"""One try submits a job that queues for days again and again, also if the task does not defer."""

from __future__ import annotations

import inspect
import json
import posixpath
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from airflow.sdk import DAG

from tests.operators.contexts import context_of
from tests.operators.loopback_head import ImpatientHead
from tradewind import ExecutorStep
from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.step import StepOperator
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.errors import StepFailedError

pytestmark = pytest.mark.slow

GIVEN_UP = 150
ROOM = 400
"""Stack frames for a task: enough for jobs in sequence, too few for nested ones."""


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImpatientHead]:
    server = ImpatientHead(GIVEN_UP)
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_IMPATIENT", json.dumps({"conn_type": "ray", "host": server.url}))
    yield server
    server.stop()


@contextmanager
def little_room() -> Iterator[None]:
    """Limit the stack, instead of a wait of days in a queue."""
    usual, depth = sys.getrecursionlimit(), len(inspect.stack(0))
    sys.setrecursionlimit(depth + ROOM)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


def test_resubmitting_abandoned_job_does_not_grow_stack(head: ImpatientHead) -> None:
    with DAG("queueing") as dag:
        task = RayJobOperator(task_id="t", entrypoint="true", ray_conn_id="impatient", deferrable=False)
    with little_room():
        last = task.execute(context_of(dag))
    assert last == list(head.jobs)[-1]
    assert len(head.jobs) == GIVEN_UP + 1


def test_resubmitting_abandoned_step_does_not_grow_stack(head: ImpatientHead, tmp_path: Path) -> None:
    settings = ExperimentSettings(prefix=str(tmp_path), cluster="impatient")
    step = ExecutorStep("queueing", posixpath.join, {})
    with DAG("queueing") as dag:
        task = StepOperator(task_id="t", step=step, settings=settings, plan_task_id="", deferrable=False)
    with little_room(), pytest.raises(StepFailedError, match="Ray says that job .* succeeded"):
        task.execute(context_of(dag))  # the job that Ray started in the end had no driver
    assert len(head.jobs) == GIVEN_UP + 1
