"""``add-worker``, ``remove-worker`` and ``resize``: what they ask for, refuse and do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE, update, write_key, write_world_fleet
from tests.support.google import LocalGoogle
from tradewind.cli.main import main
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lock import ClusterLock, LockState
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

pytestmark = pytest.mark.slow


@pytest.fixture
def google(tmp_path: Path, cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGoogle]:
    """Set up a cluster without machines."""
    server = LocalGoogle((PROJECT, ZONE))
    server.start()
    for api in ("COMPUTE", "TPU"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", server.url)
    file = write_world_fleet(tmp_path / "infra", write_key(tmp_path))
    file.write_text(file.read_text().replace("bucket: my-bucket", "bucket: bucket"))
    update(file)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    yield server
    server.end_all()
    server.stop()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["cluster", *words])
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


def test_a_slice_is_added_cut_and_removed(google: LocalGoogle, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, "add-worker", "here", "v4-16", "--capacity", "reserved", "--slice", "hero")
    assert code == 0 and "Requested slice hero: v4-16, reserved." in err and "Slice hero is READY" in err
    (held,) = google.slices().values()
    script = held.node.metadata["startup-script"]
    assert "tradewind.fleet.workers.join" in script and "ray start --address=$RAY_HEAD_IP:6379" in script
    code, err = run(capsys, "resize", "here", "hero", "v4-8", "v4-8")
    assert code == 2 and "There is no terminal to confirm on" in err and sorted(google.slices()) == ["hero"]
    code, err = run(capsys, "resize", "here", "hero", "v4-8", "v4-8", "--yes")
    assert code == 0 and "Deleted slice hero." in err and sorted(google.slices()) == ["hero-1", "hero-2"]
    assert run(capsys, "remove-worker", "here", "hero-1")[0] == 2
    code, err = run(capsys, "remove-worker", "here", "hero-1", "--yes")
    assert code == 0 and "Slice hero-1 of here: v4-8, reserved, READY." in err and sorted(google.slices()) == ["hero-2"]


def test_slice_changes_are_refused_on_locked_or_partial_cluster(
    google: LocalGoogle, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "add-worker", "here", "v4-8", "--slice", "hero")
    marker = ClusterLock.of(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))
    changes = (["remove-worker", "here", "hero"], ["resize", "here", "hero", "v4-8"], ["add-worker", "here", "v4-8"])
    with marker.take("stop", "deleting", holder="ada@laptop"):
        for words in changes:
            code, err = run(capsys, *words, *(["--yes"] if words[0] != "add-worker" else []))
            assert code == 1 and "ada@laptop is at stop" in err, words
    for words in changes:
        code, err = run(capsys, *words, *(["--yes"] if words[0] != "add-worker" else []))
        assert code == 1 and "stop by ada@laptop" in err and "Run 'stop' again" in err, words
    assert sorted(google.slices()) == ["hero"]
    marker.take("stop", "deleting", is_anew=True).finish()


def test_an_act_that_failed_holds_up_nobody(google: LocalGoogle, capsys: pytest.CaptureFixture[str]) -> None:
    google.tpu[PROJECT, ZONE].service.state.supply.quota["v4-8"] = 0
    assert run(capsys, "add-worker", "here", "v4-8", "--capacity", "preemptible")[0] == 1
    marker = ClusterLock.of(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))
    found = marker.read()
    assert found is not None and found.marker.state is LockState.LEFT and not found.is_interrupted
    marker.take("start", "making the head").finish()


def test_slice_removal_is_refused_while_head_usage_is_unknown(
    google: LocalGoogle, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "add-worker", "here", "v4-8", "--slice", "hero")
    labels = {"ray-cluster-name": "here", "ray-node-type": "head"}
    head = {"labels": labels, "status": "RUNNING", "networkInterfaces": [{"networkIP": "10.0.0.7"}]}
    google.compute.state.add(f"projects/{PROJECT}/zones/{ZONE}/instances/ray-here-head-1", head)
    for words in (["remove-worker", "here", "hero"], ["resize", "here", "hero", "v4-8"]):
        code, err = run(capsys, *words, "--yes")
        assert code == 1 and "Cannot check whether the slice is in use" in err and "hero" in google.slices()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["add-worker", "hear", "v4-8"], 2, "did you mean here?"),
        (["add-worker", "here", "v4-9"], 2, "There is no TPU slice type 'v4-9'"),
        (["add-worker", "here", "v6e-8"], 1, "has slices of v4 only, not v6e-8"),
        (["remove-worker", "here", "hero", "--yes"], 1, "Cluster here has no slice hero: there is none."),
    ],
)
def test_what_makes_no_sense_is_refused(
    google: LocalGoogle, capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
) -> None:
    ended, err = run(capsys, *words)
    assert ended == code and sentence in err and not google.slices()


def test_what_there_is_no_quota_for_is_said_in_googles_words(
    google: LocalGoogle, capsys: pytest.CaptureFixture[str]
) -> None:
    state = google.tpu[PROJECT, ZONE].service.state
    state.supply.quota["v4-8"] = 0
    code, err = run(capsys, "add-worker", "here", "v4-8", "--capacity", "preemptible")
    assert code == 1 and "quota" in err.lower() and not google.slices()
