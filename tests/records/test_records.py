"""Status, info and attempts keep the formats of E20 and of older executors; an output has at most one pin."""

from __future__ import annotations

import datetime
import functools
import json
from concurrent.futures import ThreadPoolExecutor
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
from tradewind.records.info_files import step_info, write_experiment_info, write_step_info
from tradewind.records.pins import Pin, add_pin, is_pinned, pin_path, read_pins, remove_pin
from tradewind.records.record import Status, parse_status, read_status, read_statuses, write_status
from tradewind.steps import ExecutorStep, lazy, output_path_of, resolve, this_output_path, versioned
from tradewind.storage.files import read_text


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


def test_step_info_has_the_fields_of_e20_in_their_order(tmp_path: Path) -> None:
    source = ExecutorStep("source", None, None)
    config = {
        "source": output_path_of(source, "x"),
        "since": versioned(datetime.timedelta(days=1)),
        "model": lazy("models:Llama", layers=versioned(2)),
        "output_path": this_output_path(),
    }
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


# ---- files of experiments


@dataclass(frozen=True)
class Config:
    size: Any
    output_path: Any = this_output_path()
    transform: Any = len


class Named:
    """An object whose only text is its address."""


def infos(prefix: str, size: int = 1, **config: Any) -> list[dict[str, Any]]:
    step = ExecutorStep("made", None, Config(versioned(size), **config))
    resolved = resolve([step], prefix).of(step)
    write_step_info(resolved, "pipeline.make")
    return [step_info(resolved, "pipeline.make")]


def test_info_file_has_marin_fields_and_steps_equal_to_records(tmp_path: Path) -> None:
    steps = infos(str(tmp_path))
    path = write_experiment_info(str(tmp_path), "nightly", steps, "/repo/dags/nightly.py", "c0ffee")
    written = json.loads(Path(path).read_text())
    assert [*written] == ["worker_id", "git_commit", "caller_path", "created_date", "user", "prefix", "steps"]
    known = {"git_commit": "c0ffee", "caller_path": "/repo/dags/nightly.py", "prefix": str(tmp_path)}
    assert known.items() <= written.items()
    [step] = written["steps"]
    assert step == json.loads(Path(step["output_path"], ".executor_info").read_text())
    assert step["fn_name"] == "pipeline.make"


def test_same_experiment_writes_one_file_naming_first_run(local_prefix: str) -> None:
    prefix = local_prefix
    first = write_experiment_info(prefix, "nightly", infos(prefix), "here.py", "aaa")
    second = write_experiment_info(prefix, "nightly", infos(prefix), "elsewhere.py", None)
    other = write_experiment_info(prefix, "nightly", infos(prefix, size=2), "here.py", "aaa")
    assert first == second != other
    assert first.startswith(f"{prefix}/experiments/nightly-") and len(first.rpartition("-")[2]) == len("abcdef.json")
    assert json.loads(read_text(first) or "")["git_commit"] == "aaa"


def test_info_path_is_stable_with_functions_and_objects(tmp_path: Path) -> None:
    named = [Named(), Named()]  # both are alive, so their addresses differ
    paths = []
    for one in named:
        transform = [infos, functools.partial(infos, "x"), one, Config(1).__eq__, len]
        paths.append(write_experiment_info(str(tmp_path), "n", infos(str(tmp_path), transform=transform), "x.py", None))
    assert paths[0] == paths[1]
    config = json.loads(Path(paths[0]).read_text())["steps"][0]["config"]
    assert (config["transform"][0], config["transform"][4]) == ("tests.records.test_records.infos", "builtins.len")


# ---- pins


def test_pin_exists_for_its_output_until_removed(prefix: str) -> None:
    train, eval_ = (
        Pin(f"{prefix}/train-111111", "ada", "2026-03-01T00:00:00+00:00", "for the paper"),
        Pin(f"{prefix}/deep/eval-222222", "ada", "2026-03-01T00:00:00+00:00"),
    )
    assert read_pins(prefix) == []
    assert add_pin(prefix, train) and add_pin(prefix, eval_)
    assert read_pins(prefix) == [eval_, train]
    assert is_pinned(train.path) and is_pinned(eval_.path) and not is_pinned(f"{prefix}/train-333333")
    assert pin_path(prefix, train.path).startswith(f"{prefix}/.tradewind/pins/")
    assert remove_pin(prefix, train.path)
    assert not remove_pin(prefix, train.path)
    assert read_pins(prefix) == [eval_]


def test_first_of_concurrent_pins_counts(prefix: str) -> None:
    pins = [Pin(f"{prefix}/train-111111", f"user {number}", "now") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        were_set = list(pool.map(lambda pin: add_pin(prefix, pin), pins))
    assert were_set.count(True) == 1
    assert read_pins(prefix) == [pins[were_set.index(True)]]
