"""Requests send a cluster's token only to that cluster; a token refusal fails the task at once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.airflow.conftest import RUN_TIMEOUT_S, DagRun, Environment, jobs_of
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Guarded:
    """A cluster that requires a token, and two connections to it."""

    ray: LocalRay
    token: str
    wrong: str


@pytest.fixture(scope="module")
def guarded(env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    stack = LocalStack(tmp_path_factory.mktemp("guarded"))
    token, wrong = secrets.token_hex(24), secrets.token_hex(24)
    ray = LocalRay(stack, num_cpus=2, token=token, env={"PASSPHRASE_OF_CLUSTER": "a passphrase"})
    try:
        ray.start()
        for name, password in (("guarded", token), ("wrong_token", wrong)):
            env.api.put_connection(name, {"conn_type": "ray", "host": ray.address, "password": password})
        yield Guarded(ray, token, wrong)
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def refused(env: Environment, guarded: Guarded) -> DagRun:
    """Return a run whose task sends the cluster a wrong token."""
    return env.run("ray_elsewhere", {"conn": "wrong_token", "command": "true"})


def text_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the database deletes its journal when a transaction ends
            if file.is_file() and not file.is_symlink() and file.stat().st_size < MAX_BYTES:
                yield file, file.read_bytes()


def test_token_appears_in_no_log_file_or_command_line(env: Environment, guarded: Guarded, refused: DagRun) -> None:
    run = env.begin("ray_elsewhere", {"conn": "guarded", "command": "echo working; sleep 5; echo done"})
    lines_with_token = set()

    def look(_: object) -> None:
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if guarded.token in line:
                lines_with_token.add(line)

    env.api.wait_for_run(run.dag_id, run.run_id, RUN_TIMEOUT_S, on_poll=look)
    assert run.states() == {"job": "success"}
    assert lines_with_token == set()
    keys = env.api.xcoms(run.dag_id, run.run_id, "job")
    xcoms = {key: env.api.xcom(run.dag_id, run.run_id, "job", key) for key in keys}
    shown = [xcoms, jobs_of(guarded.ray.address, run.run_id, guarded.token), run.task("job"), refused.task("job")]
    text = json.dumps(shown) + run.log("job") + refused.log("job")
    tokens = (guarded.token, guarded.wrong)
    assert not [token for token in tokens if token in text]
    assert env.store.is_relative_to(env.airflow.stack.root)
    files = text_below(env.airflow.stack.root)  # outputs, logs, records, configuration and database
    assert [str(file) for file, data in files if any(token.encode() in data for token in tokens)] == []


def test_refused_token_fails_at_once_and_submits_nothing(env: Environment, guarded: Guarded, refused: DagRun) -> None:
    task = refused.task("job")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert "wrong_token" in refused.log("job")
    assert jobs_of(guarded.ray.address, refused.run_id, guarded.token) == []
