"""``add-worker``, ``remove-worker`` and ``resize``: what they ask for, refuse and do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE
from tests.support.google import LocalGoogle
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lock import ClusterLock, LockState

COMMAND = ("cluster",)
pytestmark = pytest.mark.slow


def test_a_slice_is_added_cut_and_removed(google: LocalGoogle, run: Run) -> None:
    file = Path(os.environ["TRADEWIND_FLEET"]).parent / "clusters" / "here.yaml"
    code, _, err = run("--config", str(file), "add-worker", "v4-16", "--capacity", "reserved", "--name", "hero")
    assert code == 0 and "Requested slice hero: v4-16, reserved." in err and "Slice hero is READY" in err
    (hosted,) = google.slices().values()
    script = hosted.node.metadata["startup-script"]
    assert "tradewind.fleet.workers.join" in script and "ray start --address=$RAY_HEAD_IP:6379" in script
    code, _, err = run("resize", "here", "hero", "v4-8", "v4-8")
    assert code == 2 and "There is no terminal to confirm on" in err and sorted(google.slices()) == ["hero"]
    code, _, err = run("resize", "here", "hero", "v4-8", "v4-8", "--yes")
    assert code == 0 and "Deleted slice hero." in err and sorted(google.slices()) == ["hero-1", "hero-2"]
    assert run("remove-worker", "here", "hero-1")[0] == 2
    code, _, err = run("remove-worker", "here", "hero-1", "--yes")
    assert code == 0 and "Slice hero-1 of here: v4-8, reserved, READY." in err and sorted(google.slices()) == ["hero-2"]


def test_repair_recreates_a_preempted_slice_unless_dry(google: LocalGoogle, run: Run) -> None:
    run("add-worker", "v4-8", "--slice", "hero", "--capacity", "best_effort")
    run("add-worker", "v4-8", "--slice", "lost", "--capacity", "preemptible")
    google.tpu[PROJECT, ZONE].service.lives.preempt(google.slices()["lost"], 0.0)
    first = google.slices()["lost"].node
    code, out, _ = run("repair", "--dry-run")
    assert code == 0 and "would delete and create again" in out and google.slices()["lost"].node is first
    marker = ClusterLock.of(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))
    with marker.take("stop", "deleting", holder="ada@laptop") as held:
        code, _, err = run("repair")
        assert code == 1 and "ada@laptop is at stop" in err and "Nothing was changed" in err
        held.finish()
    code, out, err = run("repair", "here")
    assert code == 0 and "Google says PREEMPTED → replaced" in out, err
    assert "hero" in google.slices() and google.slices()["lost"].node is not first


def test_slice_changes_are_refused_on_locked_or_partial_cluster(google: LocalGoogle, run: Run) -> None:
    run("add-worker", "here", "v4-8", "--slice", "hero")
    marker = ClusterLock.of(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))
    changes = (["remove-worker", "here", "hero"], ["resize", "here", "hero", "v4-8"], ["add-worker", "here", "v4-8"])
    with marker.take("stop", "deleting", holder="ada@laptop"):
        for words in changes:
            code, _, err = run(*words, *(["--yes"] if words[0] != "add-worker" else []))
            assert code == 1 and "ada@laptop is at stop" in err, words
    for words in changes:
        code, _, err = run(*words, *(["--yes"] if words[0] != "add-worker" else []))
        assert code == 1 and "stop by ada@laptop" in err and "Run 'stop' again" in err, words
    assert sorted(google.slices()) == ["hero"]
    marker.take("stop", "deleting", is_anew=True).finish()


def test_missing_quota_is_reported_and_releases_the_lock(google: LocalGoogle, run: Run) -> None:
    google.tpu[PROJECT, ZONE].service.state.supply.quota["v4-8"] = 0
    code, _, err = run("add-worker", "here", "v4-8", "--capacity", "preemptible")
    assert code == 1 and "quota" in err.lower() and not google.slices()
    marker = ClusterLock.of(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))
    found = marker.read()
    assert found is not None and found.marker.state is LockState.LEFT and not found.is_interrupted
    marker.take("start", "making the head").finish()


def test_slice_removal_is_refused_while_head_usage_is_unknown(google: LocalGoogle, run: Run) -> None:
    run("add-worker", "here", "v4-8", "--slice", "hero")
    labels = {"ray-cluster-name": "here", "ray-node-type": "head"}
    head = {"labels": labels, "status": "RUNNING", "networkInterfaces": [{"networkIP": "10.0.0.7"}]}
    google.compute.state.add(f"projects/{PROJECT}/zones/{ZONE}/instances/ray-here-head-1", head)
    for words in (["remove-worker", "here", "hero"], ["resize", "here", "hero", "v4-8"]):
        code, _, err = run(*words, "--yes")
        assert code == 1 and "Cannot check whether the slice is in use" in err and "hero" in google.slices()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["add-worker", "hear", "v4-8"], 2, "did you mean here?"),
        (["add-worker", "here", "v4-8", "v4-8"], 2, "add-worker takes [CLUSTER] TYPE, and 3 words were given"),
        (["add-worker", "v4-9"], 2, "There is no TPU slice type 'v4-9'"),
        (["add-worker", "here", "v6e-8"], 1, "has slices of v4 only, not v6e-8"),
        (["remove-worker", "here", "hero", "--yes"], 1, "Cluster here has no slice hero: there is none."),
    ],
)
def test_invalid_slice_change_is_refused(
    google: LocalGoogle, run: Run, words: list[str], code: int, sentence: str
) -> None:
    ended, _, err = run(*words)
    assert ended == code and sentence in err and not google.slices()
