"""An evaluation in Airflow whose Ray head is killed and started again: it goes on, with the same scores."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.conftest import DagRun, Environment, python_with_lm_eval
from tests.evaluation.conftest import TASKS, expected_accuracy
from tests.serving.exports import tiny_export
from tests.serving.pools import events
from tests.support.clusters import HASTY
from tests.support.waiting import until
from tradewind.evaluation.results import EvaluationRecord, read_record
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory

pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.slow, pytest.mark.long]

AT_ONCE = 4
"""Requests on their way, whose answers a fault may lose."""
TASK = "evaluates_scores"


@pytest.fixture
def ray(env: Environment, tmp_path: Path) -> Iterator[LocalRay]:
    """Start a cluster whose head runs no jobs, with a host that does."""
    stack = LocalStack(tmp_path / "stack")
    ray = LocalRay(stack, token="", num_cpus=0, env={**HASTY, **head_memory(tmp_path / "gcs")})
    extra = json.dumps({"python": str(python_with_lm_eval(tmp_path))})
    try:
        ray.start()
        ray.start_hosts("host", 1)
        env.api.put_connection("evaluates_on", {"conn_type": "ray", "host": ray.address, "extra": extra})
        yield ray
    finally:
        stack.stop()


def test_killed_ray_head_costs_evaluation_no_answer(env: Environment, ray: LocalRay, tmp_path: Path) -> None:
    """The evaluation and its engines are on the host; the pool's head was on the cluster's."""
    export, log = tiny_export(tmp_path / "model"), tmp_path / "model.jsonl"
    run = begin(env, export, tmp_path / "disturbed")
    until(lambda: len(prompts(log)) >= 6, "answers before the kill", lambda: report(run))
    ray.kill_head()
    ray.start_head()
    run.wait()
    assert (run.state, run.task(TASK)["try_number"]) == ("success", 1), report(run)
    answered = Counter(prompts(log))
    calm = begin(env, export, tmp_path / "calm")
    calm.wait()
    assert calm.state == "success", report(calm)
    disturbed, undisturbed = record_of(tmp_path / "disturbed"), record_of(tmp_path / "calm")
    assert disturbed.tasks == undisturbed.tasks
    assert disturbed.tasks["colors_0shot"].scores[0].value == expected_accuracy(export)
    once = Counter(prompts(log)) - answered
    assert once.total() == undisturbed.requests == disturbed.requests
    assert not once - answered
    assert (answered - once).total() <= AT_ONCE


def begin(env: Environment, export: Path, prefix: Path) -> DagRun:
    return env.begin(
        "evaluates",
        {"model": str(export), "tasks": str(shutil.copytree(TASKS, prefix / "tasks")), "prefix": str(prefix)},
    )


def prompts(log: Path) -> list[str]:
    """Return the prompts that engines have answered."""
    return [json.dumps(event["prompt"]) for event in events(log, "answered")]


def report(run: DagRun) -> str:
    """Return the logs of all tries."""
    numbers = range(1, run.task(TASK)["try_number"] + 1)
    return "\n".join([str(run.states()), *(run.log(TASK, number) for number in numbers)])


def record_of(prefix: Path) -> EvaluationRecord:
    [output] = [path for path in prefix.glob("evaluates/scores-*") if path.is_dir()]
    return read_record(str(output))
