"""Examples of the documentation under a scheduler: each ends with what its page says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import requests

from tests.airflow.conftest import DagRun, Environment
from tests.support.pages import SCHEDULED

# Not in `make test`: ten DAG runs at once take minutes of a busy machine.
pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.long]

DAY = "2026-01-02"


def check_readme(run: DagRun) -> None:
    assert json.loads((run.env.output("data") / "data.json").read_text()) == list(range(100))
    assert (run.env.output("total") / ".artifact.json").read_text() == "4950"


def check_first(run: DagRun) -> None:
    assert set(run.decisions().values()) == {"RUN"}
    assert json.loads((run.env.output("first/sum") / ".artifact.json").read_text()) == {"sum": 4950}


def check_note(run: DagRun) -> None:
    assert (run.env.output("note") / "note.txt").read_text() == "hello"
    assert run.jobs() == [], "it needs no Ray job"


def check_first_ray_jobs(run: DagRun) -> None:
    assert re.search(r"(?:^| info )42$", run.log("say"), re.MULTILINE)
    assert run.env.api.xcom(run.dag_id, run.run_id, "add") == 42


def check_others(run: DagRun) -> None:
    assert run.env.api.xcom(run.dag_id, run.run_id, "export_is_done") == "export"
    assert run.env.api.xcom(run.dag_id, run.run_id, "stop_serving") == [f"serve-{DAY}"]


def check_own_operator(run: DagRun) -> None:
    rows = run.env.output("exports/rows")
    assert (rows / "rows.csv").read_text() == "10\n"
    assert f"The rows are at {rows}" in run.log("read")


def check_choose_sum_publish(run: DagRun) -> None:
    assert run.env.api.xcom(run.dag_id, run.run_id, "publish") == "The sum is 378."


def check_where(run: DagRun) -> None:
    assert re.fullmatch(r"Python 3\.\d+\.\d+ in /.+", run.env.api.xcom(run.dag_id, run.run_id, "where"))


CHECKS: dict[str, Callable[[DagRun], None]] = {
    "README": check_readme,
    "first": check_first,
    "note": check_note,
    "first_ray_jobs": check_first_ray_jobs,
    "others": check_others,
    "own_operator": check_own_operator,
    "choose_sum_publish": check_choose_sum_publish,
    "where": check_where,
}


def submit_jobs_of_others(env: Environment) -> None:
    """Submit, as another process, what the example ``others`` waits for, and what it stops."""
    jobs = [
        {"submission_id": "export", "entrypoint": "true", "metadata": {"name": "export", "date": DAY}},
        {"submission_id": f"serve-{DAY}", "entrypoint": "sleep 600"},
    ]
    for job in jobs:
        requests.post(f"{env.ray_address}/api/jobs/", json=job, timeout=30).raise_for_status()


@pytest.fixture(scope="module")
def runs(env: Environment) -> dict[str, DagRun]:
    """Start all examples, so that they run at the same time."""
    submit_jobs_of_others(env)
    return {dag_id: env.begin(dag_id, date=datetime.fromisoformat(DAY).replace(tzinfo=UTC)) for dag_id in SCHEDULED}


@pytest.mark.parametrize("dag_id", SCHEDULED)
def test_example_ends_with_what_its_page_says(runs: dict[str, DagRun], dag_id: str) -> None:
    run = runs[dag_id]
    run.wait()
    failed = [task for task, state in run.states().items() if state != "success"]
    assert failed == [], run.log(failed[0])
    CHECKS[dag_id](run)


def test_second_run_of_an_example_skips_its_steps(env: Environment, runs: dict[str, DagRun]) -> None:
    for dag_id, step in (("README", "total"), ("choose_sum_publish", "sums.own_total")):
        runs[dag_id].wait()
        second = env.run(dag_id)
        assert second.state == "success" and second.states()[step] == "skipped"
    check_choose_sum_publish(second)
