"""Processes of a component end with it, however it ends; a component that died is named and started again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.waiting import until
from tradewind.cli.main import main
from tradewind.rehearsal.cloud.control import ControlServer
from tradewind.rehearsal.cloud.control_client import CONTROL_FILE
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack, write_private

START = """
import os, signal, subprocess, sys, time
def start(name):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open(name + ".new", "w") as file:
        file.write(str(child.pid))
    os.replace(name + ".new", name)
"""
CALM = START + "start('child'); time.sleep(600)"
ON_SIGTERM = "signal.signal(signal.SIGTERM, lambda *_: start('late'))\n"
STUBBORN = START + ON_SIGTERM + "start('child')\nwhile True: time.sleep(600)"


def started_pid(file: Path) -> int:
    """Return the PID that a component wrote for the process that it started."""
    until(file.exists, file.name)
    return int(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("program", "names"), [(CALM, ["child"]), (STUBBORN, ["child", "late"])], ids=len)
def test_a_component_leaves_nothing_behind(
    program: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stack = LocalStack(tmp_path / "stack")
    airflow = LocalAirflow(stack, dags_folder=tmp_path, connections={}, settings={})
    command = [sys.executable, "-c", program]
    airflow._children["scheduler"] = stack.start("scheduler", command, {"PATH": "/usr/bin:/bin"})
    try:
        started = [psutil.Process(started_pid(tmp_path / "child"))]
        airflow.stop_components(grace_seconds=2.0)
        started += [psutil.Process(pid) for name in names[1:] if psutil.pid_exists(pid := started_pid(tmp_path / name))]
        left = [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        assert left == [] and stack.processes() == []
    finally:
        stack.stop()


def test_status_names_dead_component_and_up_starts_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = LocalStack(tmp_path / "stack")
    airflow = LocalAirflow(stack, dags_folder=tmp_path, connections={}, settings={}, python=Path("/bin/false"))

    def status() -> dict[str, Any]:
        return {"clusters": {}, "addresses": {}, "env": {}, "dead_in_airflow": airflow.dead_components()}

    def rehearse(what: str) -> None:
        with pytest.raises(SystemExit, match="^0$"):
            main(["rehearse", what, "--dir", str(stack.root)])

    server = ControlServer({"start_airflow": airflow.start_dead_components}, {"status": status})
    server.start()
    try:
        stack.start("other", ["sleep", "600"], {})
        write_private(stack.root / CONTROL_FILE, server.access.to_json())
        airflow.start_component("scheduler")
        first = airflow.processes["scheduler"]
        until(lambda: bool(airflow.dead_components()), "the end of the scheduler")
        rehearse("status")
        said = capsys.readouterr().err
        log = stack.logs / "airflow-scheduler.log"
        assert f"Airflow's scheduler ended with exit code 1; its log is {log}. To start it again: tradewind" in said
        rehearse("up")
        assert "Started again of Airflow: scheduler." in capsys.readouterr().err
        assert airflow.processes["scheduler"] is not first
    finally:
        server.stop()
        stack.stop()
