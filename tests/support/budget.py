"""Count what the tests start, and fail a run that exceeds ``tests/budget.toml``.

Unlike seconds, counts do not depend on the load of the machine. A row covers the tests of a top folder, or of the files
that share one process (``scheduling.SHARED``). ``--budget=rows`` prints the counts as TOML and checks nothing.
"""

from __future__ import annotations

import functools
import json
import math
import resource
import subprocess
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.support.scheduling import scope_of

UNITS: Final = ("heads", "nodes", "jobs", "airflows", "trainings", "python")
TOTAL: Final = "total"
SENT: Final = "budget"
SLOWEST: Final = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", choices=("check", "rows"), help="judge what the tests start, or print it as TOML")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--budget"):
        budget = Budget(config.rootpath / "tests/budget.toml", judges=config.getoption("--budget") == "check")
        config.pluginmanager.register(budget)
        count_starts(budget)


def row_of(nodeid: str) -> str:
    """Return the shared scope of the test's file, or its top folder."""
    file = nodeid.partition("::")[0]
    return scope if (scope := scope_of(nodeid)) != file else "/".join(file.split("/")[:-1][:2])


class Budget:
    """Counts of this process; the xdist controller holds the sum over all processes."""

    def __init__(self, file: Path, judges: bool) -> None:
        self._file = file
        self._judges = judges
        self._test: str | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._began = time.monotonic()
        self._workers_cpu_s: list[float] = []
        self.stacks_cpu_s = 0.0

    def add(self, unit: str, count: int = 1) -> None:
        """Count ``unit`` for the running test."""
        if self._test is not None:
            self._counts[self._test, unit] += count

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        try:
            return (yield)
        finally:
            self._test = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        sent = getattr(session.config, "workeroutput", None)
        if sent is not None:
            sent[SENT] = [(*key, count) for key, count in self._counts.items()], self._cpu_s()
        elif self._judges and [*self._exceeded()] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        counts, cpu_s = getattr(node, "workeroutput", {}).get(SENT, ([], 0.0))
        self._counts.update({(test, unit): count for test, unit, count in counts})
        self._workers_cpu_s.append(cpu_s)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total, wall_s = self._rows()[TOTAL], time.monotonic() - self._began
        slowest = sorted(self._seconds.items(), key=lambda one: -one[1])[:SLOWEST]
        lines = [
            *(self._exceeded() if self._judges else self._as_toml()),
            "Started: " + ", ".join(f"{total[unit]} {unit}" for unit in UNITS),
            f"Took {self._cpu_s():.0f} s of CPU, as far as ended processes tell, and {wall_s:.0f} s of wall time",
            "Slowest tests, in seconds, with what they set up and tear down:",
            *(f"{seconds:8.1f}  {test}" for test, seconds in slowest),
        ]
        terminalreporter.section("budget")
        for line in lines:
            terminalreporter.line(line)

    def _rows(self) -> dict[str, Counter[str]]:
        rows: dict[str, Counter[str]] = {TOTAL: Counter()}
        for (test, unit), count in sorted(self._counts.items()):
            rows[TOTAL][unit] += count
            rows.setdefault(row_of(test), Counter())[unit] += count
        return rows

    def _exceeded(self) -> Iterator[str]:
        """Yield a line for each unit over its row, and one for each test that used some of the unit."""
        limits = tomllib.loads(self._file.read_text())
        for row, counts in self._rows().items():
            allowed = limits.get(row, {})
            for unit in (unit for unit in UNITS if counts[unit] > allowed.get(unit, 0)):
                yield f"{row}: {counts[unit]} {unit}, and tests/budget.toml allows {allowed.get(unit, 0)}"
                tests = {test: n for (test, u), n in self._counts.items() if u == unit and row in (TOTAL, row_of(test))}
                yield from (f"{count:8}  {test}" for test, count in Counter(tests).most_common(SLOWEST))

    def _as_toml(self) -> Iterator[str]:
        for row, counts in self._rows().items():
            # A test that polls with a command starts more commands on a slow machine.
            counts["python"] = math.ceil(counts["python"] * 1.2)
            yield f"[{json.dumps(row)}]"
            yield from (f"{unit} = {counts[unit]}" for unit in UNITS if counts[unit])

    def _cpu_s(self) -> float:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        # The xdist workers are children of this process and report their own usage and that of their children.
        used = (own,) if self._workers_cpu_s else (own, children)
        return sum(one.ru_utime + one.ru_stime for one in used) + sum(self._workers_cpu_s) + self.stacks_cpu_s


def count_starts(budget: Budget) -> None:
    """Wrap methods that start something expensive; a start repeated after a timeout counts once."""
    from tests.support.fork_server import PreparedPython
    from tradewind.cloud_tpu.slice_types import slice_type
    from tradewind.ray_jobs.client import RayJobs
    from tradewind.rehearsal.local.airflow import LocalAirflow
    from tradewind.rehearsal.local.processes import MARKER, LocalStack
    from tradewind.rehearsal.local.ray import LocalRay

    jobs: set[tuple[str, str]] = set()

    def start_nodes(heads: int, hosts: int) -> None:
        budget.add("heads", heads)
        budget.add("nodes", heads + hosts)

    def submit(client: Any, job: Any) -> None:
        if (key := (client.cluster.address, job.submission_id)) not in jobs:
            jobs.add(key)
            budget.add("jobs")

    def open_process(_: Any, args: Any, *__: Any, env: Any = None, **___: Any) -> None:
        program = args[0] if isinstance(args, list | tuple) and args else args
        if Path(str(program)).name.startswith("python") and MARKER not in (env or {}):
            budget.add("python")

    def stop(stack: Any, *_: Any, **__: Any) -> None:
        budget.stacks_cpu_s += orphans_cpu_s(stack)

    def hosts(one: Any) -> int:
        return slice_type(one.slice_type).hosts

    before(LocalRay, "start", lambda ray, *_, **__: start_nodes(1, sum(map(hosts, ray.slices))))
    before(LocalRay, "start_head", lambda *_, **__: start_nodes(1, 0))
    before(LocalRay, "start_slice", lambda _, new, *__, **___: start_nodes(0, hosts(new)))
    before(LocalRay, "start_hosts", lambda _, name, count, **__: start_nodes(0, count))
    before(LocalAirflow, "start_component", lambda _, name: budget.add("airflows", name == "api-server"))
    before(PreparedPython, "start", lambda *_, **__: budget.add("trainings"))
    before(RayJobs, "submit_or_attach", submit)
    before(subprocess.Popen, "__init__", open_process)
    before(LocalStack, "stop", stop)


def before(owner: type, name: str, act: Callable[..., object]) -> None:
    """Make each call of the method first call ``act`` with the same arguments."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, counted)


def orphans_cpu_s(stack: Any) -> float:
    """Return CPU seconds of the stack's processes that are not children of this process, as Ray's daemons."""
    waited_for = {process.pid for process in psutil.Process().children(recursive=True)}
    used = 0.0
    for process in stack.processes():
        if process.pid not in waited_for:
            with suppress(psutil.Error):  # the process has ended
                used += sum(process.cpu_times()[:4])
    return used
