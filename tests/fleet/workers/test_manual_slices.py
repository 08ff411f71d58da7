"""Manual slices: users' requests for them, their repair, and interruptions that lose none."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.clouds import PROJECT, ZONE, running_google
from tests.fleet.lifecycle.fleet_environment import create_slice, write_key, write_local_fleet
from tests.support.google import LocalGoogle
from tests.support.waiting import until
from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.terms import Scope
from tradewind.cloud_tpu.slice_types import SLICE_NAME_LABEL, slice_type
from tradewind.fleet.cloud.google_api import CloudDeniedError
from tradewind.fleet.clusters import CLUSTER_LABEL, Capacity, FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lock import ClusterLock, LockState, MarkerLostError
from tradewind.fleet.workers.manual_slices import FleetError, ManualSlices, SliceCut, check_unused, slice_records
from tradewind.ray_jobs.nodes import NodeInfo
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import HttpRequest
from tradewind.rehearsal.tpu.requests import RefusedCallError

BIG, SMALL = slice_type("v4-16"), slice_type("v4-8")
SCRIPT = "#!/bin/bash\n# joins with {} chips\n"


def unchecked() -> None:
    """Stand for the check of a lock that the process holds."""


def lost() -> None:
    raise MarkerLostError("Others may be changing the cluster.")


def host(name: str, ip: str, used: float = 0.0, *, is_reported: bool = True) -> NodeInfo:
    total = {"TPU": 4.0, "CPU": 120.0, "memory": 100.0, name: 1.0}
    free = {**total, "TPU": 4.0 - used, "memory": 90.0} if is_reported else None
    return NodeInfo(ip, ip, total=total, free=free, labels={SLICE_NAME_LABEL: name})


@dataclass
class Environment:
    """A cluster, its cloud, and Ray's view of its nodes."""

    cluster: FleetCluster
    google: LocalGoogle
    nodes: list[NodeInfo] | None = None
    messages: list[str] = field(default_factory=list)

    @cached_property
    def api(self) -> TpuApi:
        return TpuApi(PROJECT, ZONE, poll_s=0.02, sleep=lambda seconds: None)

    @property
    def slices(self) -> ManualSlices:
        return ManualSlices(
            self.cluster, self.api, slice_records(self.cluster), script=lambda kind: SCRIPT.format(kind.chips),
            nodes=lambda: self.nodes, tell=self.messages.append,
        )  # fmt: skip

    @property
    def supply(self) -> Any:
        return self.google.tpu[PROJECT, ZONE].service.state.supply

    @property
    def lock(self) -> ClusterLock:
        return ClusterLock.of(self.cluster)

    def types(self) -> dict[str, str]:
        """Return name → type of each slice that exists."""
        return {node.name: node.slice_type for node in self.api.nodes()}

    def add_hero(self, capacity: Capacity = Capacity.PREEMPTIBLE) -> None:
        self.slices.add("hero", BIG, capacity)

    def cut_hero(self) -> list[str]:
        return self.slices.resize("hero", [SMALL, SMALL], self.lock)

    def upkeep(self) -> None:
        """Run one round of upkeep that sees no host in Ray; all slices are old enough for it."""
        scope = Scope(labels={CLUSTER_LABEL: self.cluster.name})
        SliceRepair(self.api, lambda: {"of-others": 1}, scope, slice_records(self.cluster)).run_once()

    def check_uncut(self) -> None:
        """Check that no cut of the slice is unfinished, and that upkeep leaves it."""
        stored = self.lock.read()
        assert stored is not None and stored.marker.state is LockState.DONE
        self.upkeep()
        assert set(self.types()) == {"hero"}


@pytest.fixture
def env(tmp_path: Path, cloud: LocalCloudStorage) -> Iterator[Environment]:
    cluster = load_fleet(write_local_fleet(tmp_path / "infra", write_key(tmp_path), bucket="bucket")).cluster("here")
    with running_google("TPU") as google:
        yield (env := Environment(cluster, google))
        env.lock.take("stop", "over", is_anew=True).finish()
        for name in slice_records(cluster).read():
            slice_records(cluster).forget(name, 0.0)


@pytest.mark.parametrize(
    ("capacity", "tier", "field"),
    [
        (Capacity.PREEMPTIBLE, None, "preemptible"),
        (Capacity.RESERVED, {"guaranteed": {}}, "reserved"),
        (Capacity.BEST_EFFORT, {"spot": {}}, "spot"),
    ],
)
def test_manual_slice_uses_requested_capacity_and_cluster_label(
    env: Environment, capacity: Capacity, tier: dict[str, object] | None, field: str
) -> None:
    env.add_hero(capacity)
    env.slices.wait("hero", 10.0)
    node = env.api.node("hero")
    assert node.body["schedulingConfig"] == {field: True} and node.labels[CLUSTER_LABEL] == "here"
    assert not node.is_of_autoscaler and node.body["metadata"]["startup-script"] == SCRIPT.format(8)
    assert (node.queue is not None) == (tier is not None)
    if tier is not None:
        assert tier.items() <= env.api.queued_resource("hero").body.items()
    env.add_hero(capacity)
    assert env.messages[-1] == "Slice hero was requested already: READY.", "it can be run again"
    with pytest.raises(FleetError, match=f"There is a slice hero already, of v4-16, {capacity.value}"):
        env.slices.add("hero", SMALL, capacity)


def test_wrong_generation_or_name_is_refused_before_request(env: Environment) -> None:
    env.google.seen = lambda call: pytest.fail("Google was asked")
    with pytest.raises(FleetError, match="Cluster here has slices of v4 only, not v6e-8: v4-8, v4-16"):
        env.slices.check_kind("v6e-8")
    with pytest.raises(FleetError, match="'Hero!' is no name of a slice"):
        env.slices.add("Hero!", BIG, Capacity.RESERVED)


@pytest.mark.parametrize("capacity", [Capacity.PREEMPTIBLE, Capacity.BEST_EFFORT])
def test_preempted_manual_slice_is_recreated_as_it_was(env: Environment, capacity: Capacity) -> None:
    env.add_hero(capacity)
    env.slices.wait("hero", 10.0)
    before = env.api.node("hero")
    env.google.tpu[PROJECT, ZONE].service.lives.preempt(*env.google.slices().values(), 0.0)
    env.upkeep()
    env.upkeep()
    env.slices.wait("hero", 10.0)
    after = env.api.node("hero")
    assert after.identity != before.identity and after.body == before.body, "with the script that lets its hosts join"


def test_slice_without_capacity_is_reported_as_waiting(env: Environment) -> None:
    env.supply.is_out = True
    env.add_hero(Capacity.RESERVED)
    with pytest.raises(FleetError, match="Slice hero: .* Google continues"):
        env.slices.wait("hero", -1.0)


@pytest.mark.slow
def test_remove_accepts_only_manual_slices_of_this_cluster(env: Environment) -> None:
    create_slice(env.api, "auto")
    create_slice(env.api, "theirs", "here-b", "unmanaged")
    env.add_hero(Capacity.RESERVED)
    with pytest.raises(FleetError, match="was made by the autoscaler"):
        env.slices.remove("auto", unchecked)
    with pytest.raises(FleetError, match="is of cluster here-b, not of here"):
        env.slices.remove("theirs", unchecked)
    with pytest.raises(FleetError, match="has no slice her: did you mean hero?"):
        env.slices.remove("her", unchecked)
    env.nodes = [host("hero", "10.0.0.1"), host("hero", "10.0.0.2", used=4.0)]
    with pytest.raises(FleetError, match=r"Slice hero is in use \(4 TPU on 10.0.0.2\)"):
        env.slices.remove("hero", unchecked)
    env.nodes = []
    with pytest.raises(MarkerLostError):
        env.slices.remove("hero", lost)
    assert set(env.types()) == {"auto", "theirs", "hero"}
    env.nodes = [host("hero", "10.0.0.1"), host("auto", "10.0.0.2", used=4.0)]
    env.slices.remove("hero", unchecked)
    env.upkeep()
    assert set(env.types()) == {"auto", "theirs"} and not env.api.queued_resources()


def test_unreported_host_counts_as_used() -> None:
    with pytest.raises(FleetError, match=r"Ray does not report what is in use on 10.0.0.1"):
        check_unused([host("hero", "10.0.0.1", is_reported=False)], "hero")
    check_unused([], "hero")


@pytest.mark.slow
@pytest.mark.parametrize("capacity", list(Capacity))
def test_slice_is_cut_in_two_of_the_same_capacity(env: Environment, capacity: Capacity) -> None:
    env.add_hero(capacity)
    names = env.cut_hero()
    for name in names:
        env.slices.wait(name, 10.0)
    assert env.types() == {"hero-1": "v4-8", "hero-2": "v4-8"} and names == ["hero-1", "hero-2"]
    assert env.slices.find("hero-1").capacity is capacity
    assert env.api.node("hero-1").body["metadata"]["startup-script"] == SCRIPT.format(4)
    env.slices.remove("hero-2", unchecked)
    env.upkeep()
    assert set(env.types()) == {"hero-1"}, "upkeep recreates no removed slice"
    assert not any(record.is_wanted for record in slice_records(env.cluster).read().values())


def test_used_slice_or_wrong_sizes_leave_the_slice_uncut(env: Environment) -> None:
    env.add_hero(Capacity.RESERVED)
    env.nodes = [host("hero", "10.0.0.1", used=1.0)]
    with pytest.raises(FleetError):
        env.cut_hero()
    with pytest.raises(FleetError, match="have 12 chips together, slice hero has 8"):
        env.slices.resize("hero", [BIG, SMALL], env.lock)
    env.check_uncut()


def grant(env: Environment, name: str, *slices: str) -> None:
    """Create slices by one queued resource, as users do by hand; Google grants it some time after its answer."""
    body = {
        "acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base",
        "labels": {CLUSTER_LABEL: "here", "ray-node-type": "unmanaged"},
    }  # fmt: skip
    specs = [{"nodeId": one, "node": body} for one in slices]
    env.api.create(name, {"guaranteed": {}, "tpu": {"nodeSpec": specs}})
    until(lambda: {one.name for one in env.api.nodes() if one.state == "READY"} >= set(slices), "slices", env.types)


def check_kept(env: Environment, name: str, says: str) -> None:
    """Check that a slice is neither removed nor cut under this name."""
    with pytest.raises(FleetError, match=says):
        env.slices.remove(name, unchecked)
    with pytest.raises(FleetError, match=says):
        env.slices.resize(name, [SMALL], env.lock)


def test_shared_or_used_slice_is_kept_under_any_name(env: Environment) -> None:
    grant(env, "both", "one", "two")
    env.nodes = [host("one", "10.0.0.1"), host("two", "10.0.0.2", used=4.0)]
    for name in ("one", "both"):
        check_kept(env, name, f"Slice {name} came with .* of both")
    grant(env, "request", "three")
    env.nodes = [host("three", "10.0.0.3", used=4.0)]
    for name in ("three", "request"):
        check_kept(env, name, "4 TPU on 10.0.0.3")
    assert set(env.types()) == {"one", "two", "three"}


def test_resize_with_unconfirmed_deletion_loses_no_slice(env: Environment) -> None:
    env.add_hero()

    def go_silent(call: HttpRequest) -> None:
        if call.method == "DELETE":
            env.google.failures, env.google.failure_status = 10**6, 403

    env.google.seen = go_silent
    with pytest.raises(CloudDeniedError):
        env.cut_hero()
    env.google.failures, env.google.seen = 0, lambda call: None
    assert "hero" not in env.types()
    assert env.cut_hero() == ["hero-1", "hero-2"]
    assert set(env.types()) == {"hero-1", "hero-2"}


def test_cut_with_refused_deletion_leaves_the_slice(env: Environment) -> None:
    env.add_hero()
    refusal = RefusedCallError("PERMISSION_DENIED", "Permission 'tpu.nodes.delete' denied")
    env.google.tpu[PROJECT, ZONE].service.state.faults.refuse(1, refusal, "DeleteNode")
    with pytest.raises(CloudDeniedError):
        env.cut_hero()
    env.check_uncut()


def test_upkeep_requests_new_slice_that_had_no_capacity(env: Environment) -> None:
    env.add_hero()
    env.supply.is_out = True
    with pytest.raises(FleetError, match="There is no capacity for slice hero-1 now"):
        env.cut_hero()
    assert env.slices.is_awaited("hero-2") and not env.slices.is_awaited("hero")
    env.slices.give_up("hero-2")
    env.supply.is_out = False
    env.upkeep()
    env.slices.wait("hero-1", 10.0)
    assert set(env.types()) == {"hero-1"}


@pytest.mark.slow
def test_interrupted_resize_is_finished_by_next_resize_or_upkeep(env: Environment) -> None:
    number, is_interrupted, is_by_upkeep = 0, True, False
    while is_interrupted:
        env.add_hero(Capacity.RESERVED)
        number, is_interrupted = number + 1, False
        writes = itertools.count(1)

        def interrupt(call: HttpRequest, stop_at: int = number, writes: Iterator[int] = writes) -> None:
            if call.method != "GET" and next(writes) == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        env.google.seen = interrupt
        try:
            env.cut_hero()
        except KeyboardInterrupt:
            is_interrupted = True
        env.google.seen = lambda call: None
        if is_interrupted and (is_by_upkeep := not is_by_upkeep) and "hero" not in env.types():
            env.upkeep()
        if is_interrupted:
            env.cut_hero()
        for name in ("hero-1", "hero-2"):  # Google creates a reserved slice some time after its answer
            env.slices.wait(name, 10.0)
        assert env.types() == {"hero-1": "v4-8", "hero-2": "v4-8"}, f"after write {number}"
        for name in env.types():
            env.slices.remove(name, unchecked)
    assert number > 3, "there was something to interrupt"


BODY = {"acceleratorType": SMALL.name, "labels": {CLUSTER_LABEL: "here"}}
QUEUED = {"spot": {}, "tpu": {"nodeSpec": [{"nodeId": "hero-2", "node": BODY}]}}
CUT = SliceCut("hero", "1/2", ["v4-8", "v4-8"], {"hero-1": BODY, "hero-2": QUEUED})
DETAILS = CUT.to_json()


def test_slice_cut_in_a_lock_is_read_as_written() -> None:
    assert SliceCut.of(DETAILS, "here") == CUT and SliceCut.of({}, "here") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"slice": None}, {"slice": "../hero"}, {"identity": 7}, {"kinds": "v4-8"}, {"kinds": ["v4-8"]},
        {"kinds": [["v4-8"], 7]}, {"bodies": [BODY, BODY]}, {"bodies": {"hero-1": BODY, "other": BODY}},
        {"bodies": {"hero-1": BODY, "hero-x": BODY}}, {"bodies": {"hero-1": BODY, "hero-2": 7}},
        {"bodies": {"hero-1": BODY, "hero-2": {**BODY, "labels": {CLUSTER_LABEL: "away"}}}},
        {"bodies": {"hero-1": BODY, "hero-2": {**BODY, "labels": 7}}},
        {"bodies": {"hero-1": BODY, "hero-2": {"spot": {}, "tpu": {"nodeSpec": []}}}},
        {"kinds": ["v4-8"] * 1000, "bodies": {f"hero-{number}": BODY for number in range(1, 1001)}},
    ],
    ids=lambda changed: ascii(changed)[:60],
)  # fmt: skip
def test_invalid_slice_cut_in_a_lock_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(FleetError, match="Cluster here: its lock does not say which slice was being cut"):
        SliceCut.of({**DETAILS, **changed}, "here")
