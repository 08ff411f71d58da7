"""A job's lines in the task's log while triggerers come and go."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from tests.airflow.conftest import House, HouseRun, until

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

RATE = 200
SEED = 20261121
MOST_SECONDS_AGAIN = 5
"""A bound for noisy machines; what is aimed at is three seconds, which are logged at once."""


def numbers(run: HouseRun) -> list[int]:
    """The numbers of the job's lines in the order of the task's log."""
    return [int(found) for found in re.findall(r"(?:^| info )line (\d+)$", run.log("job"), re.MULTILINE)]


def printed(run: HouseRun) -> int:
    """How many lines the job says that it has printed."""
    [count] = re.findall(r"(?:^| info )printed (\d+) lines$", run.log("job"), re.MULTILINE)
    return int(count)


def printing(house: House, end: Path) -> HouseRun:
    """A job that prints until the file ``end`` is there."""
    run = house.begin("ray_prints", {"rate": RATE, "end": str(end)})
    until(lambda: len(numbers(run)) > RATE, "the job's first lines")
    return run


def await_more(run: HouseRun) -> None:
    """Wait for lines through the triggerer that runs now."""
    seen = len(numbers(run))
    until(lambda: len(numbers(run)) > seen + RATE, "lines through the new triggerer")


def test_two_orderly_restarts_neither_lose_nor_repeat_a_line(house: House, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    run = printing(house, tmp_path / "end")
    for _ in range(2):
        house.airflow.stop_component("triggerer")
        house.airflow.start_component("triggerer")
        await_more(run)
        time.sleep(moments.uniform(0, 5))
    (tmp_path / "end").touch()
    run.wait()
    assert run.states() == {"job": "success"}
    assert numbers(run) == list(range(printed(run)))
    assert "may come again" not in run.log("job")


def test_a_killed_triggerer_loses_no_line_and_says_that_a_few_come_again(house: House, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    run = printing(house, tmp_path / "end")
    time.sleep(moments.uniform(0, 5))
    house.airflow.kill_component("triggerer")
    house.airflow.start_component("triggerer")
    await_more(run)
    (tmp_path / "end").touch()
    run.wait()
    assert run.states() == {"job": "success"}
    found = numbers(run)
    assert list(dict.fromkeys(found)) == list(range(printed(run))), "each line, and in order when first seen"
    again = len(found) - printed(run)
    print(f"{again / RATE:.2f} seconds of lines came again")
    assert again <= RATE * MOST_SECONDS_AGAIN
    [before, after] = re.split(r".* may come again below.*\n", run.log("job"))
    assert sorted(re.findall(r"line (\d+)$", before, re.MULTILINE)) == sorted(
        set(re.findall(r"line (\d+)$", before, re.MULTILINE))
    ), "nothing comes twice before the line that says so"
