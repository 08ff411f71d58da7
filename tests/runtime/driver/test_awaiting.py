"""The driver resolves Ray references in a result and reports errors of Ray tasks as the user's own."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import ray_parts
from tests.runtime.driven import REPOSITORY, claim_step, result_of, run_attempt
from tests.support.shared_clusters import shared_cluster
from tradewind.datasets import dataset_step
from tradewind.records.attempts import Attempt, AttemptOutcome
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.runtime.driver.function_call import resolve_references
from tradewind.steps import ExecutorStep, RemoteFunction, versioned

IN_A_TASK = RemoteFunction(ray_parts.breaks_far_away, {})


class Reference:
    """Stub of a Ray reference, for tests of ``resolve_references`` without Ray."""

    def __init__(self, value: Any) -> None:
        self.value = value


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    value: Any
    made: Any = field(init=False, default=None)


def walk(value: Any) -> Any:
    """Resolve the references; return the value and the number of references in each fetch."""
    fetches: list[int] = []

    def fetch(references: list[Any]) -> list[Any]:
        fetches.append(len(references))
        return [one.value for one in references]

    return resolve_references(value, lambda one: isinstance(one, Reference), fetch), fetches


def test_references_in_containers_are_fetched_once() -> None:
    value = [Reference(1), (Reference(2),), {"a": Reference(3)}, Pair(Reference(4), 0), Frozen(Reference(5))]
    assert walk(value) == ([1, (2,), {"a": 3}, Pair(4, 0), Frozen(5)], [5])
    inner = Reference([Reference(1)])
    assert walk([inner, inner]) == ([[1], [1]], [1, 1])


def test_value_without_references_stays_same_object() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    for value in ({"a": [1, (2,)], "b": Frozen(3), "c": object()}, loop):
        assert walk(value)[0] is value
    first, second = walk([loop, Reference(2)])[0]
    assert first is loop and second == 2


# ---- on a real cluster


@pytest.fixture(scope="module")
def cluster() -> LocalRay:
    return shared_cluster("open")


def drive(cluster: LocalRay, fn: Any, store: Path, secrets: dict[str, str] | None = None) -> tuple[Attempt, str]:
    return drive_step(cluster, ExecutorStep("s", fn, {"name": versioned("x")}, secrets=secrets or {}), store)


def drive_step(cluster: LocalRay, step: ExecutorStep, store: Path) -> tuple[Attempt, str]:
    env = {
        "RAY_ADDRESS": cluster.gcs_address,
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(REPOSITORY),
        "ON_THE_DRIVER": "s3cr3t-value",
        # Workers of Ray tasks import from the repository, as from the working directory of a Ray job.
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}}),
    }
    _, text, ended = run_attempt(claim_step(step, store), env)
    return ended, text


def result_on(cluster: LocalRay, *arguments: Any) -> Any:
    ended, text = drive(cluster, *arguments)
    assert ended.outcome is AttemptOutcome.SUCCEEDED, text
    return result_of(ended.spec["output_path"])


@pytest.mark.ray
@pytest.mark.parametrize(
    ("fn", "result"),
    [
        (ray_parts.returns_references, {"nested": [4, [9, {"deep": 16}]], "twice": [25]}),
        (ray_parts.ray_step, [36]),
    ],
    ids=["references", "a Ray function"],
)
def test_step_returning_references_yields_their_values(cluster: LocalRay, tmp_path: Path, fn: Any, result: Any) -> None:
    assert result_on(cluster, fn, tmp_path) == result


@pytest.mark.ray
@pytest.mark.parametrize("fn", [ray_parts.breaks_far_away, ray_parts.breaks, IN_A_TASK], ids=["in", "itself", "both"])
def test_error_in_ray_task_is_recorded_as_error_of_step(cluster: LocalRay, tmp_path: Path, fn: Any) -> None:
    ended, text = drive(cluster, fn, tmp_path)
    assert ended.outcome is AttemptOutcome.FAILED and ended.error is not None, text
    assert ended.error.type == "KeyError"
    assert "no " in ended.error.message and "ray::" not in ended.error.message
    assert "ray_parts.py" in ended.error.traceback and "raise KeyError" in ended.error.traceback
    assert "tradewind/runtime" not in ended.error.traceback
    assert "raise KeyError" in text


@pytest.mark.ray
def test_ray_task_gets_secret_and_its_worker_forgets_it(cluster: LocalRay, tmp_path: Path) -> None:
    fn = RemoteFunction(ray_parts.tells_its_secret, {"num_cpus": 0.1})
    assert result_on(cluster, fn, tmp_path, {"KEY": "env:ON_THE_DRIVER"}) == ["s3cr3t", True]
    assert result_on(cluster, fn, tmp_path / "later") == ["", True]


@pytest.mark.ray
def test_pipeline_of_a_step_is_processed_by_ray_tasks(cluster: LocalRay, tmp_path: Path) -> None:
    step = dataset_step("s", ray_parts.counts_words, {"name": versioned("x")}, max_parallelism=2, memory="100MB")
    ended, text = drive_step(cluster, step, tmp_path)
    assert ended.outcome is AttemptOutcome.SUCCEEDED, text
    output = ended.spec["output_path"]
    assert sorted(result_of(output)["results"]) == ["a3", "b2", "c1"]
    assert "Stage 2 of 2 (group_by): 2 of 2 shards, 3 rows" in text
    progress = json.loads(Path(output, ".dataset", "progress.json").read_text())
    assert [stage["done"] for stage in progress["stages"]] == [3, 2]
