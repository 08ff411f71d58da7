"""An experiment with outputs in a bucket: real drivers, each with its own client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.s3_server import LocalS3
from tradewind.records.record import RecordState, read_record
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.storage.files import read_many, read_text, write_text

EXPERIMENT = """
import json
import fsspec
from tradewind import ExecutorStep, executor_main, output_path_of, this_output_path, versioned

def make(config):
    with fsspec.open(f"{config['out']}/data.json", "w") as file:
        json.dump(list(range(config["n"])), file)

def add_up(config):
    with fsspec.open(f"{config['data']}/data.json") as file:
        return sum(json.load(file))

data = ExecutorStep("data", make, {"n": versioned(100), "out": this_output_path()})
total = ExecutorStep("total", add_up, {"data": output_path_of(data)})
executor_main(steps=[total])
"""


@pytest.mark.slow
def test_steps_run_once_and_are_reused_or_forced(served: tuple[LoopbackServer | LocalS3, str], tmp_path: Path) -> None:
    _, folder = served
    (tmp_path / "exp.py").write_text(EXPERIMENT)

    def run(*options: str) -> str:
        command = [sys.executable, "exp.py", "--prefix", folder, *options]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "2 steps: 2 RUN" in run()
    total = f"{folder}/total-e1a66b"
    assert json.loads(read_text(f"{total}/.artifact.json") or "") == sum(range(100))
    assert read_record(total).state is RecordState.FINISHED
    assert "2 steps: 2 REUSE" in run()
    forced = run("--force", '["total"]')
    assert "2 steps: 1 RUN, 1 REUSE" in forced and "attempt 2" in forced
    attempts = read_many([f"{total}/.attempts/{number}.json" for number in (1, 2)])
    assert [json.loads(text)["outcome"] for text in attempts.values()] == ["succeeded", "succeeded"]
    write_text(f"{folder}/data-327353/data.json", "[]")  # the cheap check does not detect this change
    assert "2 steps: 2 REUSE" in run()
