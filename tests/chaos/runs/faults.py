"""Fault injection: kill, freeze or disconnect a process, chosen from outside at that moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from enum import Enum

import psutil

from tests.chaos.runs.environment import STALE_S, NightHouse
from tradewind.rehearsal.drill.observer import drivers
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack

FIND_S = 300.0
KEEP_GOING_S = 2.0
DOWN_S = 3.0
"""Seconds until a killed component of Airflow starts again."""
ALIVE_S = 0.5


class Trouble(Enum):
    """Kinds of faults."""

    SCHEDULER = "SIGKILL of a scheduler, with all that it started"
    TRIGGERER = "SIGKILL of a triggerer"
    API_SERVER = "SIGKILL of the API server"
    TASK = "SIGKILL of the process of a task"
    KEEPER = "SIGKILL of a step's keeper"
    SUPERVISOR = "SIGKILL of a job's supervisor"
    NODE = "a host vanishes with the step that runs on it"
    FREEZE = "SIGSTOP of a keeper, until after others may take over"
    CUT_OFF = "a keeper is cut off from the store, until after others may take over"
    STAGING = "the same step of the same run is cleared in another deployment"


COMMON = tuple(trouble for trouble in Trouble if trouble is not Trouble.STAGING)


class Troublemaker:
    """Inject faults; each method returns only after it has found and hit its target.

    Args:
        keep_going: Starts new runs when all have ended, so that a target exists.
    """

    def __init__(
        self, house: NightHouse, seed: int, keep_going: Callable[[], None], say: Callable[[str], object]
    ) -> None:
        self._house = house
        self._keep_going = keep_going
        self._draw = random.Random(f"night {seed}")
        self._say = say
        self._deeds: dict[Trouble, Callable[[], None]] = {
            Trouble.SCHEDULER: lambda: self._kill_component("scheduler"),
            Trouble.TRIGGERER: lambda: self._kill_component("triggerer"),
            Trouble.API_SERVER: lambda: self._kill_component("api-server"),
            Trouble.TASK: self._kill_task,
            Trouble.KEEPER: lambda: self._keeper().kill(),
            Trouble.SUPERVISOR: self._kill_supervisor,
            Trouble.NODE: self._replace_host,
            Trouble.FREEZE: self._freeze,
            Trouble.CUT_OFF: self._cut_off,
            Trouble.STAGING: self._clear_in_staging,
        }

    def make(self, trouble: Trouble) -> None:
        """Inject the fault at a random moment while a step runs."""
        self._until(self._is_at_work, "a step at work")
        time.sleep(self._draw.uniform(0.0, 2.0))  # the random moment depends only on the seed
        self._say(f"night: {trouble.value}")
        self._deeds[trouble]()

    def _is_at_work(self) -> bool:
        now = time.time()
        return any(trace.stat().st_mtime > now - ALIVE_S for trace in self._house.traces.iterdir())

    def _kill_component(self, name: str) -> None:
        """Kill a random component of this kind; start it again after ``DOWN_S``."""
        airflow = self._house.airflow
        one = self._draw.choice(sorted(each for each in airflow.processes if each.removesuffix("-2") == name))
        airflow.kill_component(one)
        time.sleep(DOWN_S)
        airflow.start_component(one)

    def _kill_task(self) -> None:
        self._found(lambda: _tasks(self._house.airflow), "a task's process").kill()

    def _kill_supervisor(self) -> None:
        self._found(lambda: _titled(self._house.ray.stack, "JobSupervisor"), "a job's supervisor").kill()

    def _replace_host(self) -> None:
        keeper = self._keeper()
        [name] = [name for name, stack in self._house.hosts() if stack.owns(keeper)]
        self._house.replace_host(name)

    def _freeze(self) -> None:
        keeper = self._keeper()
        keeper.send_signal(signal.SIGSTOP)
        time.sleep(2 * STALE_S)
        if keeper.is_running():
            keeper.send_signal(signal.SIGCONT)

    def _cut_off(self) -> None:
        self._house.storage.cut_off = self._keeper().pid
        time.sleep(2 * STALE_S)
        self._house.storage.cut_off = None

    def _clear_in_staging(self) -> None:
        """Clear a waiting step in the staging deployment.

        Its run has the same id as production's run, and the step waits for production's step. The clear must not stop
        production's job.
        """
        assert self._house.staging is not None
        api = self._house.api(self._house.staging)
        states = ("deferred", "running")

        def waiting() -> list[tuple[str, str]]:
            runs = [run["dag_run_id"] for run in api.dag_runs("nights") if run["state"] == "running"]
            found = [(run, task) for run in runs for task in api.task_instances("nights", run)]
            return [
                (run, task["task_id"]) for run, task in found if task["state"] in states and task["task_id"] != "plan"
            ]

        self._until(lambda: bool(waiting()), "a step that waits in the other deployment")
        run, task = waiting()[0]
        api.clear_task("nights", run, task)

    def _keeper(self) -> psutil.Process:
        return self._found(lambda: drivers(self._house.ray.stack), "a step's keeper")

    def _found(self, find: Callable[[], list[psutil.Process]], what: str) -> psutil.Process:
        """Wait until a process exists, and return a random one; some processes live for only a second."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = find()
            return bool(found)

        self._until(is_there, what)
        return self._draw.choice(sorted(found, key=lambda process: process.pid))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll the condition; start new runs when all have ended."""
        deadline = time.monotonic() + FIND_S
        while not condition():
            now = time.monotonic()
            assert now < deadline, f"waited in vain for {what}"
            self._keep_going()
            next_look = now + KEEP_GOING_S
            while time.monotonic() < next_look:
                if condition():
                    return
                time.sleep(0.15)  # a scan of all processes takes a third of that time


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
