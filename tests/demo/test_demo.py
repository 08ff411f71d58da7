"""The demo as a user types it: up, up again, down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from demo.__main__ import main
from demo.stack import SHELL_FILE, StackAddresses
from tests.support.open_ports import check_strangers_are_refused
from tradewind.rehearsal.local.processes import LocalStack

REPOSITORY = Path(__file__).parents[2]


def demo(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", *arguments, "--root", str(root)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("conf", ["[1]", "learning_rate:0.004"])
def test_params_not_a_json_object_are_refused_before_start(
    conf: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["up", "--conf", conf, "--root", str(tmp_path)])
    assert refused.value.code == 2 and f"{conf} is not a JSON object like" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("target", "command"), [("demo", "up"), ("stop", "down")])
def test_make_runs_the_demo_with_arguments(target: str, command: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command_line = ["make", "--dry-run", "--no-print-directory", target, "ARGS=--dag hello_world"]
    printed = subprocess.run(command_line, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1].partition("/python ")[2] == f"-m demo {command} --dag hello_world"


@pytest.mark.airflow
def test_demo_runs_reuses_refuses_strangers_and_ends(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path)
    try:
        first = demo(tmp_path, "up", "--dag", "hello_world")
        assert first.returncode == 0, first.stdout + first.stderr
        for text in ("hello_world_data deferred", "hello_world_stats success", "0 of 2 steps reused", "password "):
            assert text in first.stdout
        addresses = StackAddresses.read(stack)
        assert addresses is not None
        assert requests.get(addresses.airflow, timeout=30).ok
        check_strangers_are_refused(stack, Path(addresses.ray_token_file).read_text())

        shell = tmp_path / SHELL_FILE
        assert shell.stat().st_mode & 0o777 == 0o600
        plan = f". {shell} && {Path(sys.executable).parent}/tradewind plan hello_world"
        planned = subprocess.run(["bash", "-c", plan], capture_output=True, text=True, check=True)
        assert "2 steps: 2 REUSE" in planned.stdout

        second = demo(tmp_path, "up", "--dag", "hello_world")
        assert second.returncode == 0, second.stdout + second.stderr
        assert (
            "Using the running stack" in second.stdout
            and "Nothing had to run: 2 of 2 steps reused, in" in second.stdout
        )

        scratch = [link.readlink() for link in tmp_path.glob("*/*.scratch")]
        assert [folder.is_dir() for folder in scratch] == [True]
        down = demo(tmp_path, "down")
        assert down.returncode == 0 and down.stdout.startswith("Stopped ")
        assert stack.processes() == [] and not any(folder.exists() for folder in scratch)
        assert not shell.exists()
        with pytest.raises(requests.ConnectionError):
            requests.get(addresses.airflow, timeout=30)
    finally:
        stack.stop()
