"""Goodput: the seconds of the steps that count, each once, divided by the seconds since the training's first start.

The progress line, the story in a task's log and a drill's report all count by this, from the rows of the metrics file.
A step's seconds are those in which its batch was loaded and it was computed. What is not productive: waiting for a
slice, starting, compiling (so the first step of every attempt), steps that were lost, checkpoints and validation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

METRICS_FILE: Final = "metrics.jsonl"
"""Of an output: one JSON line about each step, in the order in which they were made."""
STEP_SECONDS: Final = "step_seconds"
"""Of a row of the metrics: how long the step took."""
_TIMES: Final = ("time", STEP_SECONDS)
_LONGEST_S: Final = 1e11
"""Also since 1970. What is longer, or no number, is nobody's time."""


class CountedSteps:
    """The steps so far that count, from ``rows`` in the order in which they were written."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._seconds: dict[int, float] = {}
        self._reached = -1
        self._productive: float | None = 0.0
        for row in rows:
            took = row.get(STEP_SECONDS)
            self.add(int(row["step"]), None if took is None else float(took))

    def add(self, step: int, seconds: float | None) -> None:
        """A step was made; ``seconds`` is None for the first of an attempt, whose time before the restart then stands.

        What was made beyond it before counts no more until it is made again.
        """
        if seconds is not None:
            self._seconds[step] = seconds
        if self._productive is not None and step == self._reached + 1:
            self._productive += self._seconds.get(step, 0.0)
        else:
            self._productive = None  # added up when it is asked for: rows may go back and forth as often as they like
        self._reached = step

    @property
    def seconds(self) -> float:
        """Of all that count."""
        if self._productive is None:
            self._productive = sum(took for made, took in self._seconds.items() if made <= self._reached)
        return self._productive


def goodput(productive_s: float, wall_s: float) -> float | None:
    """The share, between 0 and 1; None without any time."""
    return min(max(productive_s / wall_s, 0.0), 1.0) if wall_s > 0 else None


def first_start(rows: Iterable[Mapping[str, Any]], pod_started: float) -> float:
    """When the training was first started: with its pod, or earlier, if it has rows of an attempt before that pod."""
    return min([pod_started, *(float(row["time"]) for row in rows if row.get("time") is not None)])


def metrics_rows(text: str) -> list[dict[str, Any]]:
    """The rows of a metrics file in the order in which they were written, without a line that a kill cut off."""
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and all(map(_is_time, map(row.get, _TIMES))):
            rows.append(row)
    return rows


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and 0 <= value <= _LONGEST_S)
