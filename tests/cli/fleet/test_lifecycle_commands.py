"""Cluster lifecycle commands: what they list, ask for and refuse before they change anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

from tests.cli.conftest import Run
from tests.fleet.lifecycle.fleet_environment import IMAGE_TAG, PROJECT, ZONE, update, write_key, write_local_fleet
from tests.support.google import LocalGoogle
from tradewind.cli.main import parser
from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import config_hash
from tradewind.fleet.lifecycle.job_preservation import BackupNote
from tradewind.fleet.lock import ClusterLock
from tradewind.ray_jobs.job_backup import JobBackup, SavedJob
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage, RefusedError

COMMAND = ("cluster",)
INSTANCES = f"projects/{PROJECT}/zones/{ZONE}/instances"


@pytest.fixture(scope="module")
def google() -> Iterator[LocalGoogle]:
    """Create a head and slices of ``here``, and a slice of a cluster without a file."""
    server = LocalGoogle((PROJECT, ZONE))
    server.start()
    labels = {"ray-cluster-name": "here", "ray-node-type": "head", "ray-node-status": "up-to-date"}
    head = {"labels": labels, "status": "RUNNING", "networkInterfaces": [{"networkIP": "10.0.0.7"}]}
    server.compute.state.add(f"{INSTANCES}/ray-here-head-1-compute", head)
    tpus = TpuApi(PROJECT, ZONE, endpoint=server.url, poll_s=0.02)
    for name, cluster, is_reserved in (("one", "here", False), ("two", "here", True), ("lost", "gone", False)):
        tpus.create(
            name,
            {
                "acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base",
                "labels": {"ray-cluster-name": cluster, "ray-node-type": "worker", "tradewind-config": "earlier"},
                "schedulingConfig": {"reserved": is_reserved},
            },
        )  # fmt: skip
    yield server
    server.end_all()
    server.stop()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    return write_local_fleet(folder / "infra", write_key(folder))


@pytest.fixture(autouse=True)
def here(file: Path, google: LocalGoogle, cloud: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    google.registry.tags.add(IMAGE_TAG)
    for api in ("COMPUTE", "TPU", "ARTIFACT_REGISTRY"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)


@pytest.fixture
def marker(cloud: LocalCloudStorage, file: Path) -> Iterator[ClusterLock]:
    """Return the cluster lock of ``here`` in its bucket."""
    with suppress(RefusedError):
        cloud.buckets.create("my-bucket")
    yield (marker := ClusterLock.of(load_fleet(file).cluster()))
    marker.take("stop", "over", is_anew=True).finish()


def test_unknown_cluster_suggests_nearest_name(run: Run) -> None:
    for command in ("list", "start", "stop", "restart", "apply", "status", "stop-cluster"):
        code, out, err = run(command, "hear")
        assert (code, out) == (2, "") and "describes no cluster 'hear': did you mean here?" in err


@pytest.mark.slow
def test_stop_lists_resources_and_asks(google: LocalGoogle, run: Run) -> None:
    code, out, err = run("stop", "--delete-state")
    assert code == 2 and "There is no terminal to confirm on: give --yes to go ahead. Nothing was done." in err
    assert [line.split() for line in out.splitlines()] == [
        ["delete", "head", "ray-here-head-1-compute", "RUNNING"],
        ["delete", "v4-8", "one", "READY"],
        ["keep", "v4-8", "two", "READY,", "reserved"],
        ["delete", "disk", "ray-here-state", "Ray's", "state", "and", "the", "logs", "of", "jobs"],
    ]
    assert "--include-reserved deletes them too." in err and "Cannot list the jobs of cluster" in err
    assert run("stop", "--dry-run", "--yes")[0] == 0
    assert sorted(google.slices()) == ["lost", "one", "two"]


@pytest.mark.slow
def test_status_shows_running_outdated_and_unowned_resources(file: Path, run: Run) -> None:
    code, out, err = run("status")
    assert code == 0
    title, head, *rows, counts = out.splitlines()
    assert title == f"here ({PROJECT}, {ZONE}): its head was set up"
    assert head.split()[:4] == ["KIND", "NAME", "STATE", "AGE"]
    assert [row.split()[:3] for row in rows] == [
        ["head", "ray-here-head-1-compute", "RUNNING"],
        ["v4-8", "one", "READY"],
        ["v4-8", "two", "READY"],
    ]
    assert rows[2].endswith("reserved, of an earlier file") and counts == "1 head RUNNING, 2 v4-8 READY"
    assert "The head does not answer: ray-here-head-1-compute has written down no SSH host keys" in err
    assert f"Cluster gone is not in {file}, but has resources in {PROJECT}, {ZONE}: lost. 'tradewind" in err
    found = run("status", "--json").json
    assert [node["name"] for node in found["clusters"][0]["nodes"]] == ["ray-here-head-1-compute", "one", "two"]
    assert found["orphans"] == [{"cluster": "gone", "project": PROJECT, "zone": ZONE, "names": ["lost"]}]


def test_status_names_permission_missing_for_zone(google: LocalGoogle, run: Run) -> None:
    google.compute.state.faults.denied.add("compute.instances.list")
    try:
        code, _, err = run("status")
    finally:
        google.compute.state.faults.denied.clear()
    assert code == 1 and "Required 'compute.instances.list' permission for 'projects/my-project'" in err


@pytest.fixture
def stale(google: LocalGoogle, file: Path) -> Iterator[None]:
    """Change the fleet file; at the end restore it, the cluster files and all permissions."""
    text = file.read_text()
    file.write_text(text.replace("max_workers: 8", "max_workers: 9"))
    yield
    google.compute.state.faults.denied.clear()
    file.write_text(text)
    update(file)


@pytest.mark.slow
@pytest.mark.usefixtures("stale")
def test_stale_cluster_file_prevents_start(run: Run) -> None:
    code, _, err = run("start")
    assert code == 1 and "here.yaml does not match" in err and "run 'tradewind cluster update-configs' first." in err


@pytest.mark.slow
@pytest.mark.usefixtures("stale")
def test_cluster_with_nodes_is_neither_renamed_nor_forgotten(google: LocalGoogle, file: Path, run: Run) -> None:
    old = file.parent / "clusters" / "gone.yaml"
    old.write_text(old.with_name("here.yaml").read_text().replace('cluster_name: "here"', 'cluster_name: "gone"'))
    advice = f"'tradewind cluster stop gone --project {PROJECT} --zone {ZONE}'"
    code, _, err = run("update-configs")
    assert code == 1 and f"but has 1 nodes in {PROJECT}, {ZONE}: {advice} deletes them." in err and old.exists()
    google.compute.state.faults.denied.add("compute.instances.list")
    code, _, err = run("update-configs")
    google.compute.state.faults.denied.clear()
    assert code == 1 and "its nodes cannot be listed" in err and old.exists()
    assert run("update-configs", "--check")[0] == 1, "the files are as they were"
    assert run("stop", "here", "--project", PROJECT, "--zone", ZONE)[0] == 2
    code, out, _ = run("stop", "gone", "--project", PROJECT, "--zone", ZONE, "--yes")
    assert (code, out.split()[:3]) == (0, ["delete", "v4-8", "lost"]) and sorted(google.slices()) == ["one", "two"]
    assert run("update-configs")[0] == 0 and not old.exists()


@pytest.mark.slow
def test_missing_image_prevents_start(google: LocalGoogle, run: Run) -> None:
    google.registry.tags.clear()
    for command in ("start", "restart"):
        code, _, err = run(command, "--yes" if command == "restart" else "--no-wait")
        assert code == 1 and "there is no image us-central2-docker.pkg.dev/my-project/tradewind/tradewind_cl" in err
    google.registry.denied.add("artifactregistry.tags.get")
    try:
        code, _, err = run("start", "--dry-run")
    finally:
        google.registry.denied.clear()
    assert code == 0 and "'start' would run: ray up" in err
    assert "Cannot check the image of here" in err and "artifactregistry.tags.get" in err


@pytest.mark.slow
def test_a_token_that_no_host_can_fetch_starts_nothing(
    google: LocalGoogle, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("TRADEWIND_SECRET_MANAGER_ENDPOINT", google.url)
    secret = f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN"
    for mend in ("init-token", "set-token --rotate"):
        for words in (["start", "--no-wait"], ["restart", "--yes"]):
            code, _, err = run(*words)
            assert code == 1 and "secret RAY_AUTH_TOKEN of project my-project, the token, " in err
            assert f"make one with 'tradewind cluster {mend} here'. Nothing was started." in err
        google.secrets.put(secret, "a-token-of-more-than-sixteen")
        google.secrets.disabled.add(f"{secret}/versions/1")


@pytest.mark.slow
def test_apply_dry_run_prints_json_and_changes_nothing(google: LocalGoogle, file: Path, run: Run) -> None:
    head = google.compute.state.resources[f"{INSTANCES}/ray-here-head-1-compute"]
    labels = dict(head["labels"])
    expected = {"cluster": "here", "is_current": False, "may_apply": True, "would_relaunch": []}
    code, out, err = run("apply", "--dry-run", "--json")
    assert (code, json.loads(out)) == (0, expected) and "can follow its file while it runs." in err
    head["labels"] = {**labels, "ray-launch-config": "of-another-file", "ray-user-node-type": "head_default"}
    code, out, err = run("apply", "--dry-run", "--json")
    expected |= {"may_apply": False, "would_relaunch": ["ray-here-head-1-compute"]}
    assert (code, json.loads(out)) == (1, expected) and "Ray would relaunch ray-here-head-1-compute" in err
    head["labels"] = {**labels, "tradewind-config": config_hash(load_fleet(file).cluster(), load_fleet(file))}
    code, out, _ = run("apply", "--dry-run", "--json")
    assert (code, json.loads(out)) == (0, {**expected, "is_current": True, "would_relaunch": []})
    head["labels"] = labels
    code, _, err = run("apply", "--json")
    assert code == 2 and "--json needs --dry-run" in err


@pytest.mark.parametrize(
    ("words", "is_preserved"),
    [
        ("", True), ("--preserve-jobs", True), ("--preserve-jobs=1", True), ("--preserve-jobs 0", False),
        ("--preserve-jobs=0", False), ("--no-preserve-jobs --abandon-kept-jobs", False),
    ],
)  # fmt: skip
def test_jobs_are_preserved_unless_an_option_says_otherwise(words: str, is_preserved: bool) -> None:
    for command in ("restart", "restart-cluster", "rotate-token"):
        line = ["cluster", command, *words.split()]
        for given in (parser().parse_args(line), get_parser().parse_args(["tradewind", *line])):
            assert given.preserve_jobs is is_preserved
            assert given.abandon_kept_jobs is ("--abandon-kept-jobs" in words)


@pytest.mark.slow
def test_stop_and_status_report_backup_of_interrupted_restart(marker: ClusterLock, run: Run) -> None:
    note = BackupNote("ada@laptop", "laptop", "/home/ada/kept", ("train",))
    with marker.take("restart", "keeping jobs", holder="ada@laptop") as lock:
        lock.advance("restarting Ray", **note.to_details())
    for code, command in ((2, "stop"), (0, "status")):
        ended, _, err = run(command)
        assert ended == code and "Cluster here: restart by ada@laptop since" in err
        assert "was interrupted in phase restarting Ray. Not restored yet: 1 job that ada@laptop backed up on l" in err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stop", "status"])
def test_local_backup_is_deleted_after_restart_ended_elsewhere(
    command: str,
    marker: ClusterLock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with marker.take("restart", "keeping jobs", holder="bob@desk") as lock:
        backup = JobBackup(tmp_path / "tradewind" / "jobs" / PROJECT / "here" / lock.marker.run[:8])
        backup.add([SavedJob("train", "RUNNING", "true")], {})
        lock.advance("bringing jobs back", **BackupNote("bob@desk", "desk", "/home/bob/kept", ()).to_details())
        assert "Deleted" not in run(command)[2] and backup.exists, "it goes on"
        lock.finish()
    assert f"Deleted {backup.folder}: restart of here was finished by bob@desk." in run(command)[2]
    assert not backup.folder.exists()


@pytest.mark.slow
def test_lock_without_backup_jobs_blocks_restart_but_not_stop(
    marker: ClusterLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with marker.take("restart", "keeping jobs", holder="ada@laptop") as lock:
        lock.advance("bringing jobs back", kept_jobs="all of them")
    says = "Cluster here: its lock does not say which unmanaged jobs were backed up"
    code, _, err = run("restart", "--yes")
    assert code == 1 and says in err and "ray up" not in err
    code, out, err = run("stop")
    assert code == 2 and says in err and "There is no terminal to confirm on" in err and "delete" in out


def test_preserve_jobs_needs_yes_or_no(run: Run) -> None:
    code, _, err = run("restart", "--preserve-jobs=perhaps")
    assert code == 2 and "'perhaps' is neither 1 nor 0" in err


@pytest.mark.slow
def test_restore_needs_one_or_a_named_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, _, err = run("restore-jobs")
    assert code == 1 and f"There is no backup of jobs in {tmp_path}/tradewind/jobs/{PROJECT}/here." in err
    for name in ("a1", "b2"):
        JobBackup(tmp_path / "tradewind" / "jobs" / PROJECT / "here" / name).add([], {})
    code, _, err = run("restore-jobs")
    assert code == 2 and "choose one with --backup: a1, b2." in err
    assert "There is no backup c3 in" in run("restore-jobs", "--backup", "c3")[2]
    assert run("restore-jobs", "--backup", "a1")[0] == 0, "none of its jobs is missing"
    assert run("restore-jobs")[0] == 0 and "There is no backup" in run("restore-jobs")[2]


@pytest.mark.slow
def test_skipped_jobs_block_restart_before_ray_is_touched(
    marker: ClusterLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, _, err = run("restart", "--yes")
    assert code == 1 and "its jobs cannot be backed up: " in err
    assert "Ray was not touched. If its jobs may end, run 'tradewind cluster restart here --no-preserve-jobs'." in err
    assert "ray up" not in err
    assert run("backup-jobs")[0] == 1
