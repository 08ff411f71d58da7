"""Goodput: seconds of the steps that count, each once, per second since the training's first start.

The progress line, the timeline in a task's log and a drill's report all use it, from the rows of the metrics file. A
step's seconds cover loading its batch and computing it. Unproductive time: waiting for a slice, starting, compiling (so
the first step of every attempt), lost steps, checkpoints and validation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tradewind.storage.bounded_read import value_count

METRICS_FILE: Final = "metrics.jsonl"
"""File of an output: one JSON line per step, in the order of execution."""
STEP_SECONDS: Final = "step_seconds"
"""Key of a metrics row: duration of the step."""
MAX_LINE_CHARS: Final = 1 << 16
"""Longer lines, which no training writes, are read in parts."""
_LINE: Final = re.compile(rf"[^\n]{{1,{MAX_LINE_CHARS}}}")
MAX_VALUES: Final = 1 << 21
"""Bound for the values of another training's file: some 500,000 steps."""
_MAX_OTHER_LINES: Final = 1000
"""Lines that are no object; a training leaves one at each kill."""
_TIMES: Final = ("time", STEP_SECONDS)
_MAX_S: Final = 1e11
"""Maximum duration, and time since 1970. Longer values and non-numbers are ignored."""


class CountedSteps:
    """Steps that count so far, from ``rows`` in the order in which they were written."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._seconds: dict[int, float] = {}
        self._reached = -1
        self._productive: float | None = 0.0
        for row in rows:
            took = row.get(STEP_SECONDS)
            self.add(int(row["step"]), None if took is None else float(took))

    def add(self, step: int, seconds: float | None) -> None:
        """Add a step; ``seconds`` is None for an attempt's first, whose time before the restart then counts.

        Later steps from before the restart do not count until they are executed again.
        """
        if seconds is not None:
            self._seconds[step] = seconds
        if self._productive is not None and step == self._reached + 1:
            self._productive += self._seconds.get(step, 0.0)
        else:
            self._productive = None  # summed on request: rows may go back and forth often
        self._reached = step

    @property
    def seconds(self) -> float:
        """Return the seconds of all steps that count."""
        if self._productive is None:
            self._productive = sum(took for made, took in self._seconds.items() if made <= self._reached)
        return self._productive


def goodput(productive_s: float, wall_s: float) -> float | None:
    """Return the share, between 0 and 1; None without any time."""
    return min(max(productive_s / wall_s, 0.0), 1.0) if wall_s > 0 else None


def first_start(rows: Iterable[Mapping[str, Any]], pod_started: float) -> float:
    """Return the training's first start: of its pod, or of an earlier attempt that has rows."""
    return min([pod_started, *(float(row["time"]) for row in rows if row.get("time") is not None)])


def objects_in(lines: Iterable[str | bytes], max_others: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines; end after ``max_others`` other lines."""
    others = 0
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        elif (others := others + 1) == max_others:
            return


def bounded_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the text of another training's file; none if it has more than ``MAX_VALUES``."""
    lines = _LINE.finditer(text) if value_count(text) <= MAX_VALUES else ()
    return objects_in((found[0] for found in lines), _MAX_OTHER_LINES)


def metrics_rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of a metrics file in file order, without a line that a kill truncated."""
    return [
        row
        for row in bounded_objects(text)
        if isinstance(row.get("step"), int) and all(map(_is_time, map(row.get, _TIMES)))
    ]


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and 0 <= value <= _MAX_S)
