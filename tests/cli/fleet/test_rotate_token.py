"""``rotate-token``: what it lists, asks for and renews."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE
from tests.support.google import LocalGoogle

COMMAND = ("cluster", "rotate-token")
SECRET = f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN"
CLUSTERS = "  also: {zone: us-central2-b, generation: v4, bucket: bucket, min_workers: 0}\n"


@pytest.mark.slow
def test_rotation_names_sharing_clusters_asks_and_distributes(google: LocalGoogle, tmp_path: Path, run: Run) -> None:
    code, _, err = run("also")
    assert code == 2 and f"{SECRET} is the token of here, also." in err and "There is no terminal to confirm on" in err
    assert run("--dry-run")[0] == 0 and google.secrets.state(f"{SECRET}/versions/1") == "ENABLED"
    code, out, err = run("also", "here", "--yes")
    assert (code, out) == (0, ""), err
    assert err.count(f"Added {SECRET}/versions/2.") == 1 and f"Disabled {SECRET}/versions/1." in err
    cached = (tmp_path / "cache/tradewind/tokens" / PROJECT / "RAY_AUTH_TOKEN").read_text().strip()
    assert len(cached) == 64 and cached not in err


@pytest.mark.slow
def test_rotation_question_names_running_heads_and_their_jobs(google: LocalGoogle, run: Run) -> None:
    labels = {"ray-cluster-name": "also", "ray-node-type": "head", "ray-node-status": "up-to-date"}
    head = {"labels": labels, "status": "RUNNING", "networkInterfaces": [{"networkIP": "10.0.0.7"}]}
    google.compute.state.add(f"projects/{PROJECT}/zones/{ZONE}/instances/ray-also-head-1", head)
    code, _, err = run()
    assert code == 2 and "Cannot list the jobs of cluster" in err
    google.registry.tags.clear()
    code, _, err = run("--yes")
    assert code == 1 and "there is no image" in err
    assert google.secrets.state(f"{SECRET}/versions/1") == "ENABLED", "nothing was begun"


def test_a_cluster_file_that_is_stale_rotates_nothing(google: LocalGoogle, run: Run) -> None:
    file = Path(os.environ["TRADEWIND_FLEET"])
    file.write_text(file.read_text().replace("max_workers: 8", "max_workers: 9"))
    code, _, err = run("also", "--yes")
    assert code == 1 and "run 'tradewind cluster update-configs' first." in err
    assert google.secrets.state(f"{SECRET}/versions/1") == "ENABLED"
