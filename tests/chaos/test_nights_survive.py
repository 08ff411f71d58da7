"""Drills on a real Airflow: despite kills, freezes and disconnections, each version has one result.

They use PostgreSQL as production does, two schedulers, two triggerers and a second deployment that requires the same
versions. ``make chaos`` runs more seeds, and shorter drills on SQLite. The verifier reads only the files, the job list
and the traces.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.chaos.runs.environment import NightHouse, running_nights
from tests.chaos.runs.faults import COMMON, Trouble, Troublemaker
from tests.chaos.runs.traces import Life, overlaps
from tests.chaos.runs.verifier import broken_promises
from tests.support.waiting import until
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import FINISHED_RUN_STATES, AirflowApi, AirflowApiError

SEEDS = [int(seed) for seed in os.environ.get("NIGHT_SEEDS", "0").split()]
DATABASES = os.environ.get("NIGHT_DATABASES", "postgres").split()
TROUBLES_ON_POSTGRES = int(os.environ.get("NIGHT_TROUBLES", "5"))
TROUBLES_ON_SQLITE = 3
NIGHT_S = 900.0


@pytest.fixture(scope="module", params=DATABASES)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NightHouse]:
    with running_nights(tmp_path_factory.mktemp("nights"), on_postgres=request.param == "postgres") as running:
        yield running


class Waves:
    """Start runs in waves, with the same run ids in every deployment, so that steps always run."""

    def __init__(self, house: NightHouse, seed: int) -> None:
        self._house = house
        self._seed = seed
        self.count = 0
        self.runs: list[tuple[LocalAirflow, str]] = []

    def keep_going(self) -> None:
        """Start the next wave if all runs have ended."""
        if not self.unfinished():
            self.begin()

    def begin(self) -> None:
        conf = {"wave": f"{self._seed}.{self.count}", "traces": str(self._house.traces)}
        for twin in range(2):
            for airflow in self._house.airflows:
                run_id = f"seed-{self._seed}-wave-{self.count}-{twin}"
                api = self._house.api(airflow)
                api.wait_for_dag("nights", 120)
                api.unpause("nights")
                self.runs.append((airflow, api.trigger("nights", conf, run_id=run_id)))
        self.count += 1
        self._house.waves += 1

    def unfinished(self) -> list[str]:
        """Return the runs that have not ended."""
        return [f"{run}: {state}" for run, state in self.states() if state not in FINISHED_RUN_STATES]

    def wait_for_end(self) -> None:
        """Wait for all API servers, since the test may have killed one, and for all runs."""
        until(lambda: all(airflow.is_answering() for airflow in self._house.airflows), "the API servers")
        for airflow, run in self.runs:
            self._house.api(airflow).wait_for_run("nights", run, NIGHT_S)

    def states(self) -> list[tuple[str, str]]:
        found = []
        for airflow, run in self.runs:
            try:
                found.append((run, str(self._house.api(airflow).dag_run("nights", run)["state"])))
            except AirflowApiError:
                found.append((run, "unknown"))  # the fault has stopped its API server
        return found

    def failures(self) -> list[str]:
        """Return the last log lines of failed tasks."""
        told = []
        for airflow, run in self.runs:
            api = self._house.api(airflow)
            if api.dag_run("nights", run)["state"] != "success":
                told += [f"{run}: {line}" for line in _failed_tasks(api, run)]
        return told


def _failed_tasks(api: AirflowApi, run: str) -> list[str]:
    failed = [one for one in api.task_instances("nights", run) if one["state"] == "failed"]
    logs = [api.task_log("nights", run, one["task_id"], one["try_number"]) for one in failed]
    return [f"{one['task_id']}, try {one['try_number']}: {log[-1500:]}" for one, log in zip(failed, logs, strict=True)]


def troubles_of(house: NightHouse, seed: int) -> list[Trouble]:
    """Return some faults in the seed's order; ``make chaos`` covers all of them on PostgreSQL."""
    deck = list(Trouble if house.staging is not None else COMMON)
    random.Random(f"deck {seed}").shuffle(deck)
    return deck[: TROUBLES_ON_SQLITE if house.staging is None else TROUBLES_ON_POSTGRES]


@pytest.mark.ray
@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_version_is_made_once_whatever_befalls_the_night(house: NightHouse, seed: int) -> None:
    waves = Waves(house, seed)
    maker = Troublemaker(house, seed, waves.keep_going, print)
    for trouble in troubles_of(house, seed):
        maker.make(trouble)
    waves.wait_for_end()
    assert waves.failures() == []
    assert list(broken_promises(house)) == []


def test_two_lives_that_overlap_are_told() -> None:
    one, inside, after = Life("a", 1, 1.0, 9.0), Life("b", 2, 8.5, 10.0), Life("c", 3, 10.5, 11.0)
    assert overlaps([one, after]) == []
    assert overlaps([one, inside, after]) == ["process 2 began 0.50 s before 1 had ended"]
