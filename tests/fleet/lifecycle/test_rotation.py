"""Token rotation changes a token once, wherever a kill interrupts it.

The old token stays valid as long as a cluster may need it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.fleets import REPOSITORY
from tests.fleet.lifecycle.filed_jobs import FiledJobs
from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE, update, write_key, write_world_fleet
from tests.fleet.lifecycle.rotations import jobs_of, rotation
from tests.support.google import LocalGoogle
from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.access.connect import cached_token, read_token
from tradewind.fleet.cloud.google_api import CloudDeniedError, CloudUnreachableError
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import WrongStateError
from tradewind.fleet.lifecycle.inventory import CloudZone
from tradewind.fleet.lifecycle.job_preservation import AbandonedJobsError, JobBackupError, JobRestoreError
from tradewind.fleet.lifecycle.rotation import OPERATION, FleetError, RotationPhase
from tradewind.fleet.lock import ClusterBusyError, ClusterLock, InterruptedOperationError, LockState
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest

pytestmark = pytest.mark.slow

SECRET = f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN"
OLD = "the-old-token-0123456789"
MORE = """\
  also: {zone: us-central2-b, generation: v4, bucket: bucket, min_workers: 0}
  other: {zone: us-central2-b, generation: v4, bucket: bucket, min_workers: 0, token_secret: OTHER}
"""
BACK = [["also-a-r-*", "also-b-r-*"], ["here-a-r-*", "here-b-r-*"]]


@dataclass
class World:
    """Test environment: two clusters that share a token, and a third with its own.

    Each cluster has one slice from the autoscaler.
    """

    file: Path
    google: LocalGoogle
    log: Path
    told: list[str] = field(default_factory=list)

    @property
    def fleet(self) -> Fleet:
        return load_fleet(self.file)

    def versions(self) -> list[str]:
        listed = self.google.secrets.answer(HttpRequest("GET", f"/v1/{SECRET}/versions", {}, {}, b""))
        count = len(json.loads(listed.body)["versions"])
        return [self.google.secrets.state(f"{SECRET}/versions/{number}") for number in range(1, count + 1)]

    def markers(self) -> set[tuple[str, LockState] | None]:
        found = [ClusterLock.of(self.fleet.cluster(name)).read() for name in ("here", "also")]
        return {one and (one.marker.operation, one.marker.state) for one in found}

    def launches(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def statuses(self) -> dict[str, str]:
        return {name: dict(held.node.labels)["ray-node-status"] for name, held in self.google.slices().items()}

    def jobs(self, cluster: str) -> FiledJobs:
        return jobs_of(self.file, self.fleet.cluster(cluster))

    def endings(self) -> list[list[str]]:
        """Return the jobs of each cluster that shares the token, with a star for the rotation's ID."""
        found = []
        for name in ("also", "here"):
            marker = ClusterLock.of(self.fleet.cluster(name)).read()
            run = marker.marker.run[:8] if marker else "-"
            found.append(sorted(job.replace(run, "*") for job in self.jobs(name).running))
        return found

    def put_head(self, cluster: str, name: str = "") -> None:
        labels = {"ray-cluster-name": cluster, "ray-node-type": "head", "ray-node-status": "up-to-date"}
        path = f"projects/{PROJECT}/zones/{ZONE}/instances/{name or f'ray-{cluster}-head-1'}"
        state = self.google.compute.state
        with state.changed:
            state.add(path, {"labels": {**labels, "tradewind-config": "c0ffee"}, "status": "RUNNING"})


@pytest.fixture
def world(tmp_path: Path, cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    file = write_world_fleet(tmp_path / "infra", write_key(tmp_path), MORE)
    file.write_text(file.read_text().replace("bucket: my-bucket", "bucket: bucket"))
    update(file)
    google = LocalGoogle((PROJECT, ZONE))
    google.start()
    for api in ("COMPUTE", "TPU", "SECRET_MANAGER"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
    monkeypatch.setenv("RAYLIKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    google.secrets.put(SECRET, OLD)
    world = World(file, google, tmp_path / "log")
    tpu = TpuApi(PROJECT, ZONE, endpoint=google.url, poll_s=0.02)
    for name, kind in (("here", "worker"), ("also", "worker"), ("other", "worker"), ("by-hand", "manual")):
        labels = {"ray-cluster-name": name.replace("by-hand", "here"), "ray-node-type": kind}
        body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
        tpu.create(f"{name}-1", {**body, "labels": {**labels, "ray-node-status": "up-to-date"}})
    for name in ("here", "also", "other"):
        world.put_head(name)
        world.jobs(name).file.write_text(f"{name}-a {name}-b")
    yield world
    for name in ("here", "also"):
        ClusterLock.of(world.fleet.cluster(name)).take("stop", "over", is_anew=True).finish()
    google.end_all()
    google.stop()


def check_rotated(world: World, back: list[list[str]] = BACK) -> None:
    assert world.versions() == ["DISABLED", "ENABLED"], "one version was added, and the old one is switched off"
    assert world.markers() == {(OPERATION, LockState.DONE)}
    again, kept = "uninitialized", "up-to-date"
    assert world.statuses() == {"here-1": again, "also-1": again, "other-1": kept, "by-hand-1": kept}
    assert cached_token(world.fleet.cluster("here")) not in (None, OLD)
    assert world.endings() == back and world.jobs("other").running == ["other-a", "other-b"]
    assert not [*(world.file.parent / "kept").rglob("jobs.json")], "nothing of them is left"


def test_rotation_restarts_sharing_clusters_then_disables_old(world: World) -> None:
    asked: list[str] = []

    def look(call: HttpRequest) -> None:
        if call.path.endswith(":disable"):
            asked.append("disabled")

    world.google.seen = look
    rotation(world.file, world.told.append, lambda cluster: asked.append(cluster.name) or False).run()
    check_rotated(world)
    assert asked == ["also", "here", "disabled"] and world.launches() == 2
    assert OLD not in " ".join(world.told)


KILLED = [
    (RotationPhase.BEGIN, 1), (RotationPhase.KEEP, 1), (RotationPhase.ADD, 1), (RotationPhase.RESTART, 1),
    (RotationPhase.RESTART, 12), (RotationPhase.RENEW, 1), (RotationPhase.ANSWER, 1), (RotationPhase.DISABLE, 2),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "number"), KILLED)
def test_rotation_killed_in_any_phase_resumes_same_version(world: World, phase: RotationPhase, number: int) -> None:
    marker, seen, lock = ClusterLock.of(world.fleet.cluster("here")), 0, threading.Lock()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.lifecycle.rotations", str(world.file)],
        cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def look(call: HttpRequest) -> None:
        nonlocal seen
        found = marker.read()
        with lock:
            seen += found is not None and found.marker.phase == phase
            if seen == number:
                os.kill(process.pid, signal.SIGKILL)

    world.google.seen = look
    assert process.wait() == -signal.SIGKILL
    world.google.seen = lambda call: None
    assert world.markers() <= {(OPERATION, LockState.HELD), None}
    rotation(world.file, world.told.append, is_later=True).run()
    check_rotated(world)


def test_old_token_stays_until_all_clusters_accept_the_new_one(world: World) -> None:
    with pytest.raises(FleetError, match="Cluster here does not answer with the new token after 600 s"):
        rotation(world.file, world.told.append, lambda cluster: cluster.name == "here").run()
    assert world.versions() == ["ENABLED", "ENABLED"] and world.markers() == {(OPERATION, LockState.LEFT)}
    with pytest.raises(InterruptedOperationError, match="Run 'rotate-token' again"):
        ClusterLock.of(world.fleet.cluster("also")).take("restart", "restarting Ray")
    rotation(world.file, world.told.append).run()
    check_rotated(world)
    assert world.launches() == 2


def test_rotation_refused_while_a_sharing_cluster_is_locked(world: World) -> None:
    with ClusterLock.of(world.fleet.cluster("here")).take("start", "making the head", holder="ada@laptop") as held:
        with pytest.raises(ClusterBusyError, match="ada@laptop is at start"):
            rotation(world.file, world.told.append).run()
        held.finish()
    assert world.versions() == ["ENABLED"] and world.launches() == 0
    assert world.markers() == {(OPERATION, LockState.DONE), ("start", LockState.DONE)}, "nothing is left half-done"


def test_denied_token_version_leaves_nothing_half_done(world: World) -> None:
    world.google.secrets.refused.add("secretmanager.versions.add")
    with pytest.raises(CloudDeniedError, match="'secretmanager.versions.add' denied"):
        rotation(world.file, world.told.append).run()
    assert world.versions() == ["ENABLED"] and world.markers() == {(OPERATION, LockState.DONE)}
    world.google.secrets.refused.clear()
    rotation(world.file, world.told.append).run()
    check_rotated(world)


@dataclass
class LateVersion:
    """Secret Manager does not answer the first request for a version, but performs it some requests later."""

    world: World
    path: str
    """The end of that request's path."""
    number: int
    _held_back: HttpRequest | None = None

    def __post_init__(self) -> None:
        self._answer = self.world.google.secrets.answer
        self.world.google.secrets.answer = self.answer  # type: ignore[method-assign]

    def answer(self, call: HttpRequest) -> Answer:
        if call.path.endswith(":addVersion") and self._held_back is None:
            self._held_back = call
            return self.world.google.secrets.refusal("add", 503, "try again")
        if self._held_back is not None and call.path.endswith(self.path):
            self.number -= 1
            if self.number == 0:
                self._answer(self._held_back)
        return self._answer(call)


def test_token_version_without_response_is_awaited_not_readded(world: World) -> None:
    LateVersion(world, "/versions", 4)
    with pytest.raises(CloudUnreachableError, match="To add a version"):
        rotation(world.file, world.told.append).run()
    assert world.versions() == ["ENABLED"] and world.markers() == {(OPERATION, LockState.LEFT)}
    rotation(world.file, world.told.append).run()
    check_rotated(world)
    assert "A version was requested without a response. Waiting for it, 120 s at most." in world.told


def test_late_token_version_is_not_what_hosts_fetch(world: World) -> None:
    LateVersion(world, ":access", 1)
    for _ in range(2):
        with suppress(CloudUnreachableError):
            rotation(world.file, world.told.append).run()
    assert world.versions() == ["DISABLED", "DISABLED", "DISABLED", "ENABLED"]
    here = world.fleet.cluster("here")
    assert read_token(here, "latest") == cached_token(here), "the one that all clusters were started with"
    assert world.markers() == {(OPERATION, LockState.DONE)} and world.launches() == 2


def test_rotation_skips_headless_cluster_until_its_next_start(world: World) -> None:
    del world.google.compute.state.resources[f"projects/{PROJECT}/zones/{ZONE}/instances/ray-also-head-1"]
    world.jobs("also").end_all()
    rotation(world.file, world.told.append).run()
    check_rotated(world, [[], BACK[1]])
    assert world.launches() == 1
    assert "Cluster also has no head: it gets the new token when it is started." in world.told


def test_with_two_heads_nothing_is_begun(world: World) -> None:
    world.put_head("also", "another")
    with pytest.raises(WrongStateError, match="Cluster also has more than one head"):
        rotation(world.file, world.told.append).run()
    assert world.versions() == ["ENABLED"] and (OPERATION, LockState.DONE) not in world.markers()


# ---- users' jobs


def test_failed_job_backup_aborts_rotation_before_any_change(world: World) -> None:
    silent = world.jobs("here")
    silent.is_silent = True
    with pytest.raises(JobBackupError, match="'tradewind cluster rotate-token here --no-preserve-jobs'"):
        rotation(world.file, world.told.append, jobs={"here": silent}).run()
    assert world.versions() == ["ENABLED"] and world.launches() == 0
    assert world.markers() == {(OPERATION, LockState.DONE)}, "nothing is left half-done"
    assert not [*(world.file.parent / "kept").rglob("jobs.json")], "what of others was kept is gone"
    rotation(world.file, world.told.append).run()
    check_rotated(world)


def test_without_preserving_they_end(world: World) -> None:
    assert rotation(world.file, world.told.append, is_to_keep=False).run() == []
    assert world.versions() == ["DISABLED", "ENABLED"] and world.endings() == [[], []]


def test_failed_job_restore_blocks_no_token_swap_or_other_jobs(
    world: World,
) -> None:
    late = world.jobs("also")
    bring_back = late.restore

    def silent(*arguments: Any) -> Any:
        late.is_silent = True
        return bring_back(*arguments)

    late.restore = silent  # type: ignore[method-assign]
    with pytest.raises(JobRestoreError, match="Cluster also: its head does not accept its jobs yet"):
        rotation(world.file, world.told.append, jobs={"also": late}).run()
    assert world.versions() == ["DISABLED", "ENABLED"] and world.markers() == {(OPERATION, LockState.LEFT)}
    assert world.endings() == [[], BACK[1]]
    rotation(world.file, world.told.append).run()
    check_rotated(world)
    assert world.launches() == 2


def test_rotation_resumed_elsewhere_reports_jobs_left_behind(world: World) -> None:
    with pytest.raises(FleetError):
        rotation(world.file, world.told.append, lambda cluster: cluster.name == "here").run()
    cluster = world.fleet.cluster("here")
    elsewhere = FiledJobs(cluster, print, world.file.parent / "elsewhere", world.jobs("here").file)
    with pytest.raises(AbandonedJobsError, match=r"leaves 2 jobs .* \(here-a, here-b\) behind"):
        rotation(world.file, world.told.append, jobs={"here": elsewhere}).run()
    assert world.versions() == ["DISABLED", "ENABLED"] and world.endings() == [BACK[0], []]
    rotation(world.file, world.told.append).run()
    check_rotated(world)


def test_jobs_that_came_after_the_first_look_come_back_too(world: World) -> None:
    def look(call: HttpRequest) -> None:
        if call.path.endswith(":addVersion"):
            world.jobs("here").file.write_text("here-a here-b here-c")

    world.google.seen = look
    rotation(world.file, world.told.append).run()
    assert world.endings()[1] == ["here-a-r-*", "here-b-r-*", "here-c-r-*"]


def test_head_lost_before_job_restore_is_recreated(world: World) -> None:
    with pytest.raises(FleetError):
        rotation(world.file, world.told.append, lambda cluster: cluster.name == "here").run()
    zone = CloudZone(PROJECT, ZONE)
    zone.delete_machines(zone.inventory().of("here").machines)
    rotation(world.file, world.told.append).run()
    check_rotated(world)
    assert len(zone.inventory().of("here").heads) == 1 and world.launches() == 3
