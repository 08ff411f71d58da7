"""The driver runs a step's function in its own process and records how the function ended."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driven import (
    QUICK_S,
    claim,
    dies,
    ends_without_error,
    exits,
    file_of,
    finish,
    is_lost,
    lease_of,
    lists_its_files,
    raises,
    reruns_its_input,
    resolved_step,
    result_of,
    returns,
    returns_an_object,
    run,
    run_attempt,
    start,
    start_renewed,
)
from tests.support.waiting import until
from tradewind.records.attempts import AttemptOutcome, newest_attempt, read_attempt
from tradewind.records.lease import Phase
from tradewind.records.lifecycle import complete_commit, input_digests
from tradewind.records.record import RecordState, Status, read_record, read_records, read_status
from tradewind.runtime.run_step import SUPERSEDED

pytestmark = pytest.mark.slow


def test_returning_function_succeeds_with_result(tmp_path: Path) -> None:
    code, _, output_path, ended = run(returns, tmp_path)
    assert (code, ended.outcome, read_status(output_path)) == (0, AttemptOutcome.SUCCEEDED, Status.SUCCESS)
    assert result_of(output_path).keys() == {"pid"}


def test_result_that_json_cannot_store_is_omitted(tmp_path: Path) -> None:
    code, text, output_path, _ = run(returns_an_object, tmp_path)
    assert code == 0
    assert "The step's result is a object, which JSON cannot hold" in text
    assert not Path(output_path, ".artifact.json").exists()


@pytest.mark.parametrize(("fn", "type_", "message"), [(raises, "ValueError", "no good"), (exits, "SystemExit", "3")])
def test_failed_function_is_recorded_with_its_traceback(tmp_path: Path, fn: Any, type_: str, message: str) -> None:
    code, text, output_path, ended = run(fn, tmp_path)
    assert (code, ended.outcome, read_status(output_path)) == (1, AttemptOutcome.FAILED, Status.FAILED)
    assert ended.error is not None and (ended.error.type, ended.error.message) == (type_, message)
    assert f"Step 's' failed: {type_}: {message}" in text
    first, second, *_ = ended.error.traceback.splitlines()
    assert first.startswith("Traceback") and "driven.py" in second  # it starts at the step's own function


def test_killed_function_process_is_loss_and_next_run_retries(tmp_path: Path) -> None:
    code, text, output_path, ended = run(dies, tmp_path)
    sentence = (
        "the step's process was killed by signal 9 (SIGKILL) without an error, perhaps because the machine was out of "
        "memory."
    )
    assert (code, ended.outcome) == (SUPERSEDED, AttemptOutcome.LOST)
    assert ended.error is not None and (ended.error.type, ended.error.message) == ("ProcessKilled", sentence)
    assert f"Step 's': {sentence}" in text
    assert read_record(output_path).state is RecordState.STOPPED


@pytest.mark.long
def test_function_that_lost_its_server_is_loss(tmp_path: Path) -> None:
    code, text, output_path, ended = run(is_lost, tmp_path)
    assert (code, ended.outcome, ended.error) == (SUPERSEDED, AttemptOutcome.LOST, None)
    assert "the server is gone" in text
    assert read_record(output_path).state is RecordState.STOPPED


@pytest.mark.long
def test_process_that_ray_ended_without_its_head_is_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        code, _, _, ended = run(ends_without_error, tmp_path / "answers")
        assert (code, ended.outcome) == (1, AttemptOutcome.FAILED)
        assert ended.error is not None and ended.error.type == "ProcessDied"
    code, text, output_path, ended = run(ends_without_error, tmp_path / "is lost")
    assert (code, ended.outcome, ended.error) == (SUPERSEDED, AttemptOutcome.LOST, None)
    assert "the cluster's head does not answer" in text
    assert read_record(output_path).state is RecordState.STOPPED


# ---- a driver killed around the commit


BEFORE_COMMIT = "killed:tradewind.records.lifecycle:check_inputs_unchanged"


def test_lease_owner_killed_before_commit_leaves_no_result(tmp_path: Path) -> None:
    step = resolved_step(returns, str(tmp_path))
    first = claim(step, QUICK_S)
    code, _ = finish(start_renewed(first, BEFORE_COMMIT))
    assert code == -signal.SIGKILL
    assert Path(step.output_path, ".attempts/1/manifest.json").exists()  # the driver died just before the commit
    assert lease_of(step.output_path).phase is Phase.RUNNING
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    assert read_record(step.output_path).state is RecordState.STOPPED
    code, text, _, ended = run(returns, tmp_path)
    assert (code, ended.number, ended.outcome) == (0, 2, AttemptOutcome.SUCCEEDED), text
    assert read_record(step.output_path).state is RecordState.FINISHED
    lost = read_attempt(file_of(first))
    assert lost is not None and lost.outcome is AttemptOutcome.LOST


def test_lease_owner_killed_after_commit_leaves_readable_result(tmp_path: Path) -> None:
    step = resolved_step(returns, str(tmp_path))
    path = step.output_path
    attempt = claim(step)
    code, _ = finish(start(attempt, "killed:tradewind.records.lifecycle:complete_commit"))
    assert code == -signal.SIGKILL
    assert (read_record(path).state, read_status(path)) == (RecordState.FINISHED, Status.RUNNING)
    committed = lease_of(path)
    complete_commit(path, committed)
    ended = newest_attempt(path)
    assert ended is not None and (ended.number, ended.outcome) == (1, AttemptOutcome.SUCCEEDED)
    assert read_status(path) is Status.SUCCESS
    again = claim(step, withdraws=True)
    complete_commit(path, committed)  # another process read the lease before the rerun request
    assert read_record(path).state is RecordState.AT_WORK
    assert finish(start(again))[0] == 0
    assert (lease_of(path).attempt, read_record(path).state) == (2, RecordState.FINISHED)


# ---- leftovers and changed inputs


def test_leftovers_are_removed_except_files_to_resume_from(tmp_path: Path) -> None:
    step = resolved_step(lists_its_files, str(tmp_path), resumable=("checkpoint",))
    finish(start(claim(step), BEFORE_COMMIT))
    assert Path(step.output_path, "shard").exists()
    for fields, leftovers in (({}, ["checkpoint"]), ({"withdraws": True}, [])):  # a withdrawal removes all files
        code, text = finish(start(claim(step, **fields)))
        assert (code, result_of(step.output_path)) == (0, leftovers), text


def test_attempt_with_changed_input_is_not_committed(tmp_path: Path) -> None:
    _, _, input_path, _ = run(returns, tmp_path / "input")
    step = resolved_step(reruns_its_input, str(tmp_path), folder=str(tmp_path / "input"))
    attempt = claim(step, inputs=input_digests(read_records([input_path])))
    code, text, ended = run_attempt(attempt)
    assert (code, "was made again while attempt 1 was at work" in text) == (SUPERSEDED, True), text
    assert ended.outcome is AttemptOutcome.LOST
    assert read_record(step.output_path).state is RecordState.STOPPED
