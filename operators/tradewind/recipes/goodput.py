"""Goodput: the seconds of the steps that count, divided by the seconds since the training was first started.

A step's seconds are those in which its batch was loaded and it was computed. A step that was done again after a
preemption counts once. What is not productive: waiting for a slice, starting, compiling (so the first step of every
attempt), steps that were lost, checkpoints and validation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

FIRST_START_VARIABLE = "TRADEWIND_FIRST_START"
RESTARTS_VARIABLE = "TRADEWIND_RESTARTS"
QUIET_SECONDS = 60.0
"""A training younger than this, and not restarted, is mostly its own start: its goodput says nothing."""
STEP_SECONDS = "step_seconds"
"""Of a row of the metrics: how long the step took."""


class Goodput:
    """The sum so far. ``rows`` are the metrics of the attempts before; a later row about a step replaces the former."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], started: float, restarts: int = 0) -> None:
        self.restarts = restarts
        self._started = started
        self._before = {int(row["step"]): float(row[STEP_SECONDS]) for row in rows if STEP_SECONDS in row}
        self._productive: float | None = None

    @staticmethod
    def of_this_pod(rows: Iterable[Mapping[str, Any]]) -> Goodput:
        """With what the pod runner tells its processes; rows of an attempt before this pod tell of an earlier start."""
        known = list(rows)
        first = float(os.environ.get(FIRST_START_VARIABLE) or time.time())
        started = min([first, *(float(row["time"]) for row in known if "time" in row)])
        return Goodput(known, started, int(os.environ.get(RESTARTS_VARIABLE) or 0))

    def add(self, step: int, seconds: float | None) -> None:
        """Count a step; ``seconds`` is None for the first of an attempt, whose time before the restart then stands."""
        if self._productive is None:  # from here on, what earlier attempts did beyond this step is done again
            self._productive = sum(took for done, took in self._before.items() if done < step)
        self._productive += self._before.get(step, 0.0) if seconds is None else seconds

    def share(self, now: float) -> float | None:
        """Between 0 and 1; None as long as it says nothing."""
        wall = now - self._started
        if self._productive is None or wall <= 0 or (wall < QUIET_SECONDS and not self.restarts):
            return None
        return min(self._productive / wall, 1.0)


class StepTimer:
    """Seconds of a step: since all was done that belongs to the one before, checkpoint and validation included."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """All that belongs to the step before is done."""
        self._since = now

    def end(self, now: float) -> float | None:
        """The seconds of the step that ends now; None if nobody saw it begin."""
        began, self._since = self._since, None
        return None if began is None else now - began
