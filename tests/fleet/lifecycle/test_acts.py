"""Start, stop and restart against a loopback Google Cloud, also after interruptions at any request."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE, write_key, write_world_fleet
from tests.fleet.lifecycle.rotations import read_later
from tests.support.google import LocalGoogle
from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.cloud.google_api import CloudDeniedError
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager, RelaunchRefusedError, WrongStateError
from tradewind.fleet.lifecycle.inventory import LAUNCH_LABEL, CloudZone, ClusterState, Inventory
from tradewind.fleet.lifecycle.job_preservation import ClusterJobBackup, JobPreservation
from tradewind.fleet.lifecycle.launcher import LauncherError, RayLauncher
from tradewind.fleet.lifecycle.restart import RESTART, ClusterRestart, RestartPhase
from tradewind.fleet.lock import (
    ClusterBusyError,
    ClusterLock,
    HeldClusterLock,
    InterruptedOperationError,
    LockState,
    MarkerLostError,
    lock_path,
)
from tradewind.records.lease_store import boot_time
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import HttpRequest

pytestmark = pytest.mark.slow

RAYLIKE = (sys.executable, str(Path(__file__).with_name("fake_launcher.py")))
UP = "0 up -y --no-config-cache --log-style pretty --log-color false"
LONG_S = 1000.0
NEIGHBOUR = "  here-b: {zone: us-central2-b, generation: v4, bucket: bucket, min_workers: 0}\n"


@dataclass
class Act:
    """A cluster, its cluster manager and its messages."""

    cluster: FleetCluster
    google: LocalGoogle
    log: Path
    file: Path
    told: list[str] = field(default_factory=list)

    def acts(self, config_hash: str = "c0ffee", marker: ClusterLock | None = None) -> ClusterManager:
        return ClusterManager(
            self.cluster, config_hash, zone=self.zone, marker=marker or self.marker, tell=self.told.append,
            launcher=RayLauncher(self.file, self.told.append, RAYLIKE),
        )  # fmt: skip

    def restart(self, config_hash: str = "c0ffee", marker: ClusterLock | None = None) -> None:
        """Restart the cluster without its jobs."""
        tell = self.told.append
        jobs = JobPreservation(self.cluster, ClusterJobBackup(self.cluster, tell), tell, is_to_keep=False)
        ClusterRestart(self.acts(config_hash, marker), marker or self.marker, jobs, tell).run()

    @cached_property
    def tpu(self) -> TpuApi:
        return TpuApi(PROJECT, ZONE, poll_s=0.02)

    @cached_property
    def zone(self) -> CloudZone:
        return CloudZone(PROJECT, ZONE, tpu=self.tpu, sleep=lambda seconds: time.sleep(0.01))

    @property
    def marker(self) -> ClusterLock:
        return ClusterLock.of(self.cluster)

    def marked(self) -> tuple[str, LockState]:
        found = self.marker.read()
        assert found is not None
        return found.marker.operation, found.marker.state

    def there(self, cluster: str = "here") -> Inventory:
        return self.zone.inventory().of(cluster)

    def launches(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def add_slice(self, name: str, cluster: str = "here", *, is_reserved: bool = False) -> None:
        body = {
            "acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base",
            "labels": {"ray-cluster-name": cluster, "ray-node-type": "worker"},
            "schedulingConfig": {"reserved": is_reserved},
        }  # fmt: skip
        self.tpu.create(name, body)

    def put_head(self, name: str = "ray-here-head-1-compute", status: str = "RUNNING") -> None:
        labels = {"ray-cluster-name": "here", "ray-node-type": "head", "ray-node-status": "up-to-date"}
        state = self.google.compute.state
        with state.changed:
            path = f"projects/{PROJECT}/zones/{ZONE}/instances/{name}"
            state.add(path, {"labels": {**labels, "tradewind-config": "c0ffee"}, "status": status})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("fleet")
    file = write_world_fleet(folder / "infra", write_key(folder), NEIGHBOUR)
    text = file.read_text().replace("bucket: my-bucket", "bucket: bucket")
    file.write_text(text)
    return load_fleet(file)


@pytest.fixture
def act(fleet: Fleet, cloud: LocalCloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Act]:
    google = LocalGoogle((PROJECT, ZONE))
    google.start()
    for api in ("COMPUTE", "TPU"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
    monkeypatch.setenv("RAYLIKE_LOG", str(tmp_path / "log"))
    file = tmp_path / "here.yaml"
    text = (fleet.file.parent / "clusters" / "here.yaml").read_text()
    (line,) = (line for line in text.splitlines() if "tradewind-config:" in line)
    file.write_text(text.replace(line, '    tradewind-config: "c0ffee"'))
    yield Act(fleet.cluster("here"), google, tmp_path / "log", file)
    ClusterLock.of(fleet.cluster("here")).take("stop", "over", is_anew=True).finish()
    google.end_all()
    google.stop()


def test_a_start_makes_what_is_missing_once(act: Act) -> None:
    act.acts().start()
    assert act.there().state is ClusterState.UP and act.marked() == ("start", LockState.DONE)
    assert "Made disk ray-here-state." in act.told
    act.acts().start()
    assert act.launches() == [UP], "the first autoscaler, no file for all to read, and once"
    assert act.told[-1].startswith("Cluster here was started already: ray-here-head-")


def test_a_start_that_failed_is_gone_on_with(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLIKE_FAILS", "1")
    with pytest.raises(LauncherError, match="ended with 1: Failed to setup head node."):
        act.acts().start()
    assert act.marked() == ("start", LockState.LEFT)
    monkeypatch.delenv("RAYLIKE_FAILS")
    (half_made,) = act.there().heads
    act.acts().start()
    assert [one.name for one in act.there().heads] == [half_made.name] and act.there().state is ClusterState.UP


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ({"quota": 0}, LauncherError, "Quota 'CPUS' exceeded.  Limit: 0.0 in region us-central2."),
        ({"denied": {"compute.instances.create"}}, LauncherError, "Required 'compute.instances.create' permission"),
        ({"denied": {"compute.disks.create"}}, CloudDeniedError, "Making disk ray-here-state .*compute.disks.create"),
    ],
)
def test_start_denied_by_quota_or_permission_can_be_rerun(
    act: Act, fault: dict[str, Any], error: type[Exception], says: str
) -> None:
    faults = act.google.compute.state.faults
    before = {name: getattr(faults, name) for name in fault}
    for name, value in fault.items():
        setattr(faults, name, value)
    with pytest.raises(error, match=says):
        act.acts().start()
    assert act.there().count == 0 and act.marked() == ("start", LockState.LEFT), "no head, and no half of one"
    for name, value in before.items():
        setattr(faults, name, value)
    act.acts().start()
    assert act.there().state is ClusterState.UP and len(act.there().machines) == 1


def test_a_head_that_died_makes_room_for_the_next(act: Act) -> None:
    act.acts().start()
    (dead,) = act.there().heads
    with act.google.compute.state.changed:
        act.google.compute.state.resources[f"projects/{PROJECT}/zones/{ZONE}/instances/{dead.name}"]["status"] = (
            "TERMINATED"
        )
    act.acts().start()
    (head,) = act.there().machines
    assert head.name != dead.name, "it had held on to the state disk"


def test_changed_file_is_refused_by_start_applied_by_restart(act: Act) -> None:
    act.acts().start()
    with pytest.raises(WrongStateError, match="'tradewind cluster apply here' changes it while it runs"):
        act.acts("0ther").start()
    act.restart("0ther")
    assert act.launches()[1:] == [UP]
    act.acts("0ther").start()
    assert act.there().heads[0].labels["tradewind-config"] == "0ther"


def test_restart_and_apply_of_absent_cluster_are_refused(act: Act) -> None:
    for what in (act.restart, act.acts().plan_apply):
        with pytest.raises(WrongStateError, match="there is nothing of it: start it. Nothing was changed."):
            what()
    assert act.launches() == []


def test_a_stop_takes_this_cluster_and_no_other(act: Act) -> None:
    act.acts().start()
    for name, cluster in (("one", "here"), ("two", "here"), ("next-door", "here-b"), ("further", "her")):
        act.add_slice(name, cluster)
    act.add_slice("kept", is_reserved=True)
    act.acts().stop()
    assert sorted(act.google.slices()) == ["further", "kept", "next-door"]
    assert act.marked() == ("stop", LockState.DONE)
    assert [path.rpartition("/")[2] for path in act.google.compute.state.resources] == ["ray-here-state"]
    act.acts().stop(include_reserved=True, delete_state=True)
    assert sorted(act.google.slices()) == ["further", "next-door"] and not act.google.compute.state.resources


def test_while_somebody_else_changes_it_nothing_is_done(act: Act) -> None:
    act.acts().start()
    with act.marker.take("restart", "restarting Ray", holder="ada@laptop"):
        seen: list[HttpRequest] = []
        act.google.seen = seen.append
        for what in (act.acts().stop, act.restart):
            with pytest.raises(ClusterBusyError, match="ada@laptop is at restart"):
                what()
    assert {call.method for call in seen} <= {"GET"}
    act.acts().stop()


@dataclass
class LateMarker:
    """A cluster lock that another user held until now: that user's last change comes just before ``take``."""

    marker: ClusterLock
    did: Callable[[], None]

    def take(self, *args: Any, **kwargs: Any) -> HeldClusterLock:
        self.did()
        return self.marker.take(*args, **kwargs)


def test_changes_made_before_lock_acquisition_are_detected(act: Act) -> None:
    started = LateMarker(act.marker, act.put_head)
    with pytest.raises(WrongStateError):
        act.acts("beef", cast(ClusterLock, started)).start()
    assert act.marked() == ("start", LockState.DONE)
    (head,) = act.there().heads
    made_anew = LateMarker(act.marker, lambda: act.zone.label_machine(head.name, {LAUNCH_LABEL: "of-another-file"}))
    with pytest.raises(RelaunchRefusedError, match=f"Ray would relaunch {head.name}"):
        act.acts("beef", cast(ClusterLock, made_anew)).apply()
    assert act.marked() == ("apply", LockState.DONE) and act.launches() == []


def test_slice_labels_written_by_others_after_listing_survive(act: Act) -> None:
    act.add_slice("one")
    (listed,) = act.there().slices
    act.zone.label_slice(listed, {"theirs": "1"})
    act.zone.label_slice(listed, {"ours": "2"})
    act.zone.label_slice(replace(listed, identity="of an earlier one"), {"not": "its"})
    (found,) = act.there().slices
    assert found.labels == {**listed.labels, "theirs": "1", "ours": "2"}


def test_missing_permission_is_named_and_stop_can_be_rerun(act: Act) -> None:
    act.acts().start()
    act.add_slice("one")
    act.google.compute.state.faults.denied.add("compute.instances.delete")
    with pytest.raises(CloudDeniedError, match="Deleting ray-here-head-.* 'compute.instances.delete' permission"):
        act.acts().stop()
    assert "one" in act.google.slices(), "the head would have made it again"
    act.google.compute.state.faults.denied.clear()
    act.acts().stop()
    assert act.there().count == 0


def interrupted_at(act: Act, number: int, what: Callable[[], None]) -> bool:
    """Interrupt ``what``, as by Ctrl-C, at request ``number`` to Google; return whether it got there."""
    seen = 0

    def look(call: HttpRequest) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGINT)

    act.google.seen = look
    is_interrupted = False
    try:
        with suppress(LauncherError):
            what()
    except KeyboardInterrupt:
        is_interrupted = True
    act.google.seen = lambda call: None
    return is_interrupted


def test_interrupted_stop_is_finished_by_next_stop(act: Act) -> None:
    number = 0
    act.add_slice("next-door", "here-b")
    while True:
        act.put_head()
        act.add_slice("one")
        was_interrupted = interrupted_at(act, number := number + 1, act.acts().stop)
        act.acts().stop()
        assert (act.there().count, [*act.google.slices()]) == (0, ["next-door"]), f"after request {number}"
        if not was_interrupted:
            break
    assert number > 10, "there was something to interrupt"


def test_interrupted_start_is_finished_by_next_start(act: Act) -> None:
    number = 0
    while interrupted_at(act, number := number + 1, act.acts().start):
        act.acts().start()
        assert act.there().state is ClusterState.UP, f"after request {number}"
        assert len(act.there().machines) == 1
        act.acts().stop(delete_state=True)
    assert number > 8, "there was something to interrupt"


@dataclass
class Freeze:
    """Freeze an operation after ``number`` requests to Google; when it thaws, Bob holds the cluster lock.

    Ray's launcher, which the lock ends meanwhile (see ``test_launcher``), does not count.

    Attributes:
        changes: Changes that the thawed operation requested from Google.
    """

    act: Act
    number: int
    bob: HeldClusterLock | None = None
    changes: list[str] = field(default_factory=list)

    @property
    def marker(self) -> ClusterLock:
        def clock() -> float:
            return boot_time() + (LONG_S if self.bob else 0.0)

        return ClusterLock("here", lock_path(self.act.cluster), clock=clock)

    def look(self, call: HttpRequest) -> None:
        if call.headers.get("User-Agent", "").startswith("Python-urllib"):
            return
        if self.bob and call.method != "GET":
            self.changes.append(f"{call.method} {call.path}")
        self.number -= 1
        if self.number == 0:
            late = ClusterLock("here", lock_path(self.act.cluster), read=read_later)
            self.bob = late.take("stop", "deleting", holder="bob@desk", is_anew=True)

    def during(self, what: Callable[[ClusterLock], None]) -> bool:
        """Run ``what`` and return whether it made enough requests for the freeze."""
        self.act.google.seen = self.look
        try:
            what(self.marker)
        except (MarkerLostError, ClusterBusyError):
            assert self.bob
        finally:
            self.act.google.seen = lambda call: None
        if self.bob:
            assert self.act.marked() == ("stop", LockState.HELD), "Bob's"
            self.bob.finish()
        return self.bob is not None


@pytest.mark.parametrize("what", ["start", "stop", "restart", "apply"])
def test_frozen_operation_changes_nothing_after_lock_takeover(act: Act, what: str) -> None:
    acts: dict[str, Callable[[ClusterLock], None]] = {
        "start": lambda marker: act.acts(marker=marker).start(),
        "stop": lambda marker: act.acts(marker=marker).stop(delete_state=True),
        "restart": lambda marker: act.restart("beef", marker),
        "apply": lambda marker: act.acts("beef", marker).apply(),
    }
    number, is_frozen = 0, True
    while is_frozen:
        if what != "start":
            act.put_head()
            act.put_head("dead", "TERMINATED")
            act.add_slice("one")
        freeze = Freeze(act, number := number + 1)
        is_frozen = freeze.during(acts[what])
        assert not freeze.changes, f"after request {number}"
        act.acts().stop(delete_state=True)
    assert number > 3, "there was something to freeze in"


@pytest.mark.parametrize("phase", [RestartPhase.RESTARTING, RestartPhase.RETURNING])
def test_interrupted_restart_that_lost_its_head_recreates_it(act: Act, phase: RestartPhase) -> None:
    """Ray deletes a head before it creates the next one; only the restart may start the cluster then."""
    act.acts().start()
    held = act.marker.take(RESTART, phase)
    held.leave()
    act.zone.delete_machines(act.there().machines)
    with pytest.raises(InterruptedOperationError, match="Run 'restart' again"):
        act.acts().start()
    act.restart()
    assert act.there().state is ClusterState.UP and act.marked() == (RESTART, LockState.DONE)
    assert len(act.launches()) == 2


def test_interrupted_restart_with_two_heads_is_refused(act: Act) -> None:
    act.acts().start()
    act.marker.take(RESTART, RestartPhase.RESTARTING).leave()
    act.put_head()
    with pytest.raises(WrongStateError, match="more than one head"):
        act.restart()
    assert len(act.launches()) == 1 and act.marked() == (RESTART, LockState.LEFT)
