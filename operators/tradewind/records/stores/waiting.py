"""Calls to the asynchronous file systems of fsspec, in their own event loop and within our patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from fsspec.asyn import sync
from fsspec.core import url_to_fs

from tradewind.records import stores
from tradewind.records.stores.failures import failures_told

Result = TypeVar("Result")


def ask(path: str, call: Callable[[Any, str, str], Awaitable[Result]]) -> Result:
    """What ``call`` returns for the file system, bucket and key of ``path``; a fork begins with fresh connections."""
    with failures_told(path):
        fs, name = url_to_fs(path)
        bucket, _, key = name.partition("/")
        result: Result = sync(fs.loop, lambda: asyncio.wait_for(call(fs, bucket, key), stores.PATIENCE_S))
        return result


async def at_once(
    call: Callable[[str], Awaitable[Result | None]], names: Sequence[str], workers: int
) -> dict[str, Result]:
    """What ``call`` returns for each name that has something, with so many calls under way."""
    results: dict[str, Result] = {}
    waiting: Iterator[str] = iter(names)

    async def work() -> None:
        for name in waiting:
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
