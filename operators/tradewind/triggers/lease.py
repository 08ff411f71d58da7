"""Wait for another task's attempt at an output: until it has ended, or its lease is stale.

All tasks that wait share one batched read of the store: calls within ``BATCH_WINDOW_S`` are answered together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tradewind.records.record import Record, RecordState, read_records
from tradewind.storage.errors import StoreError
from tradewind.triggers.in_line import ending_in_line

logger = logging.getLogger(__name__)

BATCH_WINDOW_S = 0.2
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 15.0
NOTICE_S = 300.0

_readers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Reader] = WeakKeyDictionary()


async def read_record_batched(output_path: str) -> Record:
    """Read the record of an output, batched with other calls of this moment.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    loop = asyncio.get_running_loop()
    reader = _readers.get(loop)
    if reader is None:
        reader = _readers[loop] = _Reader()
    return await reader.read(output_path)


class _Reader:
    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[Record]]] = defaultdict(list)
        self._reading: asyncio.Task[None] | None = None

    async def read(self, output_path: str) -> Record:
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waiting[output_path].append(future)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_soon())
        return await future

    async def _read_soon(self) -> None:
        await asyncio.sleep(BATCH_WINDOW_S)
        waiting, self._waiting = self._waiting, defaultdict(list)
        self._reading = None
        try:
            records = await asyncio.to_thread(read_records, list(waiting))
        except Exception as error:  # every caller gets it
            for futures in waiting.values():
                _settle(futures, error)
        else:
            for path, futures in waiting.items():
                _settle(futures, records[path])


def _settle(futures: list[asyncio.Future[Record]], result: Record | Exception) -> None:
    for future in futures:
        if future.done():  # its caller was cancelled meanwhile
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


class LeaseTrigger(BaseTrigger):
    """Fires when no attempt at an output is live any more.

    The event has ``attempt``, the last live one, and ``payload``.

    Args:
        output_path: The output.
        attempt: The live attempt.
        payload: Any JSON; the event returns it.
    """

    def __init__(self, output_path: str, attempt: int, *, payload: dict[str, Any]) -> None:
        super().__init__()
        self.output_path = output_path
        self.attempt = attempt
        self.payload = payload

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"output_path": self.output_path, "attempt": self.attempt, "payload": self.payload}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the release of the lease."""
        async with ending_in_line(self, f"Attempt {self.attempt} at {self.output_path} is not stopped."):
            attempt = await wait_for_release(self.output_path, self.attempt, logger.info)
        yield TriggerEvent({"attempt": attempt, **self.payload})


async def wait_for_release(output_path: str, attempt: int, log: Callable[[str], None]) -> int:
    """Wait until no attempt at ``output_path`` is live; return the last live one."""
    pause_s, noticed_at = FIRST_PAUSE_S, time.monotonic()
    while True:
        try:
            record = await read_record_batched(output_path)
        except StoreError as error:
            log(f"Cannot read the lease of {output_path}: {error} Retrying in {pause_s:.0f} s.")
        else:
            if record.state is not RecordState.AT_WORK:
                return attempt
            attempt, pause_s = _next_read(record, attempt, pause_s)
            if time.monotonic() - noticed_at >= NOTICE_S:
                noticed_at = time.monotonic()
                log(f"Still waiting: attempt {attempt} at {output_path} is running.")
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, MAX_PAUSE_S)


def _next_read(record: Record, attempt: int, pause_s: float) -> tuple[int, float]:
    """Return the live attempt, and the pause before the next read: short again when another attempt has begun."""
    now = record.lease.attempt if record.lease is not None else attempt
    left_s = record.lease.stale_s - record.lease_age_s if record.lease is not None else pause_s
    return now, FIRST_PAUSE_S if now != attempt else min(pause_s, max(left_s, FIRST_PAUSE_S))
