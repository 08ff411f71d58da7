"""Start, stop and restart against a loopback Google Cloud, also after interruptions at any request."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fleet.clouds import PROJECT, ZONE, ZONE_PATH, add_head, running_google
from tests.fleet.lifecycle.fleet_environment import create_slice, write_key, write_local_fleet
from tests.fleet.lifecycle.rotations import RAYLIKE, read_later
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

UP = "0 up -y --no-config-cache --log-style pretty --log-color false"
LONG_S = 1000.0
NEIGHBOUR = "  here-b: {zone: us-central2-b, generation: v4, bucket: bucket, min_workers: 0}\n"


@dataclass
class Environment:
    """A cluster, its cluster manager and its messages."""

    cluster: FleetCluster
    google: LocalGoogle
    log: Path
    file: Path
    messages: list[str] = field(default_factory=list)

    def manager(self, config_hash: str = "c0ffee", lock: ClusterLock | None = None) -> ClusterManager:
        return ClusterManager(
            self.cluster, config_hash, zone=self.zone, marker=lock or self.lock, tell=self.messages.append,
            launcher=RayLauncher(self.file, self.messages.append, RAYLIKE),
        )  # fmt: skip

    def restart(self, config_hash: str = "c0ffee", lock: ClusterLock | None = None) -> None:
        """Restart the cluster without its jobs."""
        tell = self.messages.append
        jobs = JobPreservation(self.cluster, ClusterJobBackup(self.cluster, tell), tell, is_to_keep=False)
        ClusterRestart(self.manager(config_hash, lock), lock or self.lock, jobs, tell).run()

    @cached_property
    def tpu(self) -> TpuApi:
        return TpuApi(PROJECT, ZONE, poll_s=0.02)

    @cached_property
    def zone(self) -> CloudZone:
        return CloudZone(PROJECT, ZONE, tpu=self.tpu, sleep=lambda seconds: time.sleep(0.01))

    @property
    def lock(self) -> ClusterLock:
        return ClusterLock.of(self.cluster)

    def last_operation(self) -> tuple[str, LockState]:
        stored = self.lock.read()
        assert stored is not None
        return stored.marker.operation, stored.marker.state

    def inventory(self) -> Inventory:
        return self.zone.inventory().of("here")

    def launches(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def put_head(self, name: str = "ray-here-head-1-compute", status: str = "RUNNING") -> None:
        add_head(self.google, name=name, status=status, tradewind_config="c0ffee")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("fleet")
    return load_fleet(write_local_fleet(folder / "infra", write_key(folder), NEIGHBOUR, bucket="bucket"))


@pytest.fixture
def env(
    fleet: Fleet, cloud: LocalCloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Environment]:
    monkeypatch.setenv("RAYLIKE_LOG", str(tmp_path / "log"))
    file = tmp_path / "here.yaml"
    text = (fleet.file.parent / "clusters" / "here.yaml").read_text()
    file.write_text(re.sub("tradewind-config: .*", 'tradewind-config: "c0ffee"', text))
    with running_google("COMPUTE", "TPU") as google:
        yield (env := Environment(fleet.cluster("here"), google, tmp_path / "log", file))
        env.lock.take("stop", "over", is_anew=True).finish()


def test_start_creates_missing_parts_and_replaces_a_dead_head(env: Environment) -> None:
    env.manager().start()
    assert env.inventory().state is ClusterState.UP and env.last_operation() == ("start", LockState.DONE)
    assert "Made disk ray-here-state." in env.messages
    env.manager().start()
    assert env.launches() == [UP], "the first autoscaler, no file for all to read, and once"
    assert env.messages[-1].startswith("Cluster here was started already: ray-here-head-")
    (dead,) = env.inventory().heads
    with env.google.compute.state.changed:
        env.google.compute.state.resources[f"{ZONE_PATH}/instances/{dead.name}"]["status"] = "TERMINATED"
    env.manager().start()
    (head,) = env.inventory().machines
    assert head.name != dead.name, "the dead one had the state disk attached"


def test_failed_start_is_resumed(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLIKE_FAILS", "1")
    with pytest.raises(LauncherError, match="ended with 1: Failed to setup head node."):
        env.manager().start()
    assert env.last_operation() == ("start", LockState.LEFT)
    monkeypatch.delenv("RAYLIKE_FAILS")
    (half_made,) = env.inventory().heads
    env.manager().start()
    assert [one.name for one in env.inventory().heads] == [half_made.name] and env.inventory().state is ClusterState.UP


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ({"quota": 0}, LauncherError, "Quota 'CPUS' exceeded.  Limit: 0.0 in region us-central2."),
        ({"denied": {"compute.instances.create"}}, LauncherError, "Required 'compute.instances.create' permission"),
        ({"denied": {"compute.disks.create"}}, CloudDeniedError, "Making disk ray-here-state .*compute.disks.create"),
    ],
)
def test_start_denied_by_quota_or_permission_can_be_rerun(
    env: Environment, fault: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=says):
        for name, value in fault.items():
            patch.setattr(env.google.compute.state.faults, name, value)
        env.manager().start()
    assert env.inventory().count == 0 and env.last_operation() == ("start", LockState.LEFT), "no half of a head"
    env.manager().start()
    assert env.inventory().state is ClusterState.UP and len(env.inventory().machines) == 1


def test_changed_file_is_refused_by_start_applied_by_restart(env: Environment) -> None:
    for operation in (env.restart, env.manager().plan_apply):
        with pytest.raises(WrongStateError, match="there is nothing of it: start it. Nothing was changed."):
            operation()
    env.manager().start()
    with pytest.raises(WrongStateError, match="'tradewind cluster apply here' changes it while it runs"):
        env.manager("0ther").start()
    env.restart("0ther")
    assert env.launches()[1:] == [UP]
    env.manager("0ther").start()
    assert env.inventory().heads[0].labels["tradewind-config"] == "0ther"


def test_stop_deletes_this_cluster_and_no_other(env: Environment) -> None:
    env.manager().start()
    for name, cluster in (("one", "here"), ("two", "here"), ("next-door", "here-b"), ("further", "her")):
        create_slice(env.tpu, name, cluster)
    create_slice(env.tpu, "kept", schedulingConfig={"reserved": True})
    env.manager().stop()
    assert sorted(env.google.slices()) == ["further", "kept", "next-door"]
    assert env.last_operation() == ("stop", LockState.DONE)
    assert [path.rpartition("/")[2] for path in env.google.compute.state.resources] == ["ray-here-state"]
    env.manager().stop(include_reserved=True, delete_state=True)
    assert sorted(env.google.slices()) == ["further", "next-door"] and not env.google.compute.state.resources


def test_locked_cluster_is_not_changed(env: Environment) -> None:
    env.manager().start()
    with env.lock.take("restart", "restarting Ray", holder="ada@laptop"):
        seen: list[HttpRequest] = []
        env.google.seen = seen.append
        for operation in (env.manager().stop, env.restart):
            with pytest.raises(ClusterBusyError, match="ada@laptop is at restart"):
                operation()
    assert {call.method for call in seen} <= {"GET"}
    env.manager().stop()


@dataclass
class LateLock:
    """A cluster lock that another user held until now: that user's last change comes just before ``take``."""

    lock: ClusterLock
    change: Callable[[], None]

    def take(self, *args: Any, **kwargs: Any) -> HeldClusterLock:
        self.change()
        return self.lock.take(*args, **kwargs)


def test_changes_made_before_lock_acquisition_are_detected(env: Environment) -> None:
    started = cast(ClusterLock, LateLock(env.lock, env.put_head))
    with pytest.raises(WrongStateError):
        env.manager("beef", started).start()
    assert env.last_operation() == ("start", LockState.DONE)
    (head,) = env.inventory().heads
    relabel = partial(env.zone.label_machine, head.name, {LAUNCH_LABEL: "of-another-file"})
    with pytest.raises(RelaunchRefusedError, match=f"Ray would relaunch {head.name}"):
        env.manager("beef", cast(ClusterLock, LateLock(env.lock, relabel))).apply()
    assert env.last_operation() == ("apply", LockState.DONE) and env.launches() == []


def test_slice_labels_written_by_others_after_listing_survive(env: Environment) -> None:
    create_slice(env.tpu, "one")
    (listed,) = env.inventory().slices
    env.zone.label_slice(listed, {"theirs": "1"})
    env.zone.label_slice(listed, {"ours": "2"})
    env.zone.label_slice(replace(listed, identity="of an earlier one"), {"not": "its"})
    (found,) = env.inventory().slices
    assert found.labels == {**listed.labels, "theirs": "1", "ours": "2"}


def test_missing_permission_is_named_and_stop_can_be_rerun(env: Environment) -> None:
    env.manager().start()
    create_slice(env.tpu, "one")
    env.google.compute.state.faults.denied.add("compute.instances.delete")
    with pytest.raises(CloudDeniedError, match="Deleting ray-here-head-.* 'compute.instances.delete' permission"):
        env.manager().stop()
    assert "one" in env.google.slices(), "the head would have made it again"
    env.google.compute.state.faults.denied.clear()
    env.manager().stop()
    assert env.inventory().count == 0


def interrupted_at(env: Environment, number: int, run: Callable[[], None]) -> bool:
    """Interrupt ``run``, as by Ctrl-C, at request ``number`` to Google; return whether it got there."""
    calls = itertools.count(1)
    env.google.seen = lambda call: os.kill(os.getpid(), signal.SIGINT) if next(calls) == number else None
    try:
        with suppress(LauncherError):
            run()
    except KeyboardInterrupt:
        return True
    finally:
        env.google.seen = lambda call: None
    return False


def test_interrupted_stop_is_finished_by_next_stop(env: Environment) -> None:
    number, was_interrupted = 0, True
    create_slice(env.tpu, "next-door", "here-b")
    while was_interrupted:
        env.put_head()
        create_slice(env.tpu, "one")
        was_interrupted = interrupted_at(env, number := number + 1, env.manager().stop)
        env.manager().stop()
        assert (env.inventory().count, [*env.google.slices()]) == (0, ["next-door"]), f"after request {number}"
    assert number > 10, "there was something to interrupt"


def test_interrupted_start_is_finished_by_next_start(env: Environment) -> None:
    number = 0
    while interrupted_at(env, number := number + 1, env.manager().start):
        env.manager().start()
        assert env.inventory().state is ClusterState.UP, f"after request {number}"
        assert len(env.inventory().machines) == 1
        env.manager().stop(delete_state=True)
    assert number > 8, "there was something to interrupt"


@dataclass
class Freeze:
    """Freeze an operation after ``number`` requests to Google; when it thaws, Bob holds the cluster lock.

    Ray's launcher, which the lock ends meanwhile (see ``test_launcher``), does not count.

    Attributes:
        changes: Changes that the thawed operation requested from Google.
    """

    env: Environment
    number: int
    bob: HeldClusterLock | None = None
    changes: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return boot_time() + (LONG_S if self.bob else 0.0)

    def note(self, call: HttpRequest) -> None:
        if call.headers.get("User-Agent", "").startswith("Python-urllib"):
            return
        if self.bob and call.method != "GET":
            self.changes.append(f"{call.method} {call.path}")
        self.number -= 1
        if self.number == 0:
            late = ClusterLock("here", lock_path(self.env.cluster), read=read_later)
            self.bob = late.take("stop", "deleting", holder="bob@desk", is_anew=True)

    def during(self, operation: Callable[[ClusterLock], None]) -> bool:
        """Run ``operation`` and return whether it made enough requests for the freeze."""
        self.env.google.seen = self.note
        try:
            operation(ClusterLock("here", lock_path(self.env.cluster), clock=self.clock))
        except (MarkerLostError, ClusterBusyError):
            assert self.bob
        finally:
            self.env.google.seen = lambda call: None
        if self.bob:
            assert self.env.last_operation() == ("stop", LockState.HELD), "Bob's"
            self.bob.finish()
        return self.bob is not None


OPERATIONS: dict[str, Callable[[Environment, ClusterLock], None]] = {
    "start": lambda env, lock: env.manager(lock=lock).start(),
    "stop": lambda env, lock: env.manager(lock=lock).stop(delete_state=True),
    "restart": lambda env, lock: env.restart("beef", lock),
    "apply": lambda env, lock: env.manager("beef", lock).apply(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_frozen_operation_changes_nothing_after_lock_takeover(env: Environment, name: str) -> None:
    number, is_frozen = 0, True
    while is_frozen:
        if name != "start":
            env.put_head()
            env.put_head("dead", "TERMINATED")
            create_slice(env.tpu, "one")
        freeze = Freeze(env, number := number + 1)
        is_frozen = freeze.during(partial(OPERATIONS[name], env))
        assert not freeze.changes, f"after request {number}"
        env.manager().stop(delete_state=True)
    assert number > 3, "there was something to freeze in"


@pytest.mark.parametrize("phase", [RestartPhase.RESTARTING, RestartPhase.RETURNING])
def test_interrupted_restart_that_lost_its_head_recreates_it(env: Environment, phase: RestartPhase) -> None:
    """Ray deletes a head before it creates the next one; only the restart may start the cluster then."""
    env.manager().start()
    env.lock.take(RESTART, phase).leave()
    env.zone.delete_machines(env.inventory().machines)
    with pytest.raises(InterruptedOperationError, match="Run 'restart' again"):
        env.manager().start()
    env.restart()
    assert env.inventory().state is ClusterState.UP and env.last_operation() == (RESTART, LockState.DONE)
    assert len(env.launches()) == 2


def test_interrupted_restart_with_two_heads_is_refused(env: Environment) -> None:
    env.manager().start()
    env.lock.take(RESTART, RestartPhase.RESTARTING).leave()
    env.put_head()
    with pytest.raises(WrongStateError, match="more than one head"):
        env.restart()
    assert len(env.launches()) == 1 and env.last_operation() == (RESTART, LockState.LEFT)
