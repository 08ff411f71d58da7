"""Token rotation changes a token once, wherever a kill interrupts it; the old one is valid while it is needed."""

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

from tests.fleet.clouds import PROJECT, ZONE, ZONE_PATH, add_head, running_google
from tests.fleet.fleets import REPOSITORY
from tests.fleet.lifecycle.filed_jobs import FiledJobs
from tests.fleet.lifecycle.fleet_environment import create_slice, write_key, write_local_fleet
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
class Environment:
    """Two clusters that share a token, and a third with its own; each has one slice from the autoscaler."""

    file: Path
    google: LocalGoogle
    log: Path
    messages: list[str] = field(default_factory=list)

    @property
    def fleet(self) -> Fleet:
        return load_fleet(self.file)

    def rotate(self, *refusing: str, **options: Any) -> list[Any]:
        """Rotate the token; the clusters ``refusing`` never accept the new one."""
        return rotation(self.file, self.messages.append, lambda cluster: cluster.name in refusing, **options).run()

    def versions(self) -> list[str]:
        listed = self.google.secrets.answer(HttpRequest("GET", f"/v1/{SECRET}/versions", {}, {}, b""))
        count = len(json.loads(listed.body)["versions"])
        return [self.google.secrets.state(f"{SECRET}/versions/{number}") for number in range(1, count + 1)]

    def lock(self, cluster: str) -> ClusterLock:
        return ClusterLock.of(self.fleet.cluster(cluster))

    def last_operations(self) -> set[tuple[str, LockState] | None]:
        stored = [self.lock(name).read() for name in ("here", "also")]
        return {one and (one.marker.operation, one.marker.state) for one in stored}

    def launches(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def statuses(self) -> dict[str, str]:
        return {name: dict(held.node.labels)["ray-node-status"] for name, held in self.google.slices().items()}

    def jobs(self, cluster: str) -> FiledJobs:
        return jobs_of(self.file, self.fleet.cluster(cluster))

    def running(self) -> list[list[str]]:
        """Return the jobs of each cluster that shares the token, with a star for the rotation's ID."""
        stored = {name: self.lock(name).read() for name in ("also", "here")}
        runs = {name: one.marker.run[:8] if one else "-" for name, one in stored.items()}
        return [sorted(job.replace(run, "*") for job in self.jobs(name).running) for name, run in runs.items()]

    def check_unbegun(self) -> None:
        """Check that the token and all clusters are as before, and that no operation is left unfinished."""
        assert self.versions() == ["ENABLED"] and self.launches() == 0
        assert {state for _, state in filter(None, self.last_operations())} == {LockState.DONE}


@pytest.fixture
def env(tmp_path: Path, cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    file = write_local_fleet(tmp_path / "infra", write_key(tmp_path), MORE, bucket="bucket")
    monkeypatch.setenv("RAYLIKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running_google("COMPUTE", "TPU", "SECRET_MANAGER") as google:
        google.secrets.put(SECRET, OLD)
        env = Environment(file, google, tmp_path / "log")
        tpu = TpuApi(PROJECT, ZONE, poll_s=0.02)
        for name in ("here", "also", "other"):
            create_slice(tpu, f"{name}-1", name)
            add_head(google, name, tradewind_config="c0ffee")
            env.jobs(name).file.write_text(f"{name}-a {name}-b")
        create_slice(tpu, "by-hand-1", kind="manual")
        yield env
        for name in ("here", "also"):
            env.lock(name).take("stop", "over", is_anew=True).finish()


def check_rotated(env: Environment, back: list[list[str]] = BACK) -> None:
    assert env.versions() == ["DISABLED", "ENABLED"], "one version was added, and the old one is switched off"
    assert env.last_operations() == {(OPERATION, LockState.DONE)}
    again, kept = "uninitialized", "up-to-date"
    assert env.statuses() == {"here-1": again, "also-1": again, "other-1": kept, "by-hand-1": kept}
    assert cached_token(env.fleet.cluster("here")) not in (None, OLD)
    assert env.running() == back and env.jobs("other").running == ["other-a", "other-b"]
    assert not [*(env.file.parent / "kept").rglob("jobs.json")], "nothing of them is left"


def test_rotation_restarts_sharing_clusters_then_disables_old(env: Environment) -> None:
    events: list[str] = []
    env.google.seen = lambda call: events.append("disabled") if call.path.endswith(":disable") else None
    rotation(env.file, env.messages.append, lambda cluster: events.append(cluster.name) or False).run()
    check_rotated(env)
    assert events == ["also", "here", "disabled"] and env.launches() == 2
    assert OLD not in " ".join(env.messages)


KILLED = [
    (RotationPhase.BEGIN, 1), (RotationPhase.KEEP, 1), (RotationPhase.ADD, 1), (RotationPhase.RESTART, 1),
    (RotationPhase.RESTART, 12), (RotationPhase.RENEW, 1), (RotationPhase.ANSWER, 1), (RotationPhase.DISABLE, 2),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "number"), KILLED)
def test_rotation_killed_in_any_phase_resumes_same_version(env: Environment, phase: RotationPhase, number: int) -> None:
    cluster_lock, seen, mutex = env.lock("here"), 0, threading.Lock()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.lifecycle.rotations", str(env.file)],
        cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def kill_at(call: HttpRequest) -> None:
        nonlocal seen
        stored = cluster_lock.read()
        with mutex:
            seen += stored is not None and stored.marker.phase == phase
            if seen == number:
                os.kill(process.pid, signal.SIGKILL)

    env.google.seen = kill_at
    assert process.wait() == -signal.SIGKILL
    env.google.seen = lambda call: None
    assert env.last_operations() <= {(OPERATION, LockState.HELD), None}
    env.rotate(is_later=True)
    check_rotated(env)


def test_old_token_stays_until_all_clusters_accept_the_new_one(env: Environment) -> None:
    with pytest.raises(FleetError, match="Cluster here does not answer with the new token after 600 s"):
        env.rotate("here")
    assert env.versions() == ["ENABLED", "ENABLED"] and env.last_operations() == {(OPERATION, LockState.LEFT)}
    with pytest.raises(InterruptedOperationError, match="Run 'rotate-token' again"):
        env.lock("also").take("restart", "restarting Ray")
    env.rotate()
    check_rotated(env)
    assert env.launches() == 2


def test_refused_rotation_leaves_nothing_unfinished(env: Environment) -> None:
    with env.lock("here").take("start", "making the head", holder="ada@laptop") as held:
        with pytest.raises(ClusterBusyError, match="ada@laptop is at start"):
            env.rotate()
        held.finish()
    env.check_unbegun()
    other = add_head(env.google, "also", name="another")
    with pytest.raises(WrongStateError, match="Cluster also has more than one head"):
        env.rotate()
    env.check_unbegun()
    del env.google.compute.state.resources[other]
    env.google.secrets.refused.add("secretmanager.versions.add")
    with pytest.raises(CloudDeniedError, match="'secretmanager.versions.add' denied"):
        env.rotate()
    env.check_unbegun()
    env.google.secrets.refused.clear()
    env.rotate()
    check_rotated(env)


@dataclass
class LateVersion:
    """Secret Manager does not answer the first request for a version, but performs it some requests later."""

    env: Environment
    path: str
    """The end of that request's path."""
    number: int
    _held_back: HttpRequest | None = None

    def __post_init__(self) -> None:
        self._answer = self.env.google.secrets.answer
        self.env.google.secrets.answer = self.answer  # type: ignore[method-assign]

    def answer(self, call: HttpRequest) -> Answer:
        if call.path.endswith(":addVersion") and self._held_back is None:
            self._held_back = call
            return self.env.google.secrets.refusal("add", 503, "try again")
        if self._held_back is not None and call.path.endswith(self.path):
            self.number -= 1
            if self.number == 0:
                self._answer(self._held_back)
        return self._answer(call)


def test_token_version_without_response_is_awaited_not_readded(env: Environment) -> None:
    LateVersion(env, "/versions", 4)
    with pytest.raises(CloudUnreachableError, match="To add a version"):
        env.rotate()
    assert env.versions() == ["ENABLED"] and env.last_operations() == {(OPERATION, LockState.LEFT)}
    env.rotate()
    check_rotated(env)
    assert "A version was requested without a response. Waiting for it, 120 s at most." in env.messages


def test_late_token_version_is_not_what_hosts_fetch(env: Environment) -> None:
    LateVersion(env, ":access", 1)
    for _ in range(2):
        with suppress(CloudUnreachableError):
            env.rotate()
    assert env.versions() == ["DISABLED", "DISABLED", "DISABLED", "ENABLED"]
    here = env.fleet.cluster("here")
    assert read_token(here, "latest") == cached_token(here), "the one that all clusters were started with"
    assert env.last_operations() == {(OPERATION, LockState.DONE)} and env.launches() == 2


def test_rotation_skips_headless_cluster_until_its_next_start(env: Environment) -> None:
    del env.google.compute.state.resources[f"{ZONE_PATH}/instances/ray-also-head-1"]
    env.jobs("also").end_all()
    env.rotate()
    check_rotated(env, [[], BACK[1]])
    assert env.launches() == 1
    assert "Cluster also has no head: it gets the new token when it is started." in env.messages


def test_failed_job_backup_aborts_rotation_before_any_change(env: Environment) -> None:
    silent = env.jobs("here")
    silent.is_silent = True
    with pytest.raises(JobBackupError, match="'tradewind cluster rotate-token here --no-preserve-jobs'"):
        env.rotate(jobs={"here": silent})
    env.check_unbegun()
    assert not [*(env.file.parent / "kept").rglob("jobs.json")], "what of others was kept is gone"
    env.rotate()
    check_rotated(env)


def test_jobs_end_without_preservation(env: Environment) -> None:
    assert env.rotate(is_to_keep=False) == []
    assert env.versions() == ["DISABLED", "ENABLED"] and env.running() == [[], []]


def test_failed_job_restore_blocks_no_token_swap_or_other_jobs(env: Environment) -> None:
    late = env.jobs("also")
    bring_back = late.restore

    def silent(*arguments: Any) -> Any:
        late.is_silent = True
        return bring_back(*arguments)

    late.restore = silent  # type: ignore[method-assign]
    with pytest.raises(JobRestoreError, match="Cluster also: its head does not accept its jobs yet"):
        env.rotate(jobs={"also": late})
    assert env.versions() == ["DISABLED", "ENABLED"] and env.last_operations() == {(OPERATION, LockState.LEFT)}
    assert env.running() == [[], BACK[1]]
    env.rotate()
    check_rotated(env)
    assert env.launches() == 2


def test_rotation_resumed_elsewhere_reports_jobs_left_behind(env: Environment) -> None:
    with pytest.raises(FleetError):
        env.rotate("here")
    cluster = env.fleet.cluster("here")
    elsewhere = FiledJobs(cluster, print, env.file.parent / "elsewhere", env.jobs("here").file)
    with pytest.raises(AbandonedJobsError, match=r"leaves 2 jobs .* \(here-a, here-b\) behind"):
        env.rotate(jobs={"here": elsewhere})
    assert env.versions() == ["DISABLED", "ENABLED"] and env.running() == [BACK[0], []]
    env.rotate()
    check_rotated(env)


def test_jobs_submitted_after_the_first_backup_are_restored(env: Environment) -> None:
    def submit_late(call: HttpRequest) -> None:
        if call.path.endswith(":addVersion"):
            env.jobs("here").file.write_text("here-a here-b here-c")

    env.google.seen = submit_late
    env.rotate()
    assert env.running()[1] == ["here-a-r-*", "here-b-r-*", "here-c-r-*"]


def test_head_lost_before_job_restore_is_recreated(env: Environment) -> None:
    with pytest.raises(FleetError):
        env.rotate("here")
    zone = CloudZone(PROJECT, ZONE)
    zone.delete_machines(zone.inventory().of("here").machines)
    env.rotate()
    check_rotated(env)
    assert len(zone.inventory().of("here").heads) == 1 and env.launches() == 3
