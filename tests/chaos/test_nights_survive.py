"""Drills on a real Airflow: despite kills, freezes and disconnections, each version has one result.

They use PostgreSQL as production does, two schedulers, two triggerers and a second deployment that requires the same
versions. ``make chaos`` runs more seeds, and shorter drills on SQLite.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.chaos.runs.environment import RunsEnvironment, running_environment
from tests.chaos.runs.faults import COMMON, FaultMaker, RunFault
from tests.chaos.runs.verifier import Execution, overlaps, violations
from tests.support.waiting import until
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import FINISHED_RUN_STATES, AirflowApiError

SEEDS = [int(seed) for seed in os.environ.get("NIGHT_SEEDS", "0").split()]
DATABASES = os.environ.get("NIGHT_DATABASES", "postgres").split()
FAULTS_ON_POSTGRES = int(os.environ.get("NIGHT_TROUBLES", "5"))
FAULTS_ON_SQLITE = 3
RUN_S = 900.0


@pytest.fixture(scope="module", params=DATABASES)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunsEnvironment]:
    with running_environment(tmp_path_factory.mktemp("nights"), request.param == "postgres") as running:
        yield running


class Waves:
    """Start runs in waves, with the same run ids in every deployment, so that steps always run."""

    def __init__(self, environment: RunsEnvironment, seed: int) -> None:
        self._environment = environment
        self._seed = seed
        self.count = 0
        self.runs: list[tuple[LocalAirflow, str]] = []

    def keep_going(self) -> None:
        """Start the next wave if all runs have ended."""
        if not self.unfinished():
            self.begin()

    def begin(self) -> None:
        conf = {"wave": f"{self._seed}.{self.count}", "traces": str(self._environment.traces)}
        for twin in range(2):
            for airflow in self._environment.airflows:
                run_id = f"seed-{self._seed}-wave-{self.count}-{twin}"
                api = self._environment.api(airflow)
                api.wait_for_dag("nights", 120)
                api.unpause("nights")
                self.runs.append((airflow, api.trigger("nights", conf, run_id=run_id)))
        self.count += 1
        self._environment.waves += 1

    def unfinished(self) -> list[str]:
        """Return the runs that have not ended."""
        states = [(run, self._state(airflow, run)) for airflow, run in self.runs]
        return [f"{run}: {state}" for run, state in states if state not in FINISHED_RUN_STATES]

    def wait_for_end(self) -> None:
        """Wait for all API servers, since the test may have killed one, and for all runs."""
        until(lambda: all(airflow.is_answering() for airflow in self._environment.airflows), "the API servers")
        for airflow, run in self.runs:
            self._environment.api(airflow).wait_for_run("nights", run, RUN_S)

    def _state(self, airflow: LocalAirflow, run: str) -> str:
        try:
            return str(self._environment.api(airflow).dag_run("nights", run)["state"])
        except AirflowApiError:
            return "unknown"  # the fault has stopped its API server

    def failures(self) -> list[str]:
        """Return the last log lines of failed tasks."""
        lines = []
        for airflow, run in self.runs:
            api = self._environment.api(airflow)
            is_failed = api.dag_run("nights", run)["state"] != "success"
            for task in api.task_instances("nights", run) if is_failed else ():
                if task["state"] == "failed":
                    log = api.task_log("nights", run, task["task_id"], task["try_number"])
                    lines.append(f"{run}: {task['task_id']}, try {task['try_number']}: {log[-1500:]}")
        return lines


def faults_of(environment: RunsEnvironment, seed: int) -> list[RunFault]:
    """Return some faults in the seed's order; ``make chaos`` covers all of them on PostgreSQL."""
    deck = list(RunFault if environment.staging is not None else COMMON)
    random.Random(f"deck {seed}").shuffle(deck)
    return deck[: FAULTS_ON_SQLITE if environment.staging is None else FAULTS_ON_POSTGRES]


@pytest.mark.ray
@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_version_is_made_once_under_faults(environment: RunsEnvironment, seed: int) -> None:
    waves = Waves(environment, seed)
    maker = FaultMaker(environment, seed, waves.keep_going, print)
    for fault in faults_of(environment, seed):
        maker.make(fault)
    waves.wait_for_end()
    assert waves.failures() == []
    assert list(violations(environment)) == []


def test_overlapping_executions_are_reported() -> None:
    first, inside, after = Execution("a", 1, 1.0, 9.0), Execution("b", 2, 8.5, 10.0), Execution("c", 3, 10.5, 11.0)
    assert overlaps([first, after]) == []
    assert overlaps([first, inside, after]) == ["process 2 began 0.50 s before 1 had ended"]
