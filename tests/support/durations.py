"""What a run of the tests took: the slowest tests, and the seconds that each fixture spent, of all processes together.

``--costs`` prints it at the end. The seconds of a fixture are its own, without those of the fixtures that it asks for
by name.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

SLOWEST = 20
LEAST_S = 1.0
"""What took less is not told."""
SENT = "fixture_costs"


@dataclass
class Cost:
    """How often a fixture was set up, and the seconds of that and of its ends."""

    count: int = 0
    up: float = 0.0
    down: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.count + other.count, self.up + other.up, self.down + other.down)


class Costs:
    """Adds up what the tests of this process say, and in a process that has others do the work, what those say."""

    def __init__(self) -> None:
        self.tests: defaultdict[str, float] = defaultdict(float)
        self.fixtures: defaultdict[str, Cost] = defaultdict(Cost)
        self._ending: dict[int, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self.fixtures[_name(fixturedef)] += Cost(1, time.monotonic() - began)
            # The last to be added is the first to be called, so from then on it is this fixture that ends.
            fixturedef.addfinalizer(lambda: self._ending.update({id(fixturedef): time.monotonic()}))

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if (began := self._ending.pop(id(fixturedef), None)) is not None:
            self.fixtures[_name(fixturedef)] += Cost(down=time.monotonic() - began)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        sent = getattr(session.config, "workeroutput", None)
        if sent is not None:
            sent[SENT] = {name: (cost.count, cost.up, cost.down) for name, cost in self.fixtures.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, numbers in getattr(node, "workeroutput", {}).get(SENT, {}).items():
            self.fixtures[name] += Cost(*numbers)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self.tests.items(), key=lambda one: -one[1])[:SLOWEST]
        dearest = sorted(self.fixtures.items(), key=lambda one: -one[1].up - one[1].down)[:SLOWEST]
        terminalreporter.section("slowest tests: seconds, with what they set up and tear down")
        for name, seconds in slowest:
            if seconds >= LEAST_S:
                terminalreporter.line(f"{seconds:8.1f}  {name}")
        terminalreporter.section("dearest fixtures: seconds up, seconds down, how often")
        for name, cost in dearest:
            if cost.up + cost.down >= LEAST_S:
                terminalreporter.line(f"{cost.up:8.1f} {cost.down:8.1f} {cost.count:6}  {name}")


def _name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{fixture.baseid}::{fixture.argname}" if fixture.baseid else fixture.argname
