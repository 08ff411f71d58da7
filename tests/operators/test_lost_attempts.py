"""Reactions of a task to a job that ends without a result, on a loopback head."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.operators.contexts import step_task
from tests.operators.loopback_head import ImpatientHead
from tradewind.attempts.decisions import Claim, RerunRequest, TaskIdentity, decide_start
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, attempt_path, newest_attempt, read_attempt
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import commit_attempt, stop_attempt
from tradewind.records.record import read_record
from tradewind.runtime.run_step import NOTHING_LEFT, SUPERSEDED
from tradewind.storage.files import write_text
from tradewind.tasks import attempt_runner
from tradewind.tasks.errors import StepFailedError, StepLostError

DRIVER_FAILED = "JOB_ENTRYPOINT_COMMAND_ERROR"


@dataclass(frozen=True)
class Output:
    """The output of the step, as its jobs' drivers and its later readers see it."""

    prefix: Path

    @property
    def path(self) -> str:
        return str(next(self.prefix.glob("made-*")))

    @property
    def newest(self) -> Attempt:
        attempt = newest_attempt(self.path)
        assert attempt is not None
        return attempt

    @property
    def phase(self) -> Phase | None:
        held = LeaseStore(self.path).read()
        assert held is not None
        return held.lease.phase

    def is_due(self) -> bool:
        """Return whether the task of another run would start the next attempt."""
        task = TaskIdentity({"dag": "d", "run": "next"})
        return isinstance(decide_start(read_record(self.path), task, RerunRequest()), Claim)

    def outcome_of(self, number: int) -> AttemptOutcome | None:
        attempt = read_attempt(attempt_path(self.path, number))
        assert attempt is not None
        return attempt.outcome


def commits(job: str, output_path: str) -> None:
    """Make the output, as a driver does."""
    store = LeaseStore(output_path)
    held = store.take_over(job, "owner")
    write_text(posixpath.join(output_path, "data"), "made")
    attempt = read_attempt(attempt_path(output_path, held.lease.attempt))
    assert attempt is not None
    commit_attempt(lambda **changes: store.change(held, **changes), output_path, attempt, lambda: None)


def from_attempt(number: int, *, earlier: Any = None) -> Any:
    """Return a driver that makes the output from attempt ``number`` on; earlier attempts call ``earlier``."""

    def driver(job: str, output_path: str) -> None:
        held = LeaseStore(output_path).read()
        assert held is not None
        if held.lease.attempt >= number:
            commits(job, output_path)
        elif earlier is not None:
            earlier(job, output_path)

    return driver


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, output: Output) -> Any:
    """Return a function that runs the step once on a head and returns its result."""
    monkeypatch.setattr(attempt_runner, "pause_before_attempt", lambda losses: 0.0)

    def run(head: ImpatientHead) -> dict[str, Any]:
        task, context = step_task(output.prefix)
        with head.connected(monkeypatch):
            return task.execute(context)

    return run


def test_driver_failing_before_start_leads_to_next_attempt(run: Any, output: Output) -> None:
    made = run(ImpatientHead(2, DRIVER_FAILED, exit_code=1, driver=from_attempt(3)))
    assert made["attempt"] == 3
    assert output.outcome_of(1) is AttemptOutcome.LOST


def test_third_unstarted_driver_in_row_fails_task_with_log(
    run: Any, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    head = ImpatientHead(100, DRIVER_FAILED, exit_code=1)
    with pytest.raises(StepFailedError, match="3 attempts in a row"):
        run(head)
    assert len(head.jobs) == 3
    assert "the driver's last line" in capsys.readouterr().out
    assert (output.phase, output.newest.outcome) == (Phase.STOPPED, AttemptOutcome.LOST)
    assert output.is_due(), "the step's function has not failed, so the next run tries it"


def test_three_nodes_lost_before_start_cost_one_airflow_retry(run: Any, output: Output) -> None:
    head = ImpatientHead(100, "JOB_SUPERVISOR_ACTOR_DIED")
    with pytest.raises(StepLostError, match="3 attempts in a row") as caught:
        run(head)
    assert not isinstance(caught.value, AirflowFailException)
    assert len(head.jobs) == 3 and output.is_due()


@pytest.mark.slow
def test_attempt_with_lease_owner_resets_unstarted_count(run: Any) -> None:
    def driver(job: str, output_path: str) -> None:
        number = int(read_record(output_path).lease.attempt)  # type: ignore[union-attr]
        if number in (3, 6):
            LeaseStore(output_path).take_over(job, "owner")
        elif number == 7:
            commits(job, output_path)

    made = run(ImpatientHead(6, DRIVER_FAILED, exit_code=SUPERSEDED, driver=driver, last_line=NOTHING_LEFT))
    assert made["attempt"] == 7


def test_unbuildable_runtime_env_fails_step_with_build_log(run: Any, output: Output) -> None:
    head = ImpatientHead(100, "RUNTIME_ENV_SETUP_FAILURE")
    with pytest.raises(StepFailedError, match="its runtime_env could not be built"):
        run(head)
    assert len(head.jobs) == 1
    assert output.phase is Phase.FAILED
    assert output.newest.error is not None and "the driver's last line" in output.newest.error.traceback


def test_owner_reporting_no_processes_left_is_followed_at_once(run: Any, output: Output) -> None:
    begins = from_attempt(2, earlier=lambda job, path: LeaseStore(path).take_over(job, "owner"))
    made = run(ImpatientHead(1, DRIVER_FAILED, exit_code=SUPERSEDED, driver=begins, last_line=NOTHING_LEFT))
    assert made["attempt"] == 2
    assert output.outcome_of(1) is AttemptOutcome.LOST


def test_killed_step_process_costs_one_airflow_retry(run: Any, output: Output) -> None:
    def killed(job: str, output_path: str) -> None:
        store = LeaseStore(output_path)
        held = store.take_over(job, "owner")
        attempt = read_attempt(attempt_path(output_path, 1))
        assert attempt is not None
        error = AttemptError("ProcessDied", "the step's process ended with signal SIGKILL.")
        stop_attempt(lambda **changes: store.change(held, **changes), output_path, attempt, AttemptOutcome.LOST, error)

    head = ImpatientHead(100, DRIVER_FAILED, exit_code=1, driver=killed)
    with pytest.raises(StepLostError, match="signal SIGKILL") as caught:
        run(head)
    assert not isinstance(caught.value, AirflowFailException)
    assert len(head.jobs) == 1 and output.is_due()
