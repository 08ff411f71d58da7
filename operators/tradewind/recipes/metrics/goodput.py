"""The goodput, as ``cloud_tpu.goodput`` has it, of the training that runs in this process: for its progress lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tradewind.cloud_tpu.goodput import CountedSteps, first_start, goodput

FIRST_START_VARIABLE = "TRADEWIND_FIRST_START"
RESTARTS_VARIABLE = "TRADEWIND_RESTARTS"
QUIET_S = 60.0
"""A training younger than this, and not restarted, is mostly its own start: its goodput says nothing."""


class Goodput:
    """The sum so far. ``rows`` are the metrics of the attempts before."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], started: float, restarts: int = 0) -> None:
        self.restarts = restarts
        self._started = started
        self._steps = CountedSteps(rows)
        self._goes_on = False

    @staticmethod
    def of_this_pod(rows: Iterable[Mapping[str, Any]]) -> Goodput:
        """With what the pod runner tells its processes."""
        known = list(rows)
        started = first_start(known, float(os.environ.get(FIRST_START_VARIABLE) or time.time()))
        return Goodput(known, started, int(os.environ.get(RESTARTS_VARIABLE) or 0))

    def add(self, step: int, seconds: float | None) -> None:
        """Count a step; ``seconds`` is None for the first of an attempt."""
        self._goes_on = True
        self._steps.add(step, seconds)

    def share(self, now: float) -> float | None:
        """Between 0 and 1; None as long as it says nothing."""
        wall = now - self._started
        if not self._goes_on or (wall < QUIET_S and not self.restarts):
            return None
        return goodput(self._steps.seconds, wall)


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
