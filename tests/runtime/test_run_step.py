"""The driver runs a step's function in a process of its own and says how it ended, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tradewind.records.attempts import Attempt, Outcome, attempt_path, claim_attempt, end_attempt, newest_attempt
from tradewind.records.status import Status, read_status
from tradewind.runtime.references import CodeFolder
from tradewind.runtime.run_step import SUPERSEDED
from tradewind.runtime.spec import step_spec
from tradewind.steps import ExecutorStep, resolve, this_output_path, versioned

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Config:
    output_path: Any
    value: Any = None


def returns(config: Config) -> dict[str, int]:
    return {"pid": os.getpid()}


def returns_an_object(config: Config) -> object:
    return object()


def raises(config: Config) -> None:
    raise ValueError("no good")


def dies(config: Config) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(config: Config) -> None:
    sys.exit(3)


def hangs(config: Config) -> None:
    Path(config.output_path, "pid").write_text(str(os.getpid()))
    signal.pause()


def gives_up_its_own_attempt(config: Config) -> None:
    attempt = newest_attempt(config.output_path)
    assert attempt is not None
    end_attempt(config.output_path, attempt, Outcome.LOST)


def claim(fn: Any, store: Path) -> Attempt:
    step = ExecutorStep("s", fn, Config(this_output_path(), versioned(fn.__name__)))
    resolved = resolve([step], str(store)).of(step)
    spec = step_spec(resolved, CodeFolder(REPOSITORY))
    return claim_attempt(resolved.output_path, Attempt(1, "job", "cluster", {}, spec.to_json()))


def start(attempt: Attempt) -> subprocess.Popen[str]:
    file = attempt_path(attempt.spec["output_path"], 1)
    command = [sys.executable, "-m", "tradewind.runtime.run_step", file]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(fn: Any, store: Path) -> tuple[int, str, str, Attempt]:
    attempt = claim(fn, store)
    driver = start(attempt)
    text, _ = driver.communicate()
    output_path = attempt.spec["output_path"]
    ended = newest_attempt(output_path)
    assert ended is not None
    return driver.returncode, text, output_path, ended


def test_a_function_that_returns_makes_a_success(tmp_path: Path) -> None:
    code, _, output_path, ended = run(returns, tmp_path)
    assert (code, ended.outcome, read_status(output_path)) == (0, Outcome.SUCCEEDED, Status.SUCCESS)
    assert '"pid"' in Path(output_path, ".artifact.json").read_text()


def test_a_result_that_json_cannot_hold_is_left_out(tmp_path: Path) -> None:
    code, text, output_path, _ = run(returns_an_object, tmp_path)
    assert code == 0
    assert "The step's result is a object, which JSON cannot hold" in text
    assert not Path(output_path, ".artifact.json").exists()


@pytest.mark.parametrize(
    ("fn", "type_", "message"),
    [
        (raises, "ValueError", "no good"),
        (dies, "ProcessDied", "the step's process ended with signal SIGKILL."),
        (leaves, "SystemExit", "3"),
    ],
)
def test_a_function_that_fails_is_recorded_with_its_error(tmp_path: Path, fn: Any, type_: str, message: str) -> None:
    code, text, output_path, ended = run(fn, tmp_path)
    assert (code, ended.outcome, read_status(output_path)) == (1, Outcome.FAILED, Status.FAILED)
    assert ended.error is not None and (ended.error.type, ended.error.message) == (type_, message)
    assert f"Step 's' failed: {type_}: {message}" in text


def test_the_traceback_starts_at_the_steps_own_function(tmp_path: Path) -> None:
    _, _, _, ended = run(raises, tmp_path)
    assert ended.error is not None
    lines = ended.error.traceback.splitlines()
    assert lines[0].startswith("Traceback") and "test_run_step.py" in lines[1]


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, str]]:
    attempt = claim(hangs, tmp_path)
    driver = start(attempt)
    file = Path(attempt.spec["output_path"], "pid")
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.05)
    yield driver, psutil.Process(int(file.read_text())), attempt.spec["output_path"]
    driver.kill()
    driver.communicate()


def test_a_driver_that_is_asked_to_stop_ends_the_function(hanging: Any) -> None:
    driver, function, output_path = hanging
    driver.terminate()
    assert driver.wait(60) == 128 + signal.SIGTERM
    function.wait(60)
    ended = newest_attempt(output_path)
    assert ended is not None and ended.outcome is Outcome.STOPPED
    assert read_status(output_path) is Status.RUNNING  # and so not a result


def test_a_killed_driver_leaves_no_result_and_no_process(hanging: Any) -> None:
    driver, function, output_path = hanging
    driver.kill()
    driver.wait(60)
    function.wait(60)
    assert read_status(output_path) is Status.RUNNING
    unended = newest_attempt(output_path)
    assert unended is not None and unended.outcome is None


def test_a_driver_whose_attempt_was_given_up_stops_and_leaves_the_record_alone(hanging: Any) -> None:
    driver, function, output_path = hanging
    given_up = newest_attempt(output_path)
    assert given_up is not None
    end_attempt(output_path, given_up, Outcome.LOST)
    assert driver.wait(60) == 128 + signal.SIGTERM
    function.wait(60)
    ended = newest_attempt(output_path)
    assert ended is not None and ended.outcome is Outcome.LOST
    assert read_status(output_path) is Status.RUNNING


def test_what_is_made_after_the_attempt_was_given_up_does_not_count(tmp_path: Path) -> None:
    attempt = claim(gives_up_its_own_attempt, tmp_path)
    driver = start(attempt)
    text, _ = driver.communicate()
    assert (driver.returncode, read_status(attempt.spec["output_path"])) == (SUPERSEDED, Status.RUNNING)
    assert "ended from outside" in text
