"""A function returns its result as one line of plain JSON, or returns none."""

from __future__ import annotations

import datetime
import enum
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.dag_files import MARKER
from tests.serialization.callable_parts import Point
from tradewind.serialization.errors import ResultError
from tradewind.serialization.shipping import decode_result, result_line


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Report:
    points: list[Point]
    on: datetime.date


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ({"a": [1, 2.5, "x", True]}, {"a": [1, 2.5, "x", True]}),
        ((1, {2}), [1, [2]]),
        (Report([Point(1)], datetime.date(2026, 11, 20)), {"points": [{"x": 1, "y": 0}], "on": "2026-11-20"}),
        ([Color.RED, Level.LOW], ["red", 1]),
        ({1: math.nan, Color.RED: math.inf}, {"1": None, "red": None}),
        ([datetime.timedelta(minutes=1), Path("/x")], [60.0, "/x"]),
    ],
)
def test_result_is_one_line_of_plain_json(result: Any, expected: Any) -> None:
    line = result_line(result, MARKER)
    assert "\n" not in line
    assert decode_result(line.removeprefix(MARKER), "job-1") == expected


def test_number_of_numpy_is_a_number() -> None:
    import numpy

    assert result_line({"loss": numpy.float32(0.5), "n": numpy.int64(3)}, "") == '{"loss": 0.5, "n": 3}'


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (object(), "returned a object, which JSON cannot hold"),
        (b"x", "returned a bytes"),
        ({(1, 2): 3}, "a mapping with a key of type tuple"),
        ("x" * 1_000_000, "returned 1,000,002 bytes of JSON, and a result may have 1,000,000: write the data"),
        (LOOP, "a value that contains itself"),
    ],
)
def test_result_that_json_cannot_hold_is_refused(result: Any, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        result_line(result, MARKER)


@pytest.mark.parametrize("text", [None, "", '{"a": 1'])
def test_incomplete_result_is_refused(text: str | None) -> None:
    with pytest.raises(ResultError, match="Ray job 'job-1' succeeded, but its log does not end with the result"):
        decode_result(text, "job-1")
