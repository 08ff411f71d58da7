"""Concurrent equal requests to a cluster share one answer."""

from __future__ import annotations

import asyncio

import pytest

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import cached_answer


async def test_askers_share_an_answer_and_an_error_is_asked_again() -> None:
    asked = []

    async def ask() -> int:
        asked.append(1)
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise ConnectionError
        return len(asked)

    async with JobsApi(RayCluster("one", "http://127.0.0.1:1")) as one:
        first = await asyncio.gather(*(cached_answer(one, "it", ask) for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in first} == {ConnectionError}
        assert await asyncio.gather(*(cached_answer(one, "it", ask) for _ in range(5))) == [2] * 5
        assert await cached_answer(one, "something else", ask) == 3
    async with JobsApi(RayCluster("other", "http://127.0.0.1:1")) as other:
        assert await cached_answer(other, "it", ask) == 4


async def test_cancelled_caller_leaves_shared_response_to_others() -> None:
    started = asyncio.Event()
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask() -> int:
        started.set()
        return await answer

    async with JobsApi(RayCluster("one", "http://127.0.0.1:1")) as api:
        gives_up, waits = (asyncio.create_task(cached_answer(api, "it", ask)) for _ in range(2))
        await started.wait()
        gives_up.cancel()
        answer.set_result(7)
        assert await waits == 7
        with pytest.raises(asyncio.CancelledError):
            await gives_up
