"""A killed component under a task neither starts its job twice nor uses one of Airflow's retries."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.airflow.conftest import PASSPHRASE, TERMINAL, DagRun, Environment, jobs_of
from tests.support.clusters import HASTY
from tests.support.supervisors import is_supervisor
from tests.support.waiting import until
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

SEED = 20261121
MOMENTS = random.Random(SEED)

StartRay = Callable[..., tuple[LocalRay, str]]


@pytest.fixture
def start_ray(env: Environment, tmp_path: Path) -> Iterator[StartRay]:
    """Start a separate cluster whose head a test may kill; yield it with its connection's name."""
    stack = LocalStack(tmp_path / "stack")

    def start(**variables: str) -> tuple[LocalRay, str]:
        ray = LocalRay(stack, token="", num_cpus=2, env={**HASTY, "PASSPHRASE_OF_CLUSTER": PASSPHRASE, **variables})
        ray.start()
        env.api.put_connection(tmp_path.name, {"conn_type": "ray", "host": ray.address})
        return ray, tmp_path.name

    try:
        yield start
    finally:
        stack.stop()


def run_command(env: Environment, connection: str, command: str) -> DagRun:
    return env.begin("ray_elsewhere", {"conn": connection, "command": command})


def until_running(address: str, run: DagRun) -> str:
    def running() -> list[str]:
        return [job["submission_id"] for job in jobs_of(address, run.run_id) if job["status"] == "RUNNING"]

    [job] = until(running, "a running job")
    return job


def check_success_in_first_try(run: DagRun, task_id: str = "job") -> None:
    run.wait()
    task = run.task(task_id)
    assert (task["state"], task["try_number"]) == ("success", 1), run.log(task_id)


@pytest.mark.long
@pytest.mark.parametrize("storage", ["memory", "rocksdb"])
def test_killed_head_costs_attempt_but_no_retry(
    env: Environment, start_ray: StartRay, tmp_path: Path, storage: str
) -> None:
    ray, connection = start_ray(**({} if storage == "memory" else head_memory(tmp_path / "gcs")))
    file, back = tmp_path / "ran", tmp_path / "back"
    wait = f"until [ -e {back} ]; do sleep 0.2; done"
    run = run_command(env, connection, f"echo started >> {file}; {wait}; echo ended >> {file}")
    first = until_running(ray.address, run)
    until(lambda: run.states() == {"job": "deferred"}, "the task to follow its job")
    until(file.exists, "the command to start: Ray reports the job as running before", lambda: run.log("job"))
    time.sleep(MOMENTS.uniform(0, 3))
    ray.kill_head()
    back.touch()
    ray.start_head()
    check_success_in_first_try(run)
    assert file.read_text() == "started\nstarted\nended\n"
    assert first.endswith("-1")
    assert env.api.xcom(run.dag_id, run.run_id, "job", "submission_id") == first.removesuffix("1") + "2"


def test_step_forgotten_by_head_reruns_and_counts_once(env: Environment, start_ray: StartRay, tmp_path: Path) -> None:
    ray, _ = start_ray()
    env.api.put_connection("own_cluster", {"conn_type": "ray", "host": ray.address})
    gate = tmp_path / "open"
    run = env.begin("own_cluster", {"name": "forgotten", "prefix": str(tmp_path), "until": str(gate)})
    until(lambda: list(tmp_path.glob("own/*.calls")), "the step to start")
    until(lambda: run.states()["own_step"] == "deferred", "the task to follow it")
    time.sleep(MOMENTS.uniform(0, 3))
    ray.kill_head()
    ray.start_head()
    gate.touch()
    check_success_in_first_try(run, "own_step")
    [output] = [path for path in tmp_path.glob("own/step-*") if path.is_dir()]
    lease = json.loads((output / ".executor_status.lock").read_text())
    assert (lease["phase"], lease["attempt"]) == ("committed", 2)
    attempts = [json.loads(file.read_text())["outcome"] for file in sorted(output.glob(".attempts/*.json"))]
    assert attempts in (["stopped", "succeeded"], ["lost", "succeeded"]), "depending on whether it shut down gracefully"
    [calls] = tmp_path.glob("own/*.calls")
    assert calls.read_text() == "started\nstarted\nended\n"


@pytest.mark.long
def test_killed_supervisor_costs_attempt_but_no_retry(env: Environment, start_ray: StartRay, tmp_path: Path) -> None:
    ray, connection = start_ray()
    file = tmp_path / "ran"
    run = run_command(env, connection, f"echo started >> {file}; sleep 10; echo ended >> {file}")
    until_running(ray.address, run)
    until(file.exists, "the command to start", lambda: run.log("job"))
    time.sleep(MOMENTS.uniform(0, 3))
    [supervisor] = [one for one in ray.stack.processes() if is_supervisor(one)]
    supervisor.kill()
    check_success_in_first_try(run)
    assert [job["status"] in TERMINAL for job in jobs_of(ray.address, run.run_id)] == [True, True]
    assert file.read_text().endswith("started\nended\n")


@pytest.mark.parametrize("component", ["scheduler", "triggerer", pytest.param("api-server", marks=pytest.mark.long)])
def test_airflow_component_restart_leaves_one_job(env: Environment, tmp_path: Path, component: str) -> None:
    file, back = tmp_path / "ran", tmp_path / "back"
    wait = f"until [ -e {back} ]; do sleep 0.2; done"  # Airflow fails a task that resumes without an API server
    run = run_command(env, "ray_default", f"echo started >> {file}; {wait}; echo ended >> {file}")
    until_running(env.ray_address, run)
    until(lambda: run.states() == {"job": "deferred"}, "the task to follow its job")
    time.sleep(MOMENTS.uniform(0, 3))
    env.airflow.kill_component(component)
    env.airflow.start_component(component)
    if component == "api-server":
        until(env.airflow.is_answering, "the API server to answer")
    back.touch()
    check_success_in_first_try(run)
    assert run.job_statuses() == ["SUCCEEDED"]
    assert file.read_text() == "started\nended\n"


def test_secret_is_fetched_on_cluster(env: Environment) -> None:
    digest = hashlib.sha256(PASSPHRASE.encode()).hexdigest()
    command = f'echo "$(printf %s "$PASSPHRASE" | sha256sum)" | grep {digest} && echo it fits'
    run = run_command(env, "ray_default", command)
    check_success_in_first_try(run)
    assert "it fits" in run.log("job")
    assert PASSPHRASE not in run.log("job") + str(run.jobs())
