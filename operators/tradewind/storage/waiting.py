"""Calls to the asynchronous file systems of fsspec, in their own event loop and within our patience."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from fsspec.asyn import sync

from tradewind.storage import Location, file_system_at
from tradewind.storage import backends as stores
from tradewind.storage.failures import failures_told
from tradewind.timeouts import within

Result = TypeVar("Result")

_shared: dict[tuple[int, str], Any] = {}
"""The file system of each process and protocol. fsspec would make one for each thread, with a client of its own."""


def file_system_of(path: str) -> tuple[Any, str]:
    """The file system of ``path`` and its name there; after a fork a new one, with connections of its own."""
    scheme = Location.of(path).scheme
    if scheme not in ("gs", "s3"):
        return file_system_at(path)
    found = _shared.get((os.getpid(), scheme))
    if found is None:
        found = _shared.setdefault((os.getpid(), scheme), file_system_at(path)[0])
    return found, str(found._strip_protocol(path))


def ask(path: str, call: Callable[[Any, str, str], Awaitable[Result]], patience_s: float | None = None) -> Result:
    """What ``call`` returns for the file system, bucket and key of ``path``, in ``patience_s``, else ``PATIENCE_S``."""
    with failures_told(path):
        fs, name = file_system_of(path)
        bucket, _, key = name.partition("/")
        most_s = stores.PATIENCE_S if patience_s is None else patience_s
        result: Result = sync(fs.loop, lambda: asyncio.wait_for(call(fs, bucket, key), most_s))
        return result


async def at_once(
    call: Callable[[str], Awaitable[Result | None]], names: Sequence[str], workers: int
) -> dict[str, Result]:
    """What ``call`` returns for each name that has something, with so many calls under way."""
    results: dict[str, Result] = {}
    waiting: Iterator[str] = iter(names)

    async def work() -> None:
        for name in waiting:
            async with within(stores.PATIENCE_S):
                result = await call(name)
            if result is not None:
                results[name] = result

    tasks = [asyncio.create_task(work()) for _ in range(min(workers, len(names)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return results
