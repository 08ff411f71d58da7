"""Drill: run a DAG without faults and under a seeded schedule of them, on a rehearsal, and compare.

The drill only injects faults. The operators, the driver, the pod runner and the repair recover by themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from tradewind.rehearsal.drill.environment import DrillEnvironment, running_airflow, running_environment
from tradewind.rehearsal.drill.faults import FAULTS_PER_SEED, Fault, FaultResult, Injection, PlannedFault, schedule
from tradewind.rehearsal.drill.injection import Injector, Pace, StoreProbe
from tradewind.rehearsal.drill.observer import POLL_S, DrillTimeoutError, TrainingSnapshot, observe_training
from tradewind.rehearsal.drill.outputs import compare_outputs, read_run_record
from tradewind.rehearsal.drill.report import DrillReport
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import FINISHED_RUN_STATES, AirflowApi, AirflowApiError

DEFAULT_SLICES: Final = ("v4-16", "v4-16")
_DAG_TIMEOUT_S: Final = 120.0
_RUN_TIMEOUT_S: Final = 3600.0
_QUIET_TIMEOUT_S: Final = 90.0


class FaultInjector(Protocol):
    """Performs a scheduled fault."""

    @property
    def is_outage(self) -> bool: ...

    def inject(self, fault: PlannedFault, snapshot: TrainingSnapshot) -> Injection: ...


class StoreObserver(Protocol):
    """Reads facts from the store itself, independent of the injector."""

    def newest_checkpoint(self) -> int | None:
        """Return the step of the newest complete checkpoint."""

    def refused_requests(self) -> int:
        """Return how many requests the store has refused so far."""


@dataclass(frozen=True)
class _Open:
    """A fault from which training has not recovered."""

    fault: Fault
    before: TrainingSnapshot
    at: float
    result: FaultResult
    refused_before: int


class RunMonitor:
    """Monitor of one run: injects each fault at its step, and times its recovery.

    A fault ends when training continues, in other processes if the fault ended the running ones. The next fault waits
    for that, so every figure belongs to one fault.

    Args:
        faults: The scheduled faults, in order.
        injector: Performs the faults.
        store: Reads the run's checkpoints.
        say: Receives a line per event.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        faults: Sequence[PlannedFault],
        injector: FaultInjector,
        store: StoreObserver,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pending = list(faults)
        self._injector = injector
        self._store = store
        self._say = say
        self._clock = clock
        self._open: _Open | None = None
        self._closed: list[FaultResult] = []
        self.last_step = -1

    @property
    def results(self) -> tuple[FaultResult, ...]:
        """All faults in order, including an unfinished one and those not injected."""
        never = [FaultResult(fault.kind.value, fault.step, "") for fault in self._pending]
        return (*self._closed, *([self._open.result] if self._open else []), *never)

    @property
    def open_for_s(self) -> float:
        """How long training has been interrupted since the last fault; 0 while it continues."""
        return self._clock() - self._open.at if self._open else 0.0

    def observe(self, snapshot: TrainingSnapshot) -> None:
        """Record a snapshot, and inject a fault that is due."""
        if snapshot.step is not None:
            self.last_step = max(self.last_step, snapshot.step)
        if self._open is not None:
            if self._is_over(self._open, snapshot):
                at = min((host.step_at for host in snapshot.hosts if host.step_at is not None), default=self._clock())
                result = self._close(self._open, at, snapshot.step)
                slices = ", ".join(snapshot.slices)
                self._say(f"step {snapshot.step}: training continues after {result.recovery_s:.1f} s on {slices}")
        elif self._pending and snapshot.step is not None and snapshot.step >= self._pending[0].step:
            self._inject(self._pending.pop(0), snapshot)

    def finish(self, succeeded: bool) -> None:
        """End the run. A successful run recovered from its last fault, even if only few steps were left."""
        if self._open is not None and succeeded:
            self._say(f"the run has ended {self.open_for_s:.1f} s after the fault")
            self._close(self._open, self._clock(), None)

    def _inject(self, fault: PlannedFault, snapshot: TrainingSnapshot) -> None:
        checkpoint, refused, at = self._store.newest_checkpoint(), self._store.refused_requests(), self._clock()
        injection = self._injector.inject(fault, snapshot)
        self._say(f"step {snapshot.step}: {injection.what}")
        result = FaultResult(
            fault.kind.value,
            fault.step,
            injection.what,
            at_step=snapshot.step,
            at=at,
            victims=injection.victims,
            checkpoint=checkpoint if injection.damaged is None else injection.older,
            damaged=injection.damaged,
            lasts_s=injection.lasts_s,
        )
        self._open = _Open(fault.kind, snapshot, at, result, refused)

    def _is_over(self, opened: _Open, snapshot: TrainingSnapshot) -> bool:
        before = opened.before
        if self._injector.is_outage or snapshot.step is None:
            return False
        if opened.fault is Fault.STORE and (before.step is None or snapshot.step > before.step):
            return True
        return snapshot.is_successor_of(before)

    def _close(self, opened: _Open, at: float, step: int | None) -> FaultResult:
        refused = self._store.refused_requests() - opened.refused_before
        recovery_s = round(max(0.0, at - opened.at), 1)
        result = replace(opened.result, recovery_s=recovery_s, resumed_at=step, refused=refused)
        self._closed.append(result)
        self._open = None
        return result


class DrillError(RuntimeError):
    """The DAG failed even without faults, or trains nothing."""


@dataclass(frozen=True)
class DrillPlan:
    """Parameters of a drill."""

    dags_folder: Path
    dag: str
    seed: int = 0
    kinds: tuple[Fault, ...] = tuple(Fault)
    count: int = FAULTS_PER_SEED
    slices: tuple[str, ...] = DEFAULT_SLICES
    pace: Pace = Pace()
    conf: dict[str, Any] = field(default_factory=dict)


class StartedRun(Protocol):
    """A started run: its state, until that is in ``FINISHED_RUN_STATES``."""

    def state(self) -> str: ...


RunStarter = Callable[[str], StartedRun]
"""Starts a run whose outputs go below a prefix."""


def hold_drill(plan: DrillPlan, root: Path, say: Callable[[str], object]) -> DrillReport:
    """Run the drill in the folder ``root``; no process remains afterwards.

    Raises:
        DrillError: The DAG failed without any fault, or trains nothing.
        DrillTimeoutError: Training did not continue after a fault.
        LocalAirflowError: Airflow did not start, or a component of it died.
    """
    with (
        running_environment(root, plan.slices) as environment,
        running_airflow(environment, plan.dags_folder) as airflow,
    ):
        api = AirflowApi(airflow.url, airflow.username, airflow.password)
        say(f"Airflow: {api.url}; Ray: {environment.ray.address}")
        api.wait_for_dag(plan.dag, _DAG_TIMEOUT_S)
        api.unpause(plan.dag)

        def start_run(prefix: str) -> StartedRun:
            return _AirflowRun(airflow, api, plan.dag, {**plan.conf, "prefix": prefix})

        drill = Drill(environment, start_run, say)
        return drill.run_with_faults(plan, drill.run_baseline())


run_drill = hold_drill


@dataclass(frozen=True)
class BaselineRun:
    """The run without faults, compared with the others."""

    prefix: str
    steps: int


class Drill:
    """Runs one DAG repeatedly in one test environment: first without faults, then with them.

    Args:
        folder: Folder of its outputs in the bucket, if the environment has several drills.
    """

    def __init__(
        self, environment: DrillEnvironment, start_run: RunStarter, say: Callable[[str], object], folder: str = ""
    ) -> None:
        self._environment = environment
        self._start_run = start_run
        self._say = say
        self._prefix = f"{environment.prefix}/{folder}" if folder else environment.prefix

    def run_baseline(self) -> BaselineRun:
        """Run without faults.

        Raises:
            DrillError: The run failed, or trained nothing.
        """
        prefix = f"{self._prefix}/undisturbed"
        self._say("baseline run")
        state, monitor = self._run(prefix, (), Pace())
        if state != "success":
            raise DrillError(f"The run failed without any fault; its outputs are below {prefix}.")
        if monitor.last_step < 1:
            raise DrillError("No training was seen: a drill needs a step on a TPU slice that trains with Levanter.")
        return BaselineRun(prefix, monitor.last_step + 1)

    def run_with_faults(self, plan: DrillPlan, baseline: BaselineRun) -> DrillReport:
        """Run under the faults of ``plan``, and compare with the baseline run."""
        faults = schedule(plan.seed, plan.kinds, steps=baseline.steps, count=plan.count)
        planned = ", ".join(f"{fault.kind.value} at step {fault.step}" for fault in faults)
        self._say(f"run under the faults of seed {plan.seed}: {planned or 'none'}")
        prefix = f"{self._prefix}/seed-{plan.seed}"
        state, monitor = self._run(prefix, faults, plan.pace)
        return DrillReport(
            dag=plan.dag,
            seed=plan.seed,
            state=state,
            results=monitor.results,
            record=read_run_record(prefix),
            baseline=read_run_record(baseline.prefix),
            outputs=compare_outputs(baseline.prefix, prefix),
            leaks=tuple(self._leaks()),
        )

    def _run(self, prefix: str, faults: Sequence[PlannedFault], pace: Pace) -> tuple[str, RunMonitor]:
        injector = Injector(self._environment.cloud, self._environment.ray, prefix, pace)
        monitor = RunMonitor(faults, injector, StoreProbe(self._environment.cloud.storage, prefix), self._say)
        started = self._start_run(prefix)
        deadline = time.monotonic() + _RUN_TIMEOUT_S
        try:
            with poll_in_thread(started) as state:
                while state() not in FINISHED_RUN_STATES:
                    monitor.observe(observe_training(self._environment.stack))
                    if monitor.open_for_s > pace.patience_s or time.monotonic() > deadline:
                        raise DrillTimeoutError(f"Training did not continue in time: {monitor.results}")
                    time.sleep(POLL_S)
                monitor.finish(state() == "success")
                return state(), monitor
        finally:
            injector.end_outages()

    def _leaks(self) -> list[str]:
        """Return what remains after a settling time: pods' processes, and unneeded slices."""
        deadline = time.monotonic() + _QUIET_TIMEOUT_S
        while True:
            hosts = observe_training(self._environment.stack).hosts
            processes = [f"training process {host.pid} on {host.slice_name}" for host in hosts]
            leaks = [*processes, *self._environment.leaked_slices()]
            if not leaks or time.monotonic() > deadline:
                return leaks
            time.sleep(POLL_S)


class _AirflowRun:
    """A run of a DAG."""

    def __init__(self, airflow: LocalAirflow, api: AirflowApi, dag: str, conf: dict[str, Any]) -> None:
        self._airflow = airflow
        self._api = api
        self._dag = dag
        self._run = api.trigger(dag, conf)

    def state(self) -> str:
        """State of the run; Airflow judges by the last tasks alone, so earlier failed tasks count here."""
        self._airflow.raise_if_a_component_died()
        state = str(self._api.dag_run(self._dag, self._run)["state"])
        tasks = self._api.task_instances(self._dag, self._run) if state == "success" else []
        return "failed" if any(task["state"] == "failed" for task in tasks) else state


@contextmanager
def poll_in_thread(started: StartedRun) -> Iterator[Callable[[], str]]:
    """Poll the run's state in a separate thread, so that observations are not delayed.

    An exception of the thread is raised to the caller that reads the state.
    """
    done, known = threading.Event(), ["queued"]
    problems: list[Exception] = []

    def ask() -> None:
        while not done.wait(1.0) and known[0] not in FINISHED_RUN_STATES:
            try:
                known[0] = started.state()
            except AirflowApiError:
                continue  # Airflow is temporarily too busy to answer
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
