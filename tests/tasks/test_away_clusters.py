"""A task with a job on a cluster waits through outages of that cluster, as a following task does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.operators.contexts import job_task, step_task
from tests.operators.loopback_head import ImpatientHead
from tests.operators.test_lost_attempts import from_attempt
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.tasks import attempt_runner, step_job
from tradewind.tasks.errors import ClusterRefusedError, ClusterUnreachableError
from tradewind.tasks.jobs import following

AWAY, REFUSING = 503, 403


class AwayHead(ImpatientHead):
    """A head that fails its first job and answers the next requests with an error.

    Attributes:
        errors: Number of errors for each kind of request.
        status: HTTP status of the errors.
        since: Number of known jobs from which the errors begin.
        driver: Function that each job runs.
        on_read: Called when a client first reads a job.
    """

    def __init__(self) -> None:
        super().__init__(1, driver=lambda job, output_path: self.driver(job, output_path) if output_path else None)
        self.errors: dict[str, int] = {}
        self.status = AWAY
        self.since = 1
        self.driver = from_attempt(2)
        self.on_read: Callable[[], None] | None = None

    def answer(self, call: HttpRequest) -> Answer:
        job = call.path.removeprefix("/api/jobs/")
        kind = "version" if call.path == "/api/version" else "submit" if call.method == "POST" else job and "job"
        if len(self.jobs) >= self.since and self.errors.get(kind, 0):
            self.errors[kind] -= 1
            return Answer(kind, self.status, b"not now")
        if kind == "job" and self.on_read is not None:
            self.on_read, call_once = None, self.on_read
            call_once()
        return super().answer(call)


def killed_here(*_: object) -> None:
    """Kill the worker after its submission."""
    raise KeyboardInterrupt


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwayHead]:
    """A head; a task without a job there tries to connect once."""
    monkeypatch.setattr(step_job, "CONNECT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(following, "MAX_RETRY_PAUSE_S", 0.1)
    with AwayHead().connected(monkeypatch) as head:
        yield head


@pytest.mark.slow
@pytest.mark.parametrize("status", [AWAY, REFUSING])
@pytest.mark.parametrize("question", ["version", "submit"])
def test_lost_job_is_resubmitted_when_cluster_returns(head: AwayHead, question: str, status: int) -> None:
    head.errors, head.status = {question: 2}, status
    task, context = job_task(connect_timeout=0.0)
    assert task.execute(context) == list(head.jobs)[-1]
    assert (len(head.jobs), head.errors[question]) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("status", [AWAY, REFUSING])
def test_next_try_waits_for_cluster_of_its_job(head: AwayHead, status: int) -> None:
    task, context = job_task(connect_timeout=0.0, wait_for_completion=False)
    job = task.execute(context)
    head.has(job, "SUCCEEDED")
    head.errors, head.status = {"job": 2}, status
    task.wait_for_completion = True
    assert task.execute(context) == job
    assert (list(head.jobs), head.errors["job"]) == ([job], 0)


@pytest.mark.slow
@pytest.mark.parametrize("status", [AWAY, REFUSING])
@pytest.mark.parametrize("question", ["version", "submit"])
def test_lost_step_is_resubmitted_when_cluster_returns(
    head: AwayHead, question: str, status: int, tmp_path: Path
) -> None:
    head.errors, head.status = {question: 2}, status
    task, context = step_task(tmp_path)
    assert task.execute(context)["attempt"] == 2
    assert head.errors[question] == 0


@pytest.mark.slow
@pytest.mark.parametrize("status", [AWAY, REFUSING])
@pytest.mark.parametrize("question", ["version", "job"])
def test_next_step_try_waits_for_cluster_of_its_job(
    head: AwayHead, question: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.driver = lambda job, output_path: None
    task, context = step_task(tmp_path)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(attempt_runner, "push_links", killed_here)
        task.execute(context)
    [job] = head.jobs
    head.has(job, "SUCCEEDED")
    head.errors, head.status = {question: 2}, status
    head.on_read = lambda: from_attempt(1)(job, str(next(tmp_path.glob("made-*"))))
    assert task.execute(context)["attempt"] == 1
    assert (list(head.jobs), head.errors[question]) == ([job], 0)


@pytest.mark.parametrize(("status", "error"), [(AWAY, ClusterUnreachableError), (REFUSING, ClusterRefusedError)])
def test_task_without_job_ends_when_cluster_is_away(
    head: AwayHead, status: int, error: type[Exception], tmp_path: Path
) -> None:
    head.errors, head.status, head.since = {"version": 3}, status, 0
    for task, context in (job_task(connect_timeout=0.0), step_task(tmp_path)):
        with pytest.raises(error):
            task.execute(context)
