"""``tradewind rehearse``: refused options, a background cloud or fleet that a shell controls, and a drill."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.fleets import write_fleet
from tradewind.rehearsal.local.processes import LocalStack

COMMAND = ("rehearse",)
pytestmark = pytest.mark.slow

SECONDS = 1700
CLUSTERS = """\
    min_workers: 1
  there: {zone: us-east5-a, generation: v5p, bucket: my-bucket-5, min_workers: 1, connection: ray-there}
  beside: {zone: us-central2-b, generation: v4, bucket: my-bucket}
  large: {zone: us-west4-a, generation: v5e, bucket: my-bucket-4, min_workers: 30}
"""
FLEET = ("up", "--fleet", "fleet.yaml")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, which ends before those that it starts."""
    line = [sys.executable, "-m", "tradewind.cli.main", "rehearse", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up", "--slices", "v4-16=none"], "'v4-16=none' is not a number of slices: write TYPE=COUNT"),
        (["up", "--slices", "v4-17=1"], "--slices: There is no TPU slice type 'v4-17'"),
        (["up", "--slices", "v4-8=20", "v4-16=20"], "40 slices are more than one machine can rehearse"),
        (["up", "--airflow", "--dags", "nowhere"], "--dags nowhere: there is no such folder"),
        (["up", "--cluster", "here"], "--cluster names clusters of a fleet file: give --fleet too"),
        (["up", "--fleet", "nowhere.yaml"], "--fleet nowhere.yaml: there is no such file"),
        ([*FLEET, "--cluster", "thre"], "describes no cluster 'thre': did you mean there"),
        ([*FLEET, "--cluster", "here", "beside"], "Clusters here and beside are both in my-project, us-central2-b"),
        ([*FLEET, "--cluster", "large"], "30 slices are more than one machine can rehearse: give each cluster fewer"),
        ([*FLEET, "--slices", "v5p-8=1"], "--slices: cluster here has no v5p-8; it has v4-8"),
        ([*FLEET, "--zone", "us-east5-a"], "--zone and --fleet exclude each other"),
        (["status"], "No rehearsal is up in"),
        (["stockout", "on"], "'rehearse up'"),
        (["status", "--cluster", "here"], "no fleet is rehearsed in"),
        (["preempt", "slice-a"], "No rehearsal is up in"),
        (["preempt", "slice-a", "--notice", "0"], "is not a number of seconds above zero"),
        (["stockout", "maybe"], "invalid choice: 'maybe'"),
        (["drill", "--faults", "flood"], "There is no fault 'flood'; there are host, slice, drain, driver"),
        (["drill", "--slices", "v4-17"], "There is no TPU slice type 'v4-17'"),
        (["drill", "--dag", "my_training"], "Give --dag and --dags together"),
        (["drill", "--dag", "my_training", "--dags", "nowhere"], "--dags nowhere: there is no such folder"),
        (["drill", "--conf", "[1]"], "'[1]' is not a JSON object"),
        (["drill", "--conf", "[" * 100_000], "[[[...; 'tradewind rehearse drill --help'"),
        (["drill", "--seed", "-1"], "'-1' is not a whole number that is not below zero"),
        (["drill", "--notice", "0"], "is not a number of seconds above zero"),
        (["drill", "--dir", "infra"], "this folder has other files"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_impossible_rehearsal_is_refused_before_any_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_fleet(tmp_path, CLUSTERS, inside=False)
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "notes.txt").write_text("keep")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*words)
    assert code in (1, 2) and out == "" and says in err
    assert err.startswith("tradewind: ") and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_rehearsal_it_says_where_others_are(tmp_path):
    other = LocalStack(tmp_path / "other")
    other.start("it", ["sleep", "600"], dict(os.environ))
    (other.root / "control.json").touch()
    inner = LocalStack(other.root / "cluster")
    inner.start("it", ["sleep", "600"], dict(os.environ))
    (inner.root / "control.json").touch()
    try:
        err = command(tmp_path, "status").stderr
    finally:
        other.stop(1.0)
    assert f"--dir {other.root}" in err and str(inner.root) not in err
    assert str(other.root) not in command(tmp_path, "status").stderr
    done = command(tmp_path, "down")
    assert (done.returncode, "Nothing runs in" in done.stderr) == (0, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shell")
    yield folder
    LocalStack(folder / ".rehearsal").stop(1.0)


@pytest.mark.ray
def test_rehearsal_runs_in_background_until_taken_down(folder):
    stack = LocalStack(folder / ".rehearsal")
    up = command(folder, "up", "--slices", "v4-8=1")
    assert up.returncode == 0, up.stderr
    assert "slice-a (v4-8, READY)" in up.stderr
    assert (stack.root / "control.json").stat().st_mode & 0o777 == 0o600

    script = up.stdout + "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    shell = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env = json.loads(subprocess.run(["sh", "-c", script], env=shell, capture_output=True, check=True).stdout)
    status = json.loads(command(folder, "status", "--json").stdout)
    assert status["env"].items() <= env.items()
    assert json.loads(env["AIRFLOW_CONN_RAY_DEFAULT"])["host"] == env["RAY_ADDRESS"] == status["addresses"]["ray"]
    assert env["STORAGE_EMULATOR_HOST"] == status["env"]["TENSORSTORE_GCS_HTTP_URL"]

    again = command(folder, "up")
    assert (again.returncode, again.stdout) == (0, up.stdout)
    assert "already runs in" in again.stderr

    assert command(folder, "preempt", "slice-a").returncode == 0
    assert command(folder, "stockout", "on").returncode == 0
    shown = command(folder, "status").stdout
    assert "PREEMPTED" in shown and "us-central2-b is out of stock" in shown
    unknown = command(folder, "preempt", "slice-z")
    assert (unknown.returncode, "There is no slice 'slice-z'" in unknown.stderr) == (1, True)

    down = command(folder, "down")
    assert down.returncode == 0 and "Stopped" in down.stderr
    assert stack.processes() == []
    assert not (stack.root / "control.json").exists()


@pytest.mark.ray
def test_failed_rehearsal_start_gives_reason_and_no_leftovers(folder):
    done = command(folder, "up", "--dir", "late", "--timeout", "0.1")
    assert done.returncode == 1
    assert "is not up after 0.1 s" in done.stderr
    assert LocalStack(folder / "late").processes() == []


@pytest.fixture(scope="module")
def fleet_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, CLUSTERS, inside=False)
    yield folder
    LocalStack(folder / ".rehearsal").stop(1.0)


@pytest.mark.ray
@pytest.mark.long
def test_two_clusters_are_known_by_name_and_steered_apart(fleet_folder: Path) -> None:
    up = command(fleet_folder, "up", "--fleet", "fleet.yaml", "--cluster", "here", "there")
    assert up.returncode == 0, up.stderr
    assert "here-0 (v4-8, READY)" in up.stderr and "there-0 (v5p-8, READY)" in up.stderr
    for name in ("connections.json", "control.json", "fleet-plan.json"):
        assert (fleet_folder / ".rehearsal" / name).stat().st_mode & 0o777 == 0o600

    code = "import ray; ray.init(); print({n['Labels'].get('ray.io/tpu-slice-name') for n in ray.nodes()})"
    submit = f"tradewind jobs submit --cluster there -- python -c {shlex.quote(code)}"
    shell = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(fleet_folder)}
    job = subprocess.run(
        ["sh", "-c", f"{up.stdout}\n{submit}"], env=shell, cwd=fleet_folder, capture_output=True, text=True, check=False
    )
    assert job.returncode == 0 and "'there-0'" in job.stdout and "'here-0'" not in job.stdout, job.stdout + job.stderr

    several = command(fleet_folder, "preempt", "there-0")
    assert several.returncode == 2 and "name one of here, there with --cluster" in several.stderr
    unknown = command(fleet_folder, "stockout", "on", "--cluster", "beside")
    assert unknown.returncode == 2 and "--cluster beside is not rehearsed" in unknown.stderr
    assert command(fleet_folder, "preempt", "there-0", "--cluster", "there").returncode == 0
    found = json.loads(command(fleet_folder, "status", "--json").stdout)["clusters"]
    states = {name: [one["state"] for one in cluster["slices"]] for name, cluster in found.items()}
    assert states == {"here": ["READY"], "there": ["PREEMPTED"]}
    shown = command(fleet_folder, "status", "--cluster", "there").stdout
    assert "there-0" in shown and " here-0" not in shown

    assert command(fleet_folder, "down").returncode == 0
    assert LocalStack(fleet_folder / ".rehearsal").processes() == []


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.airflow
@pytest.mark.timeout(1800)
def test_dag_with_slice_loss_makes_same_outputs_as_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    try:
        done = command(tmp_path, "drill", "--faults", "slice", "--count", "1", "--conf", '{"steps": 60}', "--json")
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
