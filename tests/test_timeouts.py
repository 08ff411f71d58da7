"""A time limit raises TimeoutError for itself only, also after an earlier cancellation was caught."""

from __future__ import annotations

import asyncio

import pytest

from tradewind.timeouts import within

FOREVER_S = 3600.0


async def have_been_cancelled() -> asyncio.Task[None]:
    """Catch a cancellation of this task without ``uncancel``, as aiohttp's time limits do."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling() == 1
    return task


@pytest.mark.parametrize("was_cancelled", [False, True])
async def test_who_waits_too_long_gets_a_timeout(was_cancelled: bool) -> None:
    if was_cancelled:
        await have_been_cancelled()
    with pytest.raises(TimeoutError):
        async with within(0.01) as limit:
            await asyncio.sleep(FOREVER_S)
    assert limit.expired()


@pytest.mark.parametrize("delay", [None, FOREVER_S])
async def test_who_is_done_in_time_hears_nothing(delay: float | None) -> None:
    async with within(delay) as limit:
        await asyncio.sleep(0)
    assert not limit.expired()


@pytest.mark.parametrize("delay", [None, FOREVER_S])
async def test_who_is_cancelled_meanwhile_is_cancelled(delay: float | None) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        await have_been_cancelled()
        async with within(delay):
            entered.set()
            await asyncio.sleep(FOREVER_S)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_goes_wrong_meanwhile_is_told() -> None:
    with pytest.raises(KeyError):
        async with within(FOREVER_S):
            raise KeyError("x")


async def test_of_two_limits_the_shorter_one_is_told() -> None:
    with pytest.raises(TimeoutError):
        async with within(FOREVER_S) as outer:
            with pytest.raises(TimeoutError):
                async with within(0.01):
                    await asyncio.sleep(FOREVER_S)
            assert not outer.expired()
            async with within(0.01):
                await asyncio.sleep(FOREVER_S)
