"""A job's lines in the task's log while triggerers restart."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from pathlib import Path

import pytest
import requests

from tests.airflow.conftest import DagRun, Environment
from tests.support.waiting import until
from tradewind.deployment.log_position import FILES

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

RATE = 200
SEED = 20261121


def numbers_in(log: str) -> list[int]:
    """Return the numbers of the job's lines in the order of this log."""
    return [int(found) for found in re.findall(r"(?:^| info )line (\d+)$", log, re.MULTILINE)]


def numbers(run: DagRun) -> list[int]:
    """Return the numbers of the job's lines in the order of the task's log."""
    return numbers_in(run.log("job"))


def printed(run: DagRun) -> int:
    """Return the line count that the job reports at its end."""
    [count] = re.findall(r"(?:^| info )printed (\d+) lines$", run.log("job"), re.MULTILINE)
    return int(count)


def printing(env: Environment, end: Path) -> DagRun:
    """Start a job that prints until the file ``end`` exists."""
    run = env.begin("ray_prints", {"rate": RATE, "end": str(end)})
    until(lambda: len(numbers(run)) > RATE, "the job's first lines")
    return run


def await_more(run: DagRun) -> None:
    """Wait for lines through the new triggerer."""
    seen = len(numbers(run))
    until(lambda: len(numbers(run)) > seen + RATE, "lines through the new triggerer")


def saved_chars(env: Environment, job: str) -> int:
    """Return the log position, in characters, that the triggerer saved last; 0 before the first save."""
    saved = [json.loads(file.read_text()) for file in (env.airflow.home / "logs" / FILES).glob("*.json")]
    return max((one["position"]["chars"] for one in saved if one["job"] == job), default=0)


def number_behind(env: Environment, job: str, chars: int) -> int:
    """Return the number of the first line after ``chars`` characters of the job's log, without newlines."""
    lines = requests.get(f"{env.ray_address}/api/jobs/{job}/logs", timeout=30).json()["logs"].splitlines()
    ends = itertools.accumulate(len(line) for line in lines)
    return next(int(line.removeprefix("line ")) for line, end in zip(lines, ends, strict=True) if end > chars)


@pytest.mark.long
def test_orderly_restarts_neither_lose_nor_repeat_a_line(env: Environment, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    run = printing(env, tmp_path / "end")
    for _ in range(2):
        env.airflow.stop_component("triggerer")
        env.airflow.start_component("triggerer")
        await_more(run)
        time.sleep(moments.uniform(0, 5))
    (tmp_path / "end").touch()
    run.wait()
    assert run.states() == {"job": "success"}
    assert numbers(run) == list(range(printed(run)))
    assert "may come again" not in run.log("job")


def test_killed_triggerer_loses_no_line_and_announces_repeats(env: Environment, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    run = printing(env, tmp_path / "end")
    [job] = [one["submission_id"] for one in run.jobs()]
    until(lambda: saved_chars(env, job), "the first saved position")
    time.sleep(moments.uniform(0, 5))
    env.airflow.kill_component("triggerer")
    saved = saved_chars(env, job)
    env.airflow.start_component("triggerer")
    await_more(run)
    (tmp_path / "end").touch()
    run.wait()
    assert run.states() == {"job": "success"}
    before, after = (numbers_in(part) for part in re.split(r".* may come again below.*\n", run.log("job")))
    assert before == list(range(len(before))), "no line repeats before the announcement"
    assert after == list(range(number_behind(env, job, saved), printed(run))), "lines after the saved position repeat"
    assert after[0] <= len(before), "no line is lost"
