"""Status, step info and attempts keep the formats of E20 and of older executors."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    AttemptOutcome,
    attempt_numbers,
    attempt_path,
    newest_attempt,
    read_attempt,
    write_attempt,
)
from tradewind.records.info_files import write_step_info
from tradewind.records.record import Status, parse_status, read_status, read_statuses, write_status
from tradewind.steps import ExecutorStep, lazy, output_path_of, resolve, this_output_path, versioned


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("SUCCESS", Status.SUCCESS),
        ("FAILED\n", Status.FAILED),
        ("", None),
        ("WAITING", None),
        ('{"date": "x", "status": "RUNNING"}\n{"date": "y", "status": "SUCCESS"}\n', Status.SUCCESS),
        ('{"status": "RUNNING"}\n{"status": "FAILED", "message": "Trace"}', Status.FAILED),
        ('{"status": "SUCCESS"}\nRUNNING', Status.RUNNING),
    ],
)
def test_status_files_of_all_executors_are_read(text: str, status: Status | None) -> None:
    assert parse_status(text) is status


def test_status_file_is_one_token_without_a_newline(tmp_path: Path) -> None:
    made, other, failed = (str(tmp_path / name) for name in ("made", "other", "failed"))
    write_status(made, Status.RUNNING)
    write_status(made, Status.SUCCESS)
    write_status(failed, Status.FAILED)
    assert (tmp_path / "made/.executor_status").read_bytes() == b"SUCCESS"
    assert (read_status(made), read_status(other)) == (Status.SUCCESS, None)
    assert read_statuses([made, other, failed]) == {made: Status.SUCCESS, failed: Status.FAILED}


@dataclass(frozen=True)
class Config:
    source: Any
    since: Any
    model: Any
    output_path: Any


def test_step_info_has_the_fields_of_e20_in_their_order(tmp_path: Path) -> None:
    source = ExecutorStep("source", None, None)
    config = Config(
        output_path_of(source, "x"),
        versioned(datetime.timedelta(days=1)),
        lazy("models:Llama", layers=versioned(2)),
        this_output_path(),
    )
    step = ExecutorStep("reader", None, config, description="not in the record")
    resolved = resolve([step], str(tmp_path)).of(step)
    write_step_info(resolved, "pipeline.read")
    text = Path(resolved.output_path, ".executor_info").read_text()
    info = json.loads(text)
    assert text == json.dumps(info, indent=2) + "\n"
    assert [*info] == ["name", "fn_name", "config", "override_output_path", "version", "dependencies", "output_path"]
    assert info["fn_name"] == "pipeline.read"
    assert info["config"] == {
        "source": f"{tmp_path}/source-{resolved.dependencies[0].hash}/x",
        "since": {"days": 1, "seconds": 0, "microseconds": 0},
        "model": {"lazy": "models:Llama", "layers": 2},
        "output_path": resolved.output_path,
    }
    assert info["version"] == json.loads(resolved.version_json)
    assert info["dependencies"] == [resolved.dependencies[0].output_path]


def attempt(number: int) -> Attempt:
    return Attempt(number, "job", "cluster", {"dag": "d"}, {"name": "s"})


def test_newest_attempt_has_highest_number(tmp_path: Path) -> None:
    output = str(tmp_path)
    assert newest_attempt(output) is None
    for number in (1, 2, 10):
        write_attempt(output, attempt(number))
    (tmp_path / ".attempts/10").mkdir()  # the logs of attempt 10
    (tmp_path / ".attempts/11").mkdir()
    assert attempt_numbers(output) == [1, 2, 10]
    newest = newest_attempt(output)
    assert newest is not None and newest.number == 10


def test_attempt_and_its_end_are_read_as_written(tmp_path: Path) -> None:
    output, inputs = str(tmp_path), {"/a": "digest", "/marins": None}
    running = replace(attempt(3), inputs=inputs, withdraws=True, code_commit="abc", started_at="2026-01-01T00:00:00")
    error = AttemptError("ValueError", "no", "Traceback")
    ended = running.ended(AttemptOutcome.FAILED, error)
    assert (ended.outcome, ended.error, bool(ended.ended_at)) == (AttemptOutcome.FAILED, error, True)
    for written in (running, ended):
        write_attempt(output, written)
        assert read_attempt(attempt_path(output, 3)) == written


def test_attempt_from_before_leases_is_read(tmp_path: Path) -> None:
    (tmp_path / ".attempts").mkdir()
    old = {"number": 1, "job": "j", "cluster": "c", "by": {}, "spec": {}, "outcome": "failed", "error": None, "x": 1}
    (tmp_path / ".attempts/1.json").write_text(json.dumps(old))
    assert read_attempt(attempt_path(str(tmp_path), 1)) == Attempt(1, "j", "c", {}, {}, outcome=AttemptOutcome.FAILED)
