"""Wait for a condition, with one limit for all tests, scaled by the speed of this machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LIMIT_S: Final = 120.0
"""Limit on an idle machine of usual speed. It only bounds tests that fail; no test runs into it."""
PACE: Final = "TRADEWIND_TEST_PACE"
"""Environment variable with the slowness factor of this machine, for child processes too; ``calibrate`` sets it."""
_USUAL_S: Final = 0.1
_MAX_PACE: Final = 5.0


def calibrate() -> None:
    """Time a fixed loop once per run, so that a loaded or slow machine gets longer limits."""
    begun = time.monotonic()
    sum(number * number for number in range(1_500_000))
    pace = (time.monotonic() - begun) / _USUAL_S
    os.environ.setdefault(PACE, f"{min(max(pace, 1.0), _MAX_PACE):.2f}")


def limit_s() -> float:
    """Return how many seconds a test may wait on this machine."""
    return LIMIT_S * float(os.environ.get(PACE, "1"))


def until(condition: Callable[[], T], what: str = "", seen: Callable[[], object] = str, pause_s: float = 0.05) -> T:
    """Poll ``condition`` until it is true, and return its value; fail with ``what`` and ``seen()`` at ``limit_s()``.

    The poll interval grows with the duration of the condition, so that the awaited process gets most of a core.
    """
    polled_at = time.monotonic()
    deadline = polled_at + limit_s()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"timed out after {limit_s():.0f} s: {what or condition}: {seen()}"
        time.sleep(max(pause_s, 2 * (time.monotonic() - polled_at)))
        polled_at = time.monotonic()
    return value


async def until_async(condition: Callable[[], T], what: str = "", pause_s: float = 0.02) -> T:
    """Poll ``condition`` as ``until`` does, without blocking the event loop."""
    deadline = time.monotonic() + limit_s()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"timed out after {limit_s():.0f} s: {what or condition}"
        await asyncio.sleep(pause_s)
    return value
