"""A task submits each job once, a valid one only, and again after a Clear or a loss."""

from __future__ import annotations

import inspect
import json
import posixpath
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.timeout import timeout

from tests.operators.contexts import job_task, step_task
from tests.operators.loopback_head import ImpatientHead, LoopbackHead
from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.stop_ray_job import RayStopJobOperator
from tradewind.operators.tpu_pod_train import TpuPodTrainOperator
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.sensors.ray_job import RayJobSensor
from tradewind.tasks.errors import StepFailedError
from tradewind.tasks.jobs.errors import RayJobTimedOutError

FAILING = 150
STACK_FRAMES = 400
"""Enough for jobs in sequence, too few for nested ones."""


@pytest.mark.parametrize(
    ("command", "words"),
    [("", "is empty"), ("echo hf_" + "a" * 34, "secret"), (["echo", None], "Item 2 of the entrypoint is None")],
    ids=["empty", "secret", "xcom"],
)
def test_a_bad_command_submits_nothing(monkeypatch: pytest.MonkeyPatch, command: object, words: str) -> None:
    task, context = job_task(entrypoint=command)
    with LoopbackHead().connected(monkeypatch) as head, pytest.raises(AirflowFailException, match=words):
        task.execute(context)
    assert head.jobs == {}


@pytest.mark.parametrize("python", ["3.9.18", "3.10.14"])
def test_old_python_of_cluster_gets_commands_and_nothing_else(
    python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    function, step = job_task(entrypoint=None, python_callable=posixpath.join, op_args=["a"]), step_task(tmp_path)
    with ImpatientHead(0).connected(monkeypatch) as head:
        head.python = python
        for task, context in (function, step):
            with pytest.raises(AirflowFailException, match=f"runs Python {python}, and Tradewind needs 3.11: start"):
                task.execute(context)
        assert head.jobs == {} and not head.requests["package"] and not [*tmp_path.iterdir()]
        task, context = job_task()
        task.execute(context)
        connection = {"conn_type": "ray", "host": head.url, "extra": {"python": "/opt/3.11/python"}}
        monkeypatch.setenv("AIRFLOW_CONN_HEAD", json.dumps(connection))
        other = job_task(entrypoint=None, python_callable=posixpath.join, op_args=["a"], runtime_env={"conda": "new"})
        for task, context in (function, other):
            with pytest.raises(AirflowFailException, match="its log does not end with the result"):
                task.execute(context)
    assert len(head.jobs) == 3


def test_clear_with_same_max_tries_makes_new_job_but_crash_not(monkeypatch: pytest.MonkeyPatch) -> None:
    task, context = job_task()
    with ImpatientHead(0).connected(monkeypatch) as head:
        first = task.execute(context)
        assert task.execute(context) == first, "a worker that died before its task had ended"
        context["dag_run"].clear_number = 1  # with fewer retries, ``max_tries`` can keep its value
        again = task.execute(context)
    assert [first, again] == list(head.jobs) and first != again


def text_of(xcom: object) -> str:
    return f"{xcom}"


@pytest.mark.parametrize(
    "use",
    [
        lambda xcom: RayJobOperator(task_id="reads", entrypoint=["echo", f"a {xcom}"]),
        lambda xcom: RayJobOperator(task_id="reads", python_callable=text_of, op_args=[f"{xcom}"]),
        lambda xcom: RayJobSensor(task_id="reads", submission_id=f"{xcom}"),
        lambda xcom: RayStopJobOperator(task_id="reads", metadata={"name": f"{xcom}"}),
        lambda xcom: TpuPodTrainOperator(task_id="reads", name="t", config={}, slice_type="v4-8", prefix=f"{xcom}"),
    ],
)
def test_xcom_in_a_text_needs_an_order_of_its_tasks(use: Callable[[object], BaseOperator]) -> None:
    with DAG("d") as dag:
        given = RayJobOperator(task_id="gives", entrypoint="true")
        reads = use(given.output)
    with pytest.raises(BadRequestError, match="'reads' does not wait for task 'gives'"):
        dag.resolve_template_files()
    between = EmptyOperator(task_id="between", dag=dag)
    given >> between >> reads
    dag.resolve_template_files()


def test_xcom_in_a_list_orders_the_tasks() -> None:
    with DAG("d") as dag:
        given = RayJobOperator(task_id="gives", entrypoint="true")
        reads = RayJobOperator(task_id="reads", entrypoint=["echo", given.output])
        listed = RayJobOperator.partial(task_id="mapped").expand(entrypoint=[["echo", given.output]])
    assert reads.upstream_task_ids == listed.upstream_task_ids == {"gives"}
    dag.resolve_template_files()


@contextmanager
def limited_stack() -> Iterator[None]:
    """Limit the stack, instead of a wait of days in a queue."""
    usual, depth = sys.getrecursionlimit(), len(inspect.stack(0))
    sys.setrecursionlimit(depth + STACK_FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


@pytest.mark.slow
def test_resubmitting_abandoned_job_does_not_grow_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    task, context = job_task()
    with ImpatientHead(FAILING).connected(monkeypatch) as head, limited_stack():
        last = task.execute(context)
    assert last == list(head.jobs)[-1]
    assert len(head.jobs) == FAILING + 1


@pytest.mark.slow
def test_resubmitting_abandoned_step_does_not_grow_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task, context = step_task(tmp_path)
    succeeded_without_driver = pytest.raises(StepFailedError, match="Ray says that job .* succeeded")
    with ImpatientHead(FAILING).connected(monkeypatch) as head, limited_stack(), succeeded_without_driver:
        task.execute(context)
    assert len(head.jobs) == FAILING + 1


@pytest.mark.parametrize(("started_s", "alarm"), [(-2, nullcontext), (60, partial(timeout, 1))], ids=["try", "alarm"])
def test_execution_timeout_stops_followed_job(head: LoopbackHead, started_s: float, alarm: Callable[[], Any]) -> None:
    task, context = job_task(execution_timeout=timedelta(seconds=1))
    context["ti"].start_date = datetime.now(UTC) + timedelta(seconds=started_s)
    with alarm(), pytest.raises(RayJobTimedOutError, match=r"'.+' was stopped: .* execution_timeout of 1 s"):
        task.execute(context)
    assert [job["status"] for job in head.jobs.values()] == ["STOPPED"]


def test_deferred_job_has_nearer_deadline_of_its_try(head: LoopbackHead) -> None:
    started = datetime.now(UTC) - timedelta(seconds=5)
    for seconds in (None, 3600, 1):
        task, context = job_task(execution_timeout=timedelta(seconds=60), timeout=seconds, deferrable=True)
        context["ti"].start_date = started
        with pytest.raises(TaskDeferred) as left:
            task.execute(context)
        _, fields = left.value.trigger.serialize()
        submitted_at = fields["payload"]["claim"]["submitted_at"]
        assert fields["watch"]["deadline"] == (submitted_at + 1 if seconds == 1 else started.timestamp() + 60)
