"""A drill: one DAG run without faults and one under a seeded schedule of them, on a rehearsal, compared at the end.

What happens between the faults is nobody's doing here: the operators, the driver, the pod runner and the repair go on
by themselves, as they would at night.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tradewind.rehearsal.drill.faults import FAULTS_PER_SEED, Fault, PlannedFault, schedule
from tradewind.rehearsal.drill.house import DrillHouse, running_airflow, running_house
from tradewind.rehearsal.drill.injection import Injector, Pace, StoreMeasures
from tradewind.rehearsal.drill.outputs import compare_outputs
from tradewind.rehearsal.drill.records import read_run_record
from tradewind.rehearsal.drill.report import DrillReport
from tradewind.rehearsal.drill.sight import POLL_S, DrillTimeoutError, look
from tradewind.rehearsal.drill.watch import RunWatch
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import FINISHED_RUN_STATES, AirflowApi, AirflowApiError

DEFAULT_SLICES: Final = ("v4-16", "v4-16")
_DAG_TIMEOUT_S: Final = 120.0
_RUN_TIMEOUT_S: Final = 3600.0
_QUIET_TIMEOUT_S: Final = 90.0


class DrillError(RuntimeError):
    """The drill could not be held: the DAG did not run even without faults."""


@dataclass(frozen=True)
class DrillPlan:
    """What is asked for."""

    dags_folder: Path
    dag: str
    seed: int = 0
    kinds: tuple[Fault, ...] = tuple(Fault)
    count: int = FAULTS_PER_SEED
    slices: tuple[str, ...] = DEFAULT_SLICES
    pace: Pace = Pace()
    conf: dict[str, Any] = field(default_factory=dict)


class Night(Protocol):
    """A run that was begun: its state, until it is in ``FINISHED_RUN_STATES``."""

    def state(self) -> str: ...


class Begins(Protocol):
    """Begins a run whose outputs go below a prefix."""

    def __call__(self, prefix: str) -> Night: ...


def hold_drill(plan: DrillPlan, root: Path, say: Callable[[str], object]) -> DrillReport:
    """Hold the drill in the folder ``root``; nothing runs afterwards.

    Raises:
        DrillError: The DAG failed without any fault, or trains nothing.
        DrillTimeoutError: Training did not go on after a fault.
        LocalAirflowError: Airflow did not start, or a component of it died.
    """
    with running_house(root, plan.slices) as house, running_airflow(house, plan.dags_folder) as airflow:
        api = AirflowApi(airflow.url, airflow.username, airflow.password)
        say(f"Airflow: {api.url}; Ray: {house.ray.address}")
        api.wait_for_dag(plan.dag, _DAG_TIMEOUT_S)
        api.unpause(plan.dag)
        drill = Drill(house, lambda prefix: _AirflowNight(airflow, api, plan.dag, {**plan.conf, "prefix": prefix}), say)
        undisturbed = drill.undisturbed()
        return drill.disturbed(plan, undisturbed)


@dataclass(frozen=True)
class Undisturbed:
    """The run that the others are compared with."""

    prefix: str
    steps: int


class Drill:
    """Runs one thing again and again in one house: first undisturbed, then under faults.

    Args:
        folder: Of its outputs in the house's bucket, where the house has drills of several things.
    """

    def __init__(self, house: DrillHouse, begin: Begins, say: Callable[[str], object], folder: str = "") -> None:
        self._house = house
        self._begin = begin
        self._say = say
        self._prefix = f"{house.prefix}/{folder}" if folder else house.prefix

    def undisturbed(self) -> Undisturbed:
        """Run without faults.

        Raises:
            DrillError: It failed, or trained nothing.
        """
        prefix = f"{self._prefix}/undisturbed"
        self._say("undisturbed run")
        state, watch = self._run(prefix, (), Pace())
        if state != "success":
            raise DrillError(f"The run failed without any fault; its outputs are below {prefix}.")
        if watch.last_step < 1:
            raise DrillError("No training was seen: a drill needs a step on a TPU slice that trains with Levanter.")
        return Undisturbed(prefix, watch.last_step + 1)

    def disturbed(self, plan: DrillPlan, undisturbed: Undisturbed) -> DrillReport:
        """Run under the faults of ``plan``, and compare."""
        faults = schedule(plan.seed, plan.kinds, steps=undisturbed.steps, count=plan.count)
        planned = ", ".join(f"{fault.kind.value} at step {fault.step}" for fault in faults)
        self._say(f"run under the faults of seed {plan.seed}: {planned or 'none'}")
        prefix = f"{self._prefix}/seed-{plan.seed}"
        state, watch = self._run(prefix, faults, plan.pace)
        return DrillReport(
            dag=plan.dag,
            seed=plan.seed,
            state=state,
            stories=watch.stories,
            record=read_run_record(prefix),
            undisturbed=read_run_record(undisturbed.prefix),
            outputs=compare_outputs(undisturbed.prefix, prefix),
            leaks=tuple(self._leaks()),
        )

    def _run(self, prefix: str, faults: Sequence[PlannedFault], pace: Pace) -> tuple[str, RunWatch]:
        injector = Injector(self._house.cloud, self._house.ray, prefix, pace)
        watch = RunWatch(faults, injector, StoreMeasures(self._house.cloud.storage, prefix), self._say)
        night = self._begin(prefix)
        deadline = time.monotonic() + _RUN_TIMEOUT_S
        try:
            with asked_beside(night) as state:
                while state() not in FINISHED_RUN_STATES:
                    watch.see(look(self._house.stack))
                    if watch.open_for_s > pace.patience_s or time.monotonic() > deadline:
                        raise DrillTimeoutError(f"Training did not go on: {watch.stories}")
                    time.sleep(POLL_S)
                watch.finish(state() == "success")
                return state(), watch
        finally:
            injector.end_outages()

    def _leaks(self) -> list[str]:
        """What is left once all has had time to come to rest: processes of pods, and slices that nobody wants."""
        deadline = time.monotonic() + _QUIET_TIMEOUT_S
        while (leaks := self._leaks_now()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return leaks

    def _leaks_now(self) -> list[str]:
        at_work = look(self._house.stack)
        processes = [f"training process {host.pid} on {host.slice_name}" for host in at_work.hosts]
        return [*processes, *self._house.leaked_slices()]


class _AirflowNight:
    """A run of a DAG."""

    def __init__(self, airflow: LocalAirflow, api: AirflowApi, dag: str, conf: dict[str, Any]) -> None:
        self._airflow = airflow
        self._api = api
        self._dag = dag
        self._run = api.trigger(dag, conf)

    def state(self) -> str:
        """Airflow judges a run by its last tasks alone, so a failed task before them counts here."""
        self._airflow.raise_if_a_component_died()
        state = str(self._api.dag_run(self._dag, self._run)["state"])
        if state == "success":
            tasks = self._api.task_instances(self._dag, self._run)
            return "failed" if any(task["state"] == "failed" for task in tasks) else state
        return state


@contextmanager
def asked_beside(night: Night) -> Iterator[Callable[[], str]]:
    """The run's state, asked for in a thread of its own, so that nothing is seen late meanwhile.

    Whatever ends the thread is raised to the one who asks for the state.
    """
    done, known = threading.Event(), ["queued"]
    problems: list[Exception] = []

    def ask() -> None:
        while not done.wait(1.0) and known[0] not in FINISHED_RUN_STATES:
            try:
                known[0] = night.state()
            except AirflowApiError:
                continue  # too busy to answer just now
            except Exception as problem:
                problems.append(problem)
                return

    def state() -> str:
        if problems:
            raise problems[0]
        return known[0]

    thread = threading.Thread(target=ask, daemon=True, name="drill-state")
    thread.start()
    try:
        yield state
    finally:
        done.set()
        thread.join()
