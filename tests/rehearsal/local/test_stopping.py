"""Processes that a component starts end with it, in any session and however the component ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

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
STUBBORN = (
    START
    + """
signal.signal(signal.SIGTERM, lambda *_: start('late'))
start('child')
while True:
    time.sleep(600)
"""
)


def started_pid(file: Path) -> int:
    """Return the PID that a component wrote for the process that it started."""
    deadline = time.monotonic() + 60.0
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} was not started"
        time.sleep(0.01)
    return int(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("program", "names"), [(CALM, ["child"]), (STUBBORN, ["child", "late"])], ids=len)
def test_a_component_leaves_nothing_behind(
    program: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stack = LocalStack(tmp_path / "stack")
    airflow = LocalAirflow(stack, dags_folder=tmp_path, connections={}, settings={})
    airflow._children["scheduler"] = stack.start(
        "scheduler", [sys.executable, "-c", program], {"PATH": "/usr/bin:/bin"}
    )
    try:
        found = [psutil.Process(started_pid(tmp_path / "child"))]
        airflow.stop_components(grace_seconds=2.0)
        found += [psutil.Process(pid) for name in names[1:] if psutil.pid_exists(pid := started_pid(tmp_path / name))]
        left = [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        assert left == [] and stack.processes() == []
    finally:
        stack.stop()
