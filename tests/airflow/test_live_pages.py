"""The pages of a run that goes on: nobody reloads them, while a training loses its slice, gets another, and ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.airflow.conftest import DagRun, Environment
from tests.support.waiting import until
from tests.ui.conftest import OpenPages, browser, opened  # noqa: F401  (fixtures)
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

DAG, TASK = "live_training", "live_train"
SLICE = LocalSlice("slice-live", "v4-8")


@dataclass(frozen=True)
class Served:
    """The Airflow whose pages the browser opens."""

    url: str
    username: str
    password: str

    def token(self, user: str) -> str:
        login = {"username": self.username, "password": self.password}
        return str(requests.post(f"{self.url}/auth/token", json=login, timeout=30).json()["access_token"])


@pytest.fixture
def ray(env: Environment, tmp_path: Path) -> Iterator[LocalRay]:
    """Start a cluster with one slice, whose heads run the other steps."""
    stack = LocalStack(tmp_path / "stack")
    ray = LocalRay(stack, token="", num_cpus=2, slices=[SLICE])
    try:
        ray.start()
        env.api.put_connection(
            "live", {"conn_type": "ray", "host": ray.address, "extra": f'{{"bucket": "{env.store}"}}'}
        )
        yield ray
    finally:
        stack.stop()


def last_step(root: Any) -> int:
    """Return the newest step that the page's curve shows, 0 before the first."""
    found = re.findall(r"^Up to step ([\d,]+) ", root.inner_text(), re.MULTILINE)
    return max((int(number.replace(",", "")) for number in found), default=0)


def metrics_of(env: Environment) -> list[str]:
    return [line for file in env.store.glob("live/train-*/metrics.jsonl") for line in file.read_text().splitlines()]


def test_step_tab_follows_training_through_lost_slice(
    env: Environment,
    ray: LocalRay,
    opened: OpenPages,  # noqa: F811
) -> None:
    run = env.begin(DAG)
    until(lambda: len(metrics_of(env)) > 20, "steps of the training", lambda: report(run))
    airflow = env.airflow
    with opened(Served(airflow.url, airflow.username, airflow.password)) as page:
        root = page.open(f"dags/{DAG}/runs/{run.run_id}/tasks/{TASK}/plugin/tradewind_step")
        root.get_by_text("at work, attempt 1").wait_for()
        first = last_step(root)
        until(lambda: last_step(root) > first, "a newer step on the page", lambda: root.inner_text())
        ray.kill_slice(SLICE.name)
        root.locator("svg title", has_text="preempted").first.wait_for(state="attached")
        ray.start_slice(SLICE)
        root.locator("svg title", has_text="restarted").first.wait_for(state="attached")
        run.wait()
        assert run.state == "success", report(run)
        root.get_by_text("finished", exact=True).first.wait_for()
        until(lambda: last_step(root) >= 599, "the last step on the page", lambda: root.inner_text())
        assert page.problems == []


def report(run: DagRun) -> str:
    return f"{run.states()}\n{run.log(TASK)}"
