"""Decisions without requests: what belongs to a cluster, what a stop deletes, what Ray would relaunch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.lifecycle.cluster_manager import Teardown, relaunched
from tradewind.fleet.lifecycle.inventory import (
    ClusterReport,
    ClusterState,
    Inventory,
    NodeLine,
    RayStatus,
    VirtualMachine,
)


def labels(cluster: str, kind: str = "worker", **more: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"ray-cluster-name": cluster, "ray-node-type": kind, **named}


def head(name: str = "h", cluster: str = "a", status: str = "RUNNING", **more: str) -> VirtualMachine:
    return VirtualMachine(name, status, labels(cluster, "head", **more))


def tpu(name: str, cluster: str = "a", **more: Any) -> TpuNode:
    return TpuNode(name, more.pop("state", "READY"), labels=more.pop("labels", labels(cluster)), **more)


def queue(name: str, own: Mapping[str, str] | None = None) -> QueuedTpu:
    return QueuedTpu(name, "ACTIVE", labels=own or {})


def names(found: Inventory) -> list[str]:
    return [one.name for one in (*found.machines, *found.slices, *found.queues)]


ZONE = Inventory(
    machines=[
        head("a-head"),
        head("a-b-head", "a-b"),
        VirtualMachine("behind-a-tpu", "RUNNING", {**labels("a"), "tpu_cores": "8"}),
        VirtualMachine("somebodys", "RUNNING"),
    ],
    slices=[
        tpu("a-1"),
        tpu("a-b-1", "a-b"),
        tpu("a-2", queue="q-a"),
        tpu("a-b-2", "a-b", queue="q-a-b"),
        tpu("mixed-1", queue="q-mixed"),
        tpu("mixed-2", "a-b", queue="q-mixed"),
        tpu("given-away", "a-b", queue="q-given-away"),
        TpuNode("ray-a-worker-like", "READY"),
    ],
    queues=[queue("q-a"), queue("q-a-b"), queue("q-labelled", labels("a")), queue("q-mixed"), queue("q-nobodys")]
    + [queue("q-given-away", labels("a"))],
)


def test_ownership_requires_exact_cluster_label_match() -> None:
    assert names(ZONE.of("a")) == ["a-head", "a-1", "a-2", "mixed-1", "q-a", "q-labelled"]
    assert names(ZONE.of("a-b")) == ["a-b-head", "a-b-1", "a-b-2", "mixed-2", "given-away", "q-a-b"]
    assert ZONE.clusters() == ["a", "a-b"]
    assert names(ZONE.of("")) == []


def test_stop_keeps_reserved_slices_and_their_queues() -> None:
    plan = Teardown.of(ZONE.of("a"))
    assert [one.name for one in (*plan.machines, *plan.slices, *plan.queues)] == ["a-head", "a-1"]
    assert sorted(one.name for one in (*plan.kept_slices, *plan.kept_queues)) == ["a-2", "mixed-1", "q-a", "q-labelled"]
    own = Inventory(slices=[tpu("own", is_reserved=True), tpu("two", queue="q")], queues=[queue("q", labels("a"))])
    assert Teardown.of(own).is_empty


def test_stop_with_reserved_keeps_shared_queued_resources() -> None:
    plan = Teardown.of(ZONE.of("a"), include_reserved=True)
    assert [one.name for one in plan.kept_slices] == ["mixed-1"]
    assert sorted(one.name for one in plan.queues) == ["q-a", "q-labelled"]
    own = Inventory(slices=[tpu("own", is_reserved=True), tpu("two", queue="q")], queues=[queue("q", labels("a"))])
    plan = Teardown.of(own, include_reserved=True)
    assert ([one.name for one in plan.slices], [one.name for one in plan.queues]) == (["own"], ["q"])
    assert not plan.kept_slices and not plan.kept_queues


@pytest.mark.parametrize(
    ("machines", "slices", "state"),
    [
        ([], [], ClusterState.ABSENT),
        ([], [tpu("s")], ClusterState.HEADLESS),
        ([head(status="TERMINATED")], [], ClusterState.HEADLESS),
        ([head(ray_node_status="setting-up")], [], ClusterState.HALF_MADE),
        ([head(status="STAGING")], [], ClusterState.HALF_MADE),
        ([head(ray_node_status="up-to-date"), head("old", status="STOPPING")], [], ClusterState.UP),
        ([head(), head("other")], [], ClusterState.DOUBLE),
    ],
)
def test_cluster_state_follows_from_its_heads(
    machines: list[VirtualMachine], slices: list[TpuNode], state: ClusterState
) -> None:
    assert Inventory(machines, slices).state is state


def test_ray_relaunches_nodes_with_another_launch_hash() -> None:
    hashes = {"head_default": "1", "tpu_worker": "2"}

    def launched_by(launch: str, kind: str = "tpu_worker") -> dict[str, str]:
        return labels("a", ray_launch_config=launch, ray_user_node_type=kind)

    found = Inventory(
        [VirtualMachine("h", "RUNNING", {**launched_by("1", "head_default"), "ray-node-type": "head"})],
        [
            tpu("same", labels=launched_by("2")),
            tpu("other", labels=launched_by("3")),
            tpu("dead", labels=launched_by("3"), state="PREEMPTED"),
            tpu("type-that-went", labels=launched_by("2", "tpu_slice_v4_16")),
            tpu("by-hand", labels={"ray-cluster-name": "a"}),
        ],
    )
    assert relaunched(found, hashes) == ["other", "type-that-went"]
    assert relaunched(found, {**hashes, "head_default": "9"}) == ["h", "other", "type-that-went"]


@pytest.mark.parametrize(
    ("state", "in_ray", "note"),
    [("PREEMPTED", 2, "Ray has not noticed yet"), ("PREEMPTED", 0, ""), ("READY", 2, ""), ("PREEMPTED", None, "")],
)
def test_report_notes_preempted_slices_that_ray_still_has(
    state: str, in_ray: int | None, note: str, cluster: FleetCluster
) -> None:
    line = NodeLine("v4-16", "mine", state, 60.0, hosts=2, in_ray=in_ray)
    (row,) = ClusterReport(cluster, "its head was set up", [line], RayStatus()).rows()
    assert row[-1] == note
