"""Polls that are shared: one call at a time for each key, and a limit to every wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.waiting import until
from tradewind.fleet.errors import FleetError
from tradewind.fleet.shared_polls import PollResult, SharedPolls


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


def asked(polls: SharedPolls, service: Callable[[], Any]) -> PollResult[Any]:
    return polls.results({"one": service})["one"]


def test_many_viewers_cost_one_call() -> None:
    service, clock = Service(is_open=False), Clock()
    polls = SharedPolls(ttl_s=15, wait_s=1e9, clock=clock)
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
    polls = SharedPolls(ttl_s=0, wait_s=0.2)
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


def asked_of(polls: SharedPolls, key: str, service: Service) -> PollResult[Any]:
    return polls.results({key: service}, ttl_s=1e9)[key]


def test_slow_poll_shows_old_value_with_its_age() -> None:
    service, clock = Service(), Clock()
    polls = SharedPolls(ttl_s=15, wait_s=0, clock=clock)
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
        (FleetError("Cluster here has no head."), "Cluster here has no head."),
        (RuntimeError("token abc"), "It cannot be read (RuntimeError): see the log of the API server."),
    ],
)
def test_failure_is_shared_and_only_known_errors_are_shown(error: Exception, problem: str) -> None:
    service, clock = Service(), Clock()
    polls = SharedPolls(ttl_s=15, wait_s=1e9, clock=clock)
    assert asked(polls, service).value == 1
    service.error = error
    clock.now += 20
    assert asked(polls, service) == asked(polls, service) == PollResult(None, problem)
    assert service.calls == 2
