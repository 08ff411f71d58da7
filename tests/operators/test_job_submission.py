"""A task submits each job once, a valid one only, and again after a Clear or a loss."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from airflow.exceptions import AirflowFailException

from tests.operators.contexts import job_task, step_task
from tests.operators.loopback_head import ImpatientHead, LoopbackHead
from tradewind.tasks.errors import StepFailedError

FAILING = 150
STACK_FRAMES = 400
"""Enough for jobs in sequence, too few for nested ones."""


@pytest.mark.parametrize(
    ("command", "words"), [("", "is empty"), ("echo hf_" + "a" * 34, "secret")], ids=["empty", "secret"]
)
def test_a_bad_command_submits_nothing(monkeypatch: pytest.MonkeyPatch, command: str, words: str) -> None:
    task, context = job_task(entrypoint=command)
    with LoopbackHead().connected(monkeypatch) as head, pytest.raises(AirflowFailException, match=words):
        task.execute(context)
    assert head.jobs == {}


def test_clear_with_same_max_tries_makes_new_job_but_crash_not(monkeypatch: pytest.MonkeyPatch) -> None:
    task, context = job_task()
    with ImpatientHead(0).connected(monkeypatch) as head:
        first = task.execute(context)
        assert task.execute(context) == first, "a worker that died before its task had ended"
        context["dag_run"].clear_number = 1  # with fewer retries, ``max_tries`` can keep its value
        again = task.execute(context)
    assert [first, again] == list(head.jobs) and first != again


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
