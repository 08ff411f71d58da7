"""``tradewind rehearse drill`` refuses invalid options; a drill of one fault runs through Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tradewind.rehearsal.local.processes import LocalStack

pytestmark = pytest.mark.slow

SECONDS = 1700


def drill(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tradewind.cli.main", "rehearse", "drill", *words]
    env = os.environ | {"HOME": str(folder / "home")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--faults", "flood"], "There is no fault 'flood'; there are host, slice, drain, driver"),
        (["--slices", "v4-17"], "There is no TPU slice type 'v4-17'"),
        (["--dag", "my_training"], "Give --dag and --dags together"),
        (["--dag", "my_training", "--dags", "nowhere"], "--dags nowhere: there is no such folder"),
        (["--conf", "[1]"], "'[1]' is not a JSON object"),
        (["--seed", "-1"], "'-1' is not a whole number that is not below zero"),
        (["--notice", "0"], "is not a number of seconds above zero"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(tmp_path: Path, words: list[str], says: str) -> None:
    done = drill(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tradewind: ") and says in done.stderr
    assert not (tmp_path / ".drill").exists()


def test_a_folder_that_holds_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    done = drill(tmp_path, "--dir", "mine")
    assert done.returncode == 2 and "this folder has other files" in done.stderr
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.airflow
@pytest.mark.timeout(1800)
def test_dag_with_slice_loss_makes_same_outputs_as_baseline(tmp_path: Path) -> None:
    try:
        done = drill(tmp_path, "--faults", "slice", "--count", "1", "--conf", '{"steps": 60}', "--json")
    finally:  # an interrupt of the test kills the command, which then stops none of its processes
        stack = LocalStack(tmp_path / ".drill")
        left = stack.processes()
        stack.stop(1.0)
    assert left == []
    report = json.loads(done.stdout or f'{{"problems": {json.dumps(done.stderr[-3000:])}}}')
    assert (report["problems"], done.returncode) == ([], 0)
    assert (report["dag"], report["state"], report["passed"]) == ("drill_training", "success", True)
    [fault] = report["faults"]
    assert fault["fault"] == "slice" and fault["recovery_s"] > 0
    assert (report["disturbed"]["preemptions"], report["disturbed"]["failures"]) == (1, 0)
    assert {one["step"].rpartition("-")[0] for one in report["outputs"]} == {"drill/data", "drill/train"}
    assert all(one["equal"] for one in report["outputs"])
