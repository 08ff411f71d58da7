"""Processes that a component starts end with it, in any session and however the component ends."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import until
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack

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
