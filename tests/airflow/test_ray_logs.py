"""A job's lines in the task's log while triggerers come and go."""

from __future__ import annotations

import random
import re
import time

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


def printing(house: House, seconds: int) -> HouseRun:
    run = house.begin("ray_prints", {"rate": RATE, "seconds": seconds})
    until(lambda: len(numbers(run)) > RATE, "the job's first lines")
    return run


def test_two_orderly_restarts_neither_lose_nor_repeat_a_line(house: House) -> None:
    moments = random.Random(SEED)
    run = printing(house, seconds=120)
    for _ in range(2):
        house.airflow.stop_component("triggerer")
        house.airflow.start_component("triggerer")
        seen = len(numbers(run))
        until(lambda at_least=seen + RATE: len(numbers(run)) > at_least, "lines through the new triggerer")
        time.sleep(moments.uniform(0, 5))
    run.wait()
    assert run.states() == {"job": "success"}
    assert numbers(run) == list(range(RATE * 120))
    assert "may come again" not in run.log("job")


def test_a_killed_triggerer_loses_no_line_and_says_that_a_few_come_again(house: House) -> None:
    moments = random.Random(SEED)
    run = printing(house, seconds=60)
    time.sleep(moments.uniform(0, 5))
    house.airflow.kill_component("triggerer")
    house.airflow.start_component("triggerer")
    run.wait()
    assert run.states() == {"job": "success"}
    found = numbers(run)
    assert list(dict.fromkeys(found)) == list(range(RATE * 60)), "each line, and in order when first seen"
    again = len(found) - RATE * 60
    print(f"{again / RATE:.2f} seconds of lines came again")
    assert again <= RATE * MOST_SECONDS_AGAIN
    [before, after] = re.split(r".* may come again below.*\n", run.log("job"))
    assert sorted(re.findall(r"line (\d+)$", before, re.MULTILINE)) == sorted(
        set(re.findall(r"line (\d+)$", before, re.MULTILINE))
    ), "nothing comes twice before the line that says so"
