"""Manual slices: users' requests for them, their repair, and interruptions that lose none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE, write_key, write_world_fleet
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
from tradewind.fleet.workers.manual_slices import FleetError, ManualSlices, check_unused, slice_records
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


def host(name: str, ip: str, used: float = 0.0, *, is_told: bool = True) -> NodeInfo:
    total = {"TPU": 4.0, "CPU": 120.0, "memory": 100.0, name: 1.0}
    free = {**total, "TPU": 4.0 - used, "memory": 90.0} if is_told else None
    return NodeInfo(ip, ip, total=total, free=free, labels={SLICE_NAME_LABEL: name})


@dataclass
class Yard:
    """A cluster, its cloud, and Ray's view of its nodes."""

    cluster: FleetCluster
    google: LocalGoogle
    nodes: list[NodeInfo] | None = None
    told: list[str] = field(default_factory=list)

    @cached_property
    def api(self) -> TpuApi:
        return TpuApi(PROJECT, ZONE, poll_s=0.02, sleep=lambda seconds: None)

    @property
    def slices(self) -> ManualSlices:
        return ManualSlices(
            self.cluster, self.api, slice_records(self.cluster), script=lambda kind: SCRIPT.format(kind.chips),
            nodes=lambda: self.nodes, tell=self.told.append,
        )  # fmt: skip

    @property
    def marker(self) -> ClusterLock:
        return ClusterLock.of(self.cluster)

    def there(self) -> dict[str, str]:
        return {node.name: node.slice_type for node in self.api.nodes()}

    def upkeep(self) -> None:
        """Run one round of upkeep that sees no host in Ray; all slices are old enough for it."""
        scope = Scope(labels={CLUSTER_LABEL: self.cluster.name})
        SliceRepair(self.api, lambda: {"of-others": 1}, scope, slice_records(self.cluster)).run_once()


@pytest.fixture
def yard(tmp_path: Path, cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    file = write_world_fleet(tmp_path / "infra", write_key(tmp_path))
    file.write_text(file.read_text().replace("bucket: my-bucket", "bucket: bucket"))
    google = LocalGoogle((PROJECT, ZONE))
    google.start()
    monkeypatch.setenv("TRADEWIND_TPU_ENDPOINT", google.url)
    cluster = load_fleet(file).cluster("here")
    yield Yard(cluster, google)
    ClusterLock.of(cluster).take("stop", "over", is_anew=True).finish()
    for name in slice_records(cluster).read():
        slice_records(cluster).forget(name, 0.0)
    google.end_all()
    google.stop()


@pytest.mark.parametrize(
    ("capacity", "tier", "field"),
    [
        (Capacity.PREEMPTIBLE, None, "preemptible"),
        (Capacity.RESERVED, {"guaranteed": {}}, "reserved"),
        (Capacity.BEST_EFFORT, {"spot": {}}, "spot"),
    ],
)
def test_manual_slice_uses_requested_capacity_and_cluster_label(
    yard: Yard, capacity: Capacity, tier: dict[str, object] | None, field: str
) -> None:
    yard.slices.add("hero", BIG, capacity)
    yard.slices.wait("hero", 10.0)
    node = yard.api.node("hero")
    assert node.body["schedulingConfig"] == {field: True} and node.labels[CLUSTER_LABEL] == "here"
    assert not node.is_of_autoscaler and node.body["metadata"]["startup-script"] == SCRIPT.format(8)
    assert (node.queue is not None) == (tier is not None)
    if tier is not None:
        assert tier.items() <= yard.api.queued_resource("hero").body.items()
    yard.slices.add("hero", BIG, capacity)
    assert yard.told[-1] == "Slice hero was requested already: READY.", "it can be run again"
    with pytest.raises(FleetError, match=f"There is a slice hero already, of v4-16, {capacity.value}"):
        yard.slices.add("hero", SMALL, capacity)


def test_wrong_generation_or_name_is_refused_before_request(yard: Yard) -> None:
    yard.google.seen = lambda call: pytest.fail("Google was asked")
    with pytest.raises(FleetError, match="Cluster here has slices of v4 only, not v6e-8: v4-8, v4-16"):
        yard.slices.check_kind("v6e-8")
    with pytest.raises(FleetError, match="'Hero!' is no name of a slice"):
        yard.slices.add("Hero!", BIG, Capacity.RESERVED)


@pytest.mark.parametrize("capacity", [Capacity.PREEMPTIBLE, Capacity.BEST_EFFORT])
def test_one_that_google_took_is_made_again_by_upkeep_as_it_was(yard: Yard, capacity: Capacity) -> None:
    yard.slices.add("hero", BIG, capacity)
    yard.slices.wait("hero", 10.0)
    before = yard.api.node("hero")
    lives = yard.google.tpu[PROJECT, ZONE].service.lives
    (held,) = yard.google.slices().values()
    lives.preempt(held, 0.0)
    yard.upkeep()
    yard.upkeep()
    yard.slices.wait("hero", 10.0)
    after = yard.api.node("hero")
    assert after.identity != before.identity and after.body == before.body, "with the script that lets its hosts join"


def test_one_that_waits_for_capacity_is_said_to_wait(yard: Yard) -> None:
    with yard.google.tpu[PROJECT, ZONE].service.state.changed:
        yard.google.tpu[PROJECT, ZONE].service.state.supply.is_out = True
    yard.slices.add("hero", BIG, Capacity.RESERVED)
    with pytest.raises(FleetError, match="Slice hero: .* Google continues"):
        yard.slices.wait("hero", -1.0)


@pytest.mark.slow
def test_remove_accepts_only_manual_slices_of_this_cluster(yard: Yard) -> None:
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    for name, cluster, kind in (("auto", "here", "worker"), ("theirs", "here-b", "unmanaged")):
        yard.api.create(name, {**body, "labels": {CLUSTER_LABEL: cluster, "ray-node-type": kind}})
    yard.slices.add("hero", BIG, Capacity.RESERVED)
    with pytest.raises(FleetError, match="was made by the autoscaler"):
        yard.slices.remove("auto", unchecked)
    with pytest.raises(FleetError, match="is of cluster here-b, not of here"):
        yard.slices.remove("theirs", unchecked)
    with pytest.raises(FleetError, match="has no slice her: did you mean hero?"):
        yard.slices.remove("her", unchecked)
    yard.nodes = [host("hero", "10.0.0.1"), host("hero", "10.0.0.2", used=4.0)]
    with pytest.raises(FleetError, match=r"Slice hero is in use \(4 TPU on 10.0.0.2\)"):
        yard.slices.remove("hero", unchecked)
    yard.nodes = []
    with pytest.raises(MarkerLostError):
        yard.slices.remove("hero", lost)
    assert set(yard.there()) == {"auto", "theirs", "hero"}
    yard.nodes = [host("hero", "10.0.0.1"), host("auto", "10.0.0.2", used=4.0)]
    yard.slices.remove("hero", unchecked)
    yard.upkeep()
    assert set(yard.there()) == {"auto", "theirs"} and not yard.api.queued_resources()


def test_what_ray_does_not_tell_counts_as_used() -> None:
    with pytest.raises(FleetError, match=r"Ray does not report what is in use on 10.0.0.1"):
        check_unused([host("hero", "10.0.0.1", is_told=False)], "hero")
    check_unused([], "hero")


@pytest.mark.slow
@pytest.mark.parametrize("capacity", list(Capacity))
def test_a_slice_is_cut_in_two_that_stand_on_the_same(yard: Yard, capacity: Capacity) -> None:
    yard.slices.add("hero", BIG, capacity)
    names = yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
    for name in names:
        yard.slices.wait(name, 10.0)
    assert yard.there() == {"hero-1": "v4-8", "hero-2": "v4-8"} and names == ["hero-1", "hero-2"]
    found = yard.slices.find("hero-1")
    assert found.capacity is capacity
    assert yard.api.node("hero-1").body["metadata"]["startup-script"] == SCRIPT.format(4)
    yard.slices.remove("hero-2", unchecked)
    yard.upkeep()
    assert set(yard.there()) == {"hero-1"}, "nobody makes again what was removed"
    assert not any(record.is_wanted for record in slice_records(yard.cluster).read().values())


def test_a_slice_in_use_is_not_cut_and_nothing_is_left_half_done(yard: Yard) -> None:
    yard.slices.add("hero", BIG, Capacity.RESERVED)
    yard.nodes = [host("hero", "10.0.0.1", used=1.0)]
    with pytest.raises(FleetError):
        yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
    with pytest.raises(FleetError, match="have 12 chips together, slice hero has 8"):
        yard.slices.resize("hero", [BIG, SMALL], yard.marker)
    found = yard.marker.read()
    assert found is not None and found.marker.state is LockState.DONE
    yard.upkeep()
    assert set(yard.there()) == {"hero"}


def queued(name: str, *slices: str, cluster: str = "here") -> dict[str, object]:
    """Return a queued resource for these slices together, as users create it by hand."""
    body = {
        "acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base",
        "labels": {CLUSTER_LABEL: cluster, "ray-node-type": "unmanaged"},
    }  # fmt: skip
    return {"guaranteed": {}, "tpu": {"nodeSpec": [{"nodeId": one, "node": body} for one in slices]}}


def granted(yard: Yard, name: str, *slices: str) -> None:
    """Request these slices in one queued resource: Google creates them some time after its answer."""
    yard.api.create(name, queued(name, *slices))
    until(lambda: {one.name for one in yard.api.nodes() if one.state == "READY"} == set(slices), "slices", yard.there)


def test_slice_granted_with_others_is_removed_under_no_name(yard: Yard) -> None:
    granted(yard, "both", "one", "two")
    yard.nodes = [host("one", "10.0.0.1"), host("two", "10.0.0.2", used=4.0)]
    for name in ("one", "both"):
        for act in (
            lambda name: yard.slices.remove(name, unchecked),
            lambda name: yard.slices.resize(name, [SMALL], yard.marker),
        ):
            with pytest.raises(FleetError, match=f"Slice {name} came with .* of both"):
                act(name)
    assert set(yard.there()) == {"one", "two"}


def test_slice_in_use_is_detected_under_either_name(yard: Yard) -> None:
    granted(yard, "asked", "one")
    yard.nodes = [host("one", "10.0.0.1", used=4.0)]
    for name in ("one", "asked"):
        with pytest.raises(FleetError, match="4 TPU on 10.0.0.1"):
            yard.slices.remove(name, unchecked)
        with pytest.raises(FleetError, match="4 TPU on 10.0.0.1"):
            yard.slices.resize(name, [SMALL], yard.marker)
    assert set(yard.there()) == {"one"}


def test_resize_with_unconfirmed_deletion_loses_no_slice(yard: Yard) -> None:
    yard.slices.add("hero", BIG, Capacity.PREEMPTIBLE)

    def go_silent(call: HttpRequest) -> None:
        if call.method == "DELETE":
            yard.google.failures, yard.google.failure_status = 10**6, 403

    yard.google.seen = go_silent
    with pytest.raises(CloudDeniedError):
        yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
    yard.google.failures, yard.google.seen = 0, lambda call: None
    assert "hero" not in yard.there()
    assert yard.slices.resize("hero", [SMALL, SMALL], yard.marker) == ["hero-1", "hero-2"]
    assert set(yard.there()) == {"hero-1", "hero-2"}


def test_a_cut_whose_deletion_is_refused_leaves_all_as_it_was(yard: Yard) -> None:
    yard.slices.add("hero", BIG, Capacity.PREEMPTIBLE)
    refusal = RefusedCallError("PERMISSION_DENIED", "Permission 'tpu.nodes.delete' denied")
    yard.google.tpu[PROJECT, ZONE].service.state.faults.refuse(1, refusal, "DeleteNode")
    with pytest.raises(CloudDeniedError):
        yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
    found = yard.marker.read()
    assert found is not None and found.marker.state is LockState.DONE
    yard.upkeep()
    assert set(yard.there()) == {"hero"}


def test_without_room_for_a_new_one_upkeep_asks_for_it(yard: Yard) -> None:
    yard.slices.add("hero", BIG, Capacity.PREEMPTIBLE)
    supply = yard.google.tpu[PROJECT, ZONE].service.state.supply
    supply.is_out = True
    with pytest.raises(FleetError, match="There is no capacity for slice hero-1 now"):
        yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
    assert yard.slices.is_awaited("hero-2") and not yard.slices.is_awaited("hero")
    yard.slices.give_up("hero-2")
    supply.is_out = False
    yard.upkeep()
    yard.slices.wait("hero-1", 10.0)
    assert set(yard.there()) == {"hero-1"}


@pytest.mark.slow
def test_interrupted_resize_is_finished_by_next_resize_or_upkeep(yard: Yard) -> None:
    number, is_interrupted, is_by_upkeep = 0, True, False
    while is_interrupted:
        yard.slices.add("hero", BIG, Capacity.RESERVED)
        writes, number, is_interrupted = 0, number + 1, False

        def look(call: HttpRequest, stop_at: int = number) -> None:
            nonlocal writes
            writes += call.method != "GET"
            if call.method != "GET" and writes == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        yard.google.seen = look
        try:
            yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
        except KeyboardInterrupt:
            is_interrupted = True
        yard.google.seen = lambda call: None
        if is_interrupted and (is_by_upkeep := not is_by_upkeep) and "hero" not in yard.there():
            yard.upkeep()
        if is_interrupted:
            yard.slices.resize("hero", [SMALL, SMALL], yard.marker)
        for name in ("hero-1", "hero-2"):  # Google creates a reserved slice some time after its answer
            yard.slices.wait(name, 10.0)
        assert yard.there() == {"hero-1": "v4-8", "hero-2": "v4-8"}, f"after write {number}"
        for name in yard.there():
            yard.slices.remove(name, unchecked)
    assert number > 3, "there was something to interrupt"
