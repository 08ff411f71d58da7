"""A cluster's token goes into requests to that cluster and nowhere else; a wrong address or token is said in words."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.airflow.conftest import House, closed_port
from tests.airflow.ray_side import jobs_of
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = [pytest.mark.airflow, pytest.mark.ray]

MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Guarded:
    """A cluster that asks for a token, and two connections to it."""

    ray: LocalRay
    token: str
    wrong: str


@pytest.fixture(scope="module")
def guarded(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    stack = LocalStack(tmp_path_factory.mktemp("guarded"))
    token, wrong = secrets.token_hex(24), secrets.token_hex(24)
    ray = LocalRay(stack, num_cpus=2, token=token, env={"PASSPHRASE_OF_CLUSTER": "a passphrase"})
    try:
        ray.start()
        for name, password in (("guarded", token), ("wrong_token", wrong)):
            house.api.put_connection(name, {"conn_type": "ray", "host": ray.address, "password": password})
        yield Guarded(ray, token, wrong)
    finally:
        stack.stop()


def text_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_size < MOST_BYTES:
            yield file, file.read_bytes()


def test_a_token_is_seen_nowhere(house: House, guarded: Guarded) -> None:
    command = "echo working; sleep 5; echo done"
    run = house.begin("ray_elsewhere", {"conn": "guarded", "command": command})
    seen_on_command_lines = set()

    def look(_: object) -> None:
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if guarded.token in line:
                seen_on_command_lines.add(line)

    house.api.wait_for_run(run.dag_id, run.run_id, 120, on_poll=look)
    assert run.states() == {"job": "success"}
    assert seen_on_command_lines == set()
    refused = house.run("ray_elsewhere", {"conn": "wrong_token", "command": command})
    assert refused.states() == {"job": "failed"}
    assert "wrong_token" in refused.log("job")
    xcoms = {
        key: house.api.xcom(run.dag_id, run.run_id, "job", key)
        for key in house.api.xcoms(run.dag_id, run.run_id, "job")
    }
    told = json.dumps([xcoms, jobs_of(guarded.ray.address, run.run_id, guarded.token)])
    rendered = house.api.task_instances(run.dag_id, run.run_id) + house.api.task_instances(run.dag_id, refused.run_id)
    for secret in (guarded.token, guarded.wrong):
        assert secret not in told + json.dumps(rendered) + run.log("job") + refused.log("job")
        for folder in (house.store, house.airflow.stack.root):  # logs, records, configuration and database
            assert [str(file) for file, data in text_below(folder) if secret.encode() in data] == []


def test_a_refused_token_fails_at_once_and_submits_nothing(house: House, guarded: Guarded) -> None:
    run = house.run("ray_elsewhere", {"conn": "wrong_token", "command": "true"})
    [task] = house.api.task_instances(run.dag_id, run.run_id)
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert jobs_of(guarded.ray.address, run.run_id, guarded.token) == []


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("http://127.0.0.1:{closed}", "does not answer"),
        ("https://{ray}", "TLS"),
        ("nonsense://here", "is no dashboard address"),
    ],
)
def test_a_wrong_address_is_named_with_its_connection(house: House, guarded: Guarded, host: str, words: str) -> None:
    name = f"address_{abs(hash(host)) % 1000}"
    address = host.format(closed=closed_port(), ray=guarded.ray.address.removeprefix("http://"))
    house.api.put_connection(name, {"conn_type": "ray", "host": address})
    run = house.run("ray_elsewhere", {"conn": name, "command": "true"})
    assert run.states() == {"job": "failed"}
    assert name in run.log("job")
    assert words in run.log("job")


@pytest.mark.parametrize(
    ("command", "words"), [("", "empty"), ("echo hf_" + "a" * 34, "secret")], ids=["empty", "secret"]
)
def test_a_bad_command_is_refused_before_it_is_submitted(
    house: House, guarded: Guarded, command: str, words: str
) -> None:
    run = house.run("ray_elsewhere", {"conn": "guarded", "command": command})
    assert run.states() == {"job": "failed"}
    assert words in run.log("job")
    assert jobs_of(guarded.ray.address, run.run_id, guarded.token) == []
