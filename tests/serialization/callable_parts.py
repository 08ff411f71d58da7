"""A module in a cluster's image, with functions that jobs call by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tradewind import remote

STATE = {"calls": 0}


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


def doubled(point: Point, *, times: int = 1) -> Point:
    STATE["calls"] += 1
    return Point(point.x * 2 * times, point.y)


@remote(num_cpus=0.5)
def far(value: int) -> int:
    return value + 1


def fails(value: int) -> None:
    raise ValueError(f"no good: {value}")


class Holder:
    def method(self) -> None: ...

    @classmethod
    def made(cls) -> str:
        return cls.__name__


def returns(value: Any) -> Any:
    return value
