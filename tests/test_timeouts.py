"""A time limit raises TimeoutError for itself only, also after an earlier cancellation was caught."""

from __future__ import annotations

import asyncio

import pytest

from tradewind.timeouts import within

FOREVER_S = 3600.0


async def catch_cancellation() -> None:
    """Catch a cancellation of this task without ``uncancel``, as aiohttp's time limits do."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling() == 1


@pytest.mark.parametrize("was_cancelled", [False, True])
async def test_exceeded_limit_raises_timeout_error(was_cancelled: bool) -> None:
    if was_cancelled:
        await catch_cancellation()
    with pytest.raises(TimeoutError):
        async with within(0.01) as limit:
            await asyncio.sleep(FOREVER_S)
    assert limit.expired()


@pytest.mark.parametrize("delay", [None, FOREVER_S])
async def test_limit_that_is_not_exceeded_has_no_effect(delay: float | None) -> None:
    async with within(delay) as limit:
        await asyncio.sleep(0)
    assert not limit.expired()


@pytest.mark.parametrize("delay", [None, FOREVER_S])
async def test_cancellation_within_limit_is_passed_on(delay: float | None) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        await catch_cancellation()
        async with within(delay):
            entered.set()
            await asyncio.sleep(FOREVER_S)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_error_within_limit_is_passed_on() -> None:
    with pytest.raises(KeyError):
        async with within(FOREVER_S):
            raise KeyError("x")


async def test_shorter_of_two_nested_limits_raises() -> None:
    with pytest.raises(TimeoutError):
        async with within(FOREVER_S) as outer:
            with pytest.raises(TimeoutError):
                async with within(0.01):
                    await asyncio.sleep(FOREVER_S)
            assert not outer.expired()
            async with within(0.01):
                await asyncio.sleep(FOREVER_S)
