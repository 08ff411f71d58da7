"""``rotate-token``: what it lists, asks for and renews."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lifecycle.fleet_environment import IMAGE_TAG, PROJECT, ZONE, update, write_key, write_world_fleet
from tests.support.google import LocalGoogle
from tradewind.cli.main import main
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

SECRET = f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN"
OLD = "the-old-token-0123456789"
MORE = "  also: {zone: us-central2-b, generation: v4, bucket: bucket, min_workers: 0}\n"


@pytest.fixture
def google(tmp_path: Path, cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGoogle]:
    """Set up two clusters that share a token and have no head."""
    server = LocalGoogle((PROJECT, ZONE))
    server.start()
    server.registry.tags.add(IMAGE_TAG)
    server.secrets.put(SECRET, OLD)
    for api in ("COMPUTE", "TPU", "SECRET_MANAGER", "ARTIFACT_REGISTRY"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", server.url)
    file = write_world_fleet(tmp_path / "infra", write_key(tmp_path), MORE)
    file.write_text(file.read_text().replace("bucket: my-bucket", "bucket: bucket"))
    update(file)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.stop()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["cluster", "rotate-token", *words])
    printed = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, printed.out, printed.err


@pytest.mark.slow
def test_rotation_names_sharing_clusters_asks_and_distributes(
    google: LocalGoogle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "also")
    assert code == 2 and f"{SECRET} is the token of here, also." in err and "There is no terminal to confirm on" in err
    assert run(capsys, "--dry-run")[0] == 0 and google.secrets.state(f"{SECRET}/versions/1") == "ENABLED"
    code, out, err = run(capsys, "also", "here", "--yes")
    assert (code, out) == (0, ""), err
    assert err.count(f"Added {SECRET}/versions/2.") == 1 and f"Disabled {SECRET}/versions/1." in err
    kept = (tmp_path / "cache/tradewind/tokens" / PROJECT / "RAY_AUTH_TOKEN").read_text().strip()
    assert len(kept) == 64 and kept not in err


@pytest.mark.slow
def test_rotation_question_names_running_heads_and_their_jobs(
    google: LocalGoogle, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"ray-cluster-name": "also", "ray-node-type": "head", "ray-node-status": "up-to-date"}
    head = {"labels": labels, "status": "RUNNING", "networkInterfaces": [{"networkIP": "10.0.0.7"}]}
    google.compute.state.add(f"projects/{PROJECT}/zones/{ZONE}/instances/ray-also-head-1", head)
    code, _, err = run(capsys)
    assert code == 2 and "Cannot list the jobs of cluster" in err
    google.registry.tags.clear()
    code, _, err = run(capsys, "--yes")
    assert code == 1 and "there is no image" in err
    assert google.secrets.state(f"{SECRET}/versions/1") == "ENABLED", "nothing was begun"


def test_a_cluster_file_that_is_stale_rotates_nothing(google: LocalGoogle, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(os.environ["TRADEWIND_FLEET"])
    file.write_text(file.read_text().replace("max_workers: 8", "max_workers: 9"))
    code, _, err = run(capsys, "also", "--yes")
    assert code == 1 and "run 'tradewind cluster update-configs' first." in err
    assert google.secrets.state(f"{SECRET}/versions/1") == "ENABLED"
