"""The restart benchmark on a small head, with tasks of the Airflow that these tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.fleet.restart import DAG_FILE, WaitingTasks, measure_on
from tests.airflow.conftest import Environment

pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.long]


def test_restart_keeps_every_job_once_without_using_retries(env: Environment, tmp_path: Path) -> None:
    shutil.copy(DAG_FILE, env.dags)
    cost = measure_on(tmp_path, 2, WaitingTasks(env.api, 2))
    assert (cost.people, cost.tasks) == (2, 2)
    assert (cost.lost, cost.twice, cost.retries) == (0, 0, 0)
    assert cost.headless_s > 0
