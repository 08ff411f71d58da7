"""One question to the store for all tasks that wait: those who ask within a moment of each other share a read."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from weakref import WeakKeyDictionary

from tradewind.records.reading import read_records
from tradewind.records.record import Record

GATHER_S = 0.2

_readers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Reader] = WeakKeyDictionary()


async def read_shared(output_path: str) -> Record:
    """The record of an output, read together with those that others ask for now.

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
        await asyncio.sleep(GATHER_S)
        waiting, self._waiting = self._waiting, defaultdict(list)
        self._reading = None
        try:
            records = await asyncio.to_thread(read_records, list(waiting))
        except Exception as error:  # every asker gets it
            for futures in waiting.values():
                _settle(futures, error)
        else:
            for path, futures in waiting.items():
                _settle(futures, records[path])


def _settle(futures: list[asyncio.Future[Record]], answer: Record | Exception) -> None:
    for future in futures:
        if future.done():  # its asker was cancelled meanwhile
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
