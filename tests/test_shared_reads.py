"""Reads that are shared: one at a time for each key, and a limit to every wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.waiting import until
from tradewind.shared_reads import PollResult, Running, SharedReads, TooManyReadsError


class Service:
    """A service that counts its calls, and holds its answers back while ``open`` is not set."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.open = threading.Event()
        if is_open:
            self.open.set()

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        self.open.wait(10)
        if self.error is not None:
            raise self.error
        return number


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shared(**limits: Any) -> SharedReads[Any]:
    return SharedReads(**{"ttl_s": 15, "wait_s": 60, "known_errors": (OSError,)} | limits)


def asked(polls: SharedReads[Any], service: Callable[[], Any]) -> PollResult[Any]:
    return polls.results({"one": service})["one"]


def test_many_viewers_cost_one_call() -> None:
    service, clock = Service(is_open=False), Clock()
    polls = shared(ttl_s=15, wait_s=1e9, clock=clock)
    found: list[PollResult[Any]] = []
    viewers = [threading.Thread(target=lambda: found.append(asked(polls, service))) for _ in range(10)]
    for viewer in viewers:
        viewer.start()
    until(lambda: service.calls == 1)
    service.open.set()
    for viewer in viewers:
        viewer.join()
    clock.now += 14.9
    found.append(asked(polls, service))
    assert found == [PollResult(1)] * 11
    clock.now += 0.2
    assert asked(polls, service) == PollResult(2)


def test_dead_service_costs_one_thread_and_one_wait() -> None:
    dead, well = Service(is_open=False), Service()
    polls = shared(ttl_s=0, wait_s=0.2)
    began = time.monotonic()
    first = polls.results({"dead": dead, "well": well})
    assert time.monotonic() - began < 5
    assert first == {"dead": PollResult(None, "No answer for 0 s."), "well": PollResult(1)}
    began = time.monotonic()
    for number in range(2, 50):
        assert polls.results({"dead": dead, "well": well})["well"] == PollResult(number)
    assert time.monotonic() - began < 5
    assert dead.calls == 1
    dead.open.set()
    until(lambda: asked_of(polls, "dead", dead).value is not None)


def asked_of(polls: SharedReads[Any], key: str, service: Service) -> PollResult[Any]:
    return polls.results({key: service}, ttl_s=1e9)[key]


def test_slow_poll_shows_old_value_with_its_age() -> None:
    service, clock = Service(), Clock()
    polls = shared(ttl_s=15, wait_s=0, clock=clock)
    asked(polls, service)
    until(lambda: asked(polls, service) == PollResult(1))
    service.open.clear()
    clock.now += 30
    asked(polls, service)
    clock.now += 5
    assert asked(polls, service) == PollResult(1, "No answer for 5 s; this is 35 s old.")
    service.open.set()


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError("Cluster here has no head."), "Cluster here has no head."),
        (RuntimeError("token abc"), "It cannot be read (RuntimeError): see the log of the API server."),
    ],
)
def test_failure_is_shared_and_only_known_errors_are_shown(error: Exception, problem: str) -> None:
    service, clock = Service(), Clock()
    polls = shared(ttl_s=15, wait_s=1e9, clock=clock)
    assert asked(polls, service).value == 1
    service.error = error
    clock.now += 20
    assert asked(polls, service) == asked(polls, service) == PollResult(None, problem)
    assert service.calls == 2


def test_requests_share_a_read_without_a_thread_each() -> None:
    service = Service(is_open=False)

    async def ask() -> list[Any]:
        reads = shared()
        asked = [asyncio.ensure_future(reads.get("a", service)) for _ in range(5)]
        await asyncio.sleep(0.01)
        asked[0].cancel()  # a viewer who leaves takes the read from no other
        service.open.set()
        return [*(await asyncio.gather(*asked[1:])), await reads.get("a", service)]

    assert asyncio.run(ask()) == [1] * 5


def test_request_gets_older_result_while_a_newer_is_read() -> None:
    service, clock = Service(), Clock()

    async def ask() -> Any:
        reads = shared(wait_s=10, clock=clock)
        assert await reads.get("a", service) == 1
        clock.now += 16
        service.open.clear()
        reads._wait_s = 0.01
        return await reads.get("a", service)

    try:
        assert asyncio.run(ask()) == Running(0.0, older=1)
    finally:
        service.open.set()


def test_error_is_raised_until_it_is_old() -> None:
    service, clock = Service(), Clock()
    service.error = OSError("no")

    async def ask() -> Any:
        reads = shared(clock=clock)
        for _ in range(2):
            with pytest.raises(OSError, match="no"):
                await reads.get("a", service)
        service.error = None
        clock.now += 16
        return await reads.get("a", service)

    assert asyncio.run(ask()) == 2


def test_reads_that_hang_and_results_that_stay_are_few() -> None:
    hung = Service(is_open=False)

    async def ask() -> None:
        reads = shared(wait_s=0.01, max_running=2, max_kept=2)
        for key in ("a", "b"):
            assert isinstance(await reads.get(key, hung), Running)
        with pytest.raises(TooManyReadsError):
            await reads.get("c", bool)
        hung.open.set()
        for key in "abcdefg":
            while isinstance(await reads.get(key, bool), Running):
                pass
        assert set(reads._reads) == {"f", "g"}

    try:
        asyncio.run(ask())
    finally:
        hung.open.set()
