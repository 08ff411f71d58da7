"""``tradewind rehearse up --fleet``: every command in that shell knows the fleet file's clusters."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.rehearsal.local.processes import LocalStack

SECONDS = 400
MORE = """\
    min_workers: 1
  there: {zone: us-east5-a, generation: v5p, bucket: my-bucket-5, min_workers: 1, connection: ray-there}
  beside: {zone: us-central2-b, generation: v4, bucket: my-bucket}
  large: {zone: us-west4-a, generation: v5e, bucket: my-bucket-4, min_workers: 30}
"""


def rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tradewind.cli.main", "rehearse", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, MORE, inside=False)
    yield folder
    LocalStack(folder / ".rehearsal").stop(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cluster", "thre"], "describes no cluster 'thre': did you mean there"),
        (["--cluster", "here", "beside"], "Clusters here and beside are both in my-project, us-central2-b"),
        (["--cluster", "large"], "30 slices are more than one machine can rehearse: give each cluster fewer"),
        (["--slices", "v5p-8=1"], "--slices: cluster here has no v5p-8; it has v4-8"),
        (["--zone", "us-east5-a"], "--zone and --fleet exclude each other"),
    ],
)
def test_what_one_machine_cannot_rehearse_is_refused(folder: Path, words: list[str], says: str) -> None:
    done = rehearse(folder, "up", "--fleet", "fleet.yaml", *words)
    assert done.returncode in (1, 2) and done.stdout == "" and says in done.stderr
    assert done.stderr.count("\n") == 1 and not (folder / ".rehearsal").exists()


@pytest.mark.ray
@pytest.mark.long
def test_two_clusters_are_known_by_their_names_and_steered_apart(folder: Path) -> None:
    up = rehearse(folder, "up", "--fleet", "fleet.yaml", "--cluster", "here", "there")
    assert up.returncode == 0, up.stderr
    assert "here-0 (v4-8, READY)" in up.stderr and "there-0 (v5p-8, READY)" in up.stderr
    for name in ("connections.json", "control.json", "fleet-plan.json"):
        assert (folder / ".rehearsal" / name).stat().st_mode & 0o777 == 0o600

    code = "import ray; ray.init(); print({n['Labels'].get('ray.io/tpu-slice-name') for n in ray.nodes()})"
    command = f"tradewind jobs submit --cluster there -- python -c {shlex.quote(code)}"
    shell = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    job = subprocess.run(
        ["sh", "-c", f"{up.stdout}\n{command}"], env=shell, cwd=folder, capture_output=True, text=True, check=False
    )
    assert job.returncode == 0 and "'there-0'" in job.stdout and "'here-0'" not in job.stdout, job.stdout + job.stderr

    several = rehearse(folder, "preempt", "there-0")
    assert several.returncode == 2 and "name one of here, there with --cluster" in several.stderr
    unknown = rehearse(folder, "stockout", "on", "--cluster", "beside")
    assert unknown.returncode == 2 and "--cluster beside is not rehearsed" in unknown.stderr
    assert rehearse(folder, "preempt", "there-0", "--cluster", "there").returncode == 0
    found = json.loads(rehearse(folder, "status", "--json").stdout)["clusters"]
    states = {name: [one["state"] for one in cluster["slices"]] for name, cluster in found.items()}
    assert states == {"here": ["READY"], "there": ["PREEMPTED"]}
    told = rehearse(folder, "status", "--cluster", "there").stdout
    assert "there-0" in told and " here-0" not in told

    assert rehearse(folder, "down").returncode == 0
    assert LocalStack(folder / ".rehearsal").processes() == []
