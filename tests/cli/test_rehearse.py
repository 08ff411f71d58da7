"""``tradewind rehearse``: a background cloud that a shell controls, and that ``down`` removes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tradewind.rehearsal.local.processes import LocalStack

pytestmark = pytest.mark.slow

SECONDS = 300


def rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tradewind.cli.main", "rehearse", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up", "--slices", "v4-16=none"], "'v4-16=none' is not a number of slices: write TYPE=COUNT"),
        (["up", "--slices", "v4-17=1"], "--slices: There is no TPU slice type 'v4-17'"),
        (["up", "--slices", "v4-8=20", "v4-16=20"], "40 slices are more than one machine can rehearse"),
        (["up", "--airflow", "--dags", "nowhere"], "--dags nowhere: there is no such folder"),
        (["up", "--cluster", "here"], "--cluster names clusters of a fleet file: give --fleet too"),
        (["up", "--fleet", "nowhere.yaml"], "--fleet nowhere.yaml: there is no such file"),
        (["status", "--cluster", "here"], "no fleet is rehearsed in"),
        (["preempt", "slice-a", "--notice", "0"], "is not a number of seconds above zero"),
        (["stockout", "maybe"], "invalid choice: 'maybe'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(tmp_path, words, says):
    done = rehearse(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tradewind: ") and done.stderr.count("\n") == 1 and says in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["status"], ["preempt", "slice-a"], ["stockout", "on"]])
def test_without_a_rehearsal_it_says_so(tmp_path, words):
    done = rehearse(tmp_path, *words)
    assert done.returncode == 1
    assert "No rehearsal is up in" in done.stderr and "'rehearse up'" in done.stderr


def test_without_a_rehearsal_it_says_where_others_are(tmp_path):
    other = LocalStack(tmp_path / "other")
    other.start("it", ["sleep", "600"], dict(os.environ))
    (other.root / "control.json").touch()
    inner = LocalStack(other.root / "cluster")
    inner.start("it", ["sleep", "600"], dict(os.environ))
    (inner.root / "control.json").touch()
    try:
        said = rehearse(tmp_path, "status").stderr
    finally:
        other.stop(1.0)
    assert f"--dir {other.root}" in said and str(inner.root) not in said
    assert str(other.root) not in rehearse(tmp_path, "status").stderr


def test_down_without_a_rehearsal_is_fine(tmp_path):
    done = rehearse(tmp_path, "down")
    assert (done.returncode, "Nothing runs in" in done.stderr) == (0, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shell")
    yield folder
    LocalStack(folder / ".rehearsal").stop(1.0)


@pytest.mark.ray
def test_rehearsal_runs_in_background_until_taken_down(folder):
    stack = LocalStack(folder / ".rehearsal")
    up = rehearse(folder, "up", "--slices", "v4-8=1")
    assert up.returncode == 0, up.stderr
    assert "slice-a (v4-8, READY)" in up.stderr
    assert (stack.root / "control.json").stat().st_mode & 0o777 == 0o600

    script = up.stdout + "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    shell = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env = json.loads(subprocess.run(["sh", "-c", script], env=shell, capture_output=True, check=True).stdout)
    status = json.loads(rehearse(folder, "status", "--json").stdout)
    assert status["env"].items() <= env.items()
    assert json.loads(env["AIRFLOW_CONN_RAY_DEFAULT"])["host"] == env["RAY_ADDRESS"] == status["addresses"]["ray"]
    assert env["STORAGE_EMULATOR_HOST"] == status["env"]["TENSORSTORE_GCS_HTTP_URL"]

    again = rehearse(folder, "up")
    assert (again.returncode, again.stdout) == (0, up.stdout)
    assert "is up" in again.stderr

    assert rehearse(folder, "preempt", "slice-a").returncode == 0
    assert rehearse(folder, "stockout", "on").returncode == 0
    told = rehearse(folder, "status").stdout
    assert "PREEMPTED" in told and "us-central2-b is out of stock" in told
    unknown = rehearse(folder, "preempt", "slice-z")
    assert (unknown.returncode, "There is no slice 'slice-z'" in unknown.stderr) == (1, True)

    down = rehearse(folder, "down")
    assert down.returncode == 0 and "Stopped" in down.stderr
    assert stack.processes() == []
    assert not (stack.root / "control.json").exists()


@pytest.mark.ray
def test_failed_rehearsal_start_gives_reason_and_no_leftovers(folder):
    done = rehearse(folder, "up", "--dir", "late", "--timeout", "0.1")
    assert done.returncode == 1
    assert "is not up after 0.1 s" in done.stderr
    assert LocalStack(folder / "late").processes() == []
