"""The driver resolves Ray references in a result and reports errors of Ray tasks as the user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import ray_parts
from tests.support.claims import claimed, driver_arguments
from tests.support.shared_clusters import shared_cluster
from tradewind.records.attempts import Attempt, AttemptOutcome, newest_attempt
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.runtime.driver.function_call import resolve_references
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import ExecutorStep, RemoteFunction, resolve, versioned

REPOSITORY = Path(__file__).parents[3]
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


def walked(value: Any) -> Any:
    asked: list[int] = []

    def get(references: list[Any]) -> list[Any]:
        asked.append(len(references))
        return [one.value for one in references]

    return resolve_references(value, lambda one: isinstance(one, Reference), get), asked


def test_references_are_found_in_every_kind_of_container() -> None:
    value = [Reference(1), (Reference(2),), {"a": Reference(3)}, Pair(Reference(4), 0), Frozen(Reference(5))]
    assert walked(value) == ([1, (2,), {"a": 3}, Pair(4, 0), Frozen(5)], [5])


def test_references_walked_recursively_and_fetched_once() -> None:
    inner = Reference([Reference(1)])
    assert walked([inner, inner]) == ([[1], [1]], [1, 1])


def test_what_holds_no_reference_stays_the_same_object() -> None:
    value = {"a": [1, (2,)], "b": Frozen(3), "c": object()}
    assert walked(value)[0] is value


def test_something_that_holds_itself_is_walked_to_its_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert walked(loop)[0] is loop
    found, _ = walked([loop, Reference(2)])
    assert found[0] is loop and found[1] == 2


# ---- on a real cluster


@pytest.fixture(scope="module")
def cluster() -> LocalRay:
    return shared_cluster("open")


def drive(cluster: LocalRay, fn: Any, store: Path, secrets: dict[str, str] | None = None) -> tuple[Attempt, str, str]:
    step = ExecutorStep("s", fn, {"name": versioned("x")}, secrets=secrets or {})
    resolved_step = resolve([step], str(store)).of(step)
    spec = step_spec(resolved_step, CodeFolder(REPOSITORY))
    attempt = claimed(resolved_step, spec)
    command = [sys.executable, "-m", "tradewind.runtime.run_step", *driver_arguments(attempt)]
    env = {
        **os.environ,
        "RAY_ADDRESS": cluster.gcs_address,
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(REPOSITORY),
        "ON_THE_DRIVER": "s3cr3t-value",
        # Workers of Ray tasks import from the repository, as from the working directory of a Ray job.
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}}),
    }
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
    ended = newest_attempt(resolved_step.output_path)
    assert ended is not None
    return ended, resolved_step.output_path, done.stdout + done.stderr


def result_of(output_path: str) -> Any:
    return json.loads(Path(output_path, ".artifact.json").read_text())


@pytest.mark.ray
def test_step_returning_references_yields_their_values(cluster: LocalRay, tmp_path: Path) -> None:
    ended, output_path, text = drive(cluster, ray_parts.returns_references, tmp_path)
    assert ended.outcome is AttemptOutcome.SUCCEEDED, text
    assert result_of(output_path) == {"nested": [4, [9, {"deep": 16}]], "twice": [25]}


@pytest.mark.ray
def test_a_ray_function_is_a_step_function(cluster: LocalRay, tmp_path: Path) -> None:
    ended, output_path, text = drive(cluster, ray_parts.ray_step, tmp_path)
    assert ended.outcome is AttemptOutcome.SUCCEEDED, text
    assert result_of(output_path) == [36]


@pytest.mark.ray
@pytest.mark.parametrize("fn", [ray_parts.breaks_far_away, ray_parts.breaks, IN_A_TASK], ids=["in", "itself", "both"])
def test_an_error_in_a_task_is_the_steps_own(cluster: LocalRay, tmp_path: Path, fn: Any) -> None:
    ended, _, text = drive(cluster, fn, tmp_path)
    assert ended.outcome is AttemptOutcome.FAILED and ended.error is not None, text
    assert ended.error.type == "KeyError"
    assert "no " in ended.error.message and "ray::" not in ended.error.message
    assert "ray_parts.py" in ended.error.traceback and "raise KeyError" in ended.error.traceback
    assert "tradewind/runtime" not in ended.error.traceback
    assert "raise KeyError" in text


@pytest.mark.ray
def test_a_step_that_runs_as_a_ray_task_finds_its_secret_there(cluster: LocalRay, tmp_path: Path) -> None:
    fn = RemoteFunction(ray_parts.tells_its_secret, {"num_cpus": 0.1})
    ended, output_path, text = drive(cluster, fn, tmp_path, {"KEY": "env:ON_THE_DRIVER"})
    assert ended.outcome is AttemptOutcome.SUCCEEDED, text
    assert result_of(output_path) == ["s3cr3t", True]
    later, output_path, text = drive(cluster, fn, tmp_path / "later")
    assert later.outcome is AttemptOutcome.SUCCEEDED, text
    assert result_of(output_path) == ["", True]  # the worker does not keep the secret for the next task
