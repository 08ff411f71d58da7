"""Waiting for somebody else's turn at an output: until it has ended, or its lease has run out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tradewind.records.record import Record, RecordState
from tradewind.storage.errors import StoreError
from tradewind.turns.wait import read_shared

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
NOTICE_S = 300.0

logger = logging.getLogger(__name__)


class LeaseTrigger(BaseTrigger):
    """Fires when nobody is at work at an output any more.

    The event holds ``attempt``, the last that was at work, and ``payload``.

    Args:
        output_path: The output.
        attempt: The attempt that is at work now.
        payload: Any JSON.
    """

    def __init__(self, output_path: str, attempt: int, *, payload: dict[str, Any]) -> None:
        super().__init__()
        self.output_path = output_path
        self.attempt = attempt
        self.payload = payload

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"output_path": self.output_path, "attempt": self.attempt, "payload": self.payload}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait."""
        attempt = await await_turn_end(self.output_path, self.attempt, logger.info)
        yield TriggerEvent({"attempt": attempt, **self.payload})


async def await_turn_end(output_path: str, attempt: int, say: Callable[[str], None]) -> int:
    """Wait until nobody is at work at ``output_path``; the last attempt that was."""
    pause_s, noticed_at = FIRST_PAUSE_S, time.monotonic()
    while True:
        try:
            record = await read_shared(output_path)
        except StoreError as error:
            say(f"{error} Asking again.")
        else:
            if record.state is not RecordState.AT_WORK:
                return attempt
            attempt, pause_s = _next_look(record, attempt, pause_s)
            if time.monotonic() - noticed_at >= NOTICE_S:
                noticed_at = time.monotonic()
                say(f"Still waiting: attempt {attempt} is at work at {output_path}.")
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)


def _next_look(record: Record, attempt: int, pause_s: float) -> tuple[int, float]:
    """The attempt that is at work now, and the pause: short again when another attempt has begun."""
    now = record.lease.attempt if record.lease is not None else attempt
    left_s = record.lease.stale_s - record.lease_age_s if record.lease is not None else pause_s
    return now, FIRST_PAUSE_S if now != attempt else min(pause_s, max(left_s, FIRST_PAUSE_S))
