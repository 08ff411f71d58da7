"""Fault injection: kill, freeze or disconnect a process, chosen from outside at that moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

import psutil

from tests.chaos.runs.environment import STALE_S, RunsEnvironment
from tradewind.rehearsal.drill.observer import drivers
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack

T = TypeVar("T")
FIND_S = 300.0
KEEP_GOING_S = 2.0
DOWN_S = 3.0
"""Seconds until a killed component of Airflow starts again."""
ALIVE_S = 0.5


class RunFault(Enum):
    """Kinds of faults."""

    SCHEDULER = "SIGKILL of a scheduler, with all that it started"
    TRIGGERER = "SIGKILL of a triggerer"
    API_SERVER = "SIGKILL of the API server"
    TASK = "SIGKILL of the process of a task"
    DRIVER = "SIGKILL of a step's driver"
    SUPERVISOR = "SIGKILL of a job's supervisor"
    NODE = "a host vanishes with the step that runs on it"
    FREEZE = "SIGSTOP of a driver, until after others may take over"
    CUT_OFF = "a driver is cut off from the store, until after others may take over"
    STAGING = "the same step of the same run is cleared in another deployment"


COMMON = tuple(fault for fault in RunFault if fault is not RunFault.STAGING)


class FaultMaker:
    """Inject faults; each method returns only after it has found and hit its target.

    Args:
        keep_going: Starts new runs when all have ended, so that a target exists.
    """

    def __init__(
        self, environment: RunsEnvironment, seed: int, keep_going: Callable[[], None], say: Callable[[str], object]
    ) -> None:
        self._environment = environment
        self._keep_going = keep_going
        self._draw = random.Random(f"night {seed}")
        self._say = say
        self._how: dict[RunFault, Callable[[], None]] = {
            RunFault.SCHEDULER: lambda: self._kill_component("scheduler"),
            RunFault.TRIGGERER: lambda: self._kill_component("triggerer"),
            RunFault.API_SERVER: lambda: self._kill_component("api-server"),
            RunFault.TASK: self._kill_task,
            RunFault.DRIVER: lambda: self._driver().kill(),
            RunFault.SUPERVISOR: self._kill_supervisor,
            RunFault.NODE: self._replace_host,
            RunFault.FREEZE: self._freeze,
            RunFault.CUT_OFF: self._cut_off,
            RunFault.STAGING: self._clear_in_staging,
        }

    def make(self, fault: RunFault) -> None:
        """Inject the fault at a random moment while a step runs."""
        self._until(self._is_at_work, "a step at work")
        time.sleep(self._draw.uniform(0.0, 2.0))  # the random moment depends only on the seed
        self._say(f"drill: {fault.value}")
        self._how[fault]()

    def _is_at_work(self) -> bool:
        now = time.time()
        return any(trace.stat().st_mtime > now - ALIVE_S for trace in self._environment.traces.iterdir())

    def _kill_component(self, name: str) -> None:
        """Kill a random component of this kind; start it again after ``DOWN_S``."""
        airflow = self._environment.airflow
        component = self._draw.choice(sorted(each for each in airflow.processes if each.removesuffix("-2") == name))
        airflow.kill_component(component)
        time.sleep(DOWN_S)
        airflow.start_component(component)

    def _kill_task(self) -> None:
        self._await_process(lambda: _tasks(self._environment.airflow), "a task's process").kill()

    def _kill_supervisor(self) -> None:
        self._await_process(lambda: _titled(self._environment.ray.stack, "JobSupervisor"), "a job's supervisor").kill()

    def _replace_host(self) -> None:
        driver = self._driver()
        [name] = [name for name, stack in self._environment.hosts() if stack.owns(driver)]
        self._environment.replace_host(name)

    def _freeze(self) -> None:
        driver = self._driver()
        driver.send_signal(signal.SIGSTOP)
        time.sleep(2 * STALE_S)
        if driver.is_running():
            driver.send_signal(signal.SIGCONT)

    def _cut_off(self) -> None:
        self._environment.storage.cut_off = self._driver().pid
        time.sleep(2 * STALE_S)
        self._environment.storage.cut_off = None

    def _clear_in_staging(self) -> None:
        """Clear a step in staging that waits for production's, in a run of the same id; production's job must go on."""
        assert self._environment.staging is not None
        api = self._environment.api(self._environment.staging)
        states = ("deferred", "running")

        def waiting() -> list[tuple[str, str]]:
            runs = [run["dag_run_id"] for run in api.dag_runs("nights") if run["state"] == "running"]
            found = [(run, task) for run in runs for task in api.task_instances("nights", run)]
            return [
                (run, task["task_id"]) for run, task in found if task["state"] in states and task["task_id"] != "plan"
            ]

        run, task = self._until(waiting, "a step that waits in the other deployment")[0]
        api.clear_task("nights", run, task)

    def _driver(self) -> psutil.Process:
        return self._await_process(lambda: drivers(self._environment.ray.stack), "a step's driver")

    def _await_process(self, find: Callable[[], list[psutil.Process]], what: str) -> psutil.Process:
        """Wait until a process exists, and return a random one; some processes live for only a second."""
        return self._draw.choice(sorted(self._until(find, what), key=lambda process: process.pid))

    def _until(self, find: Callable[[], T], what: str) -> T:
        """Poll until something is found, and return it; start new runs when all have ended."""
        deadline = time.monotonic() + FIND_S
        while True:
            assert time.monotonic() < deadline, f"waited too long for {what}"
            next_look = time.monotonic() + KEEP_GOING_S
            while time.monotonic() < next_look:
                if found := find():
                    return found
                time.sleep(0.15)  # a scan of all processes takes a third of that time
            self._keep_going()


def _tasks(airflow: LocalAirflow) -> list[psutil.Process]:
    """Return the processes that run task code; the title of executor processes names LocalExecutor."""
    found = _titled(airflow.stack, "airflow worker -- ")
    return [process for process in found if "LocalExecutor" not in " ".join(process.info["cmdline"])]


def _titled(stack: LocalStack, words: str) -> list[psutil.Process]:
    """Return the processes of ``stack`` whose command line or process title contains ``words``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or ())
        if words in title and process.pid != os.getpid() and stack.owns(process):
            found.append(process)
    return found
