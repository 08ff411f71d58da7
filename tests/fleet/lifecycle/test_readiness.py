"""A cluster is ready when its hosts in Ray are stable.

Hosts that the head remembers, or that the autoscaler will set up again, do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.cloud_tpu.resources import TpuNode
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.restart import NotReadyError, Readiness, complete_slice_counts
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.nodes import HeadView, NodeInfo, parse_view

WANTS_ONE = "min_workers: 0\nslices: {v4-16: {min: 1}}\n"


def host(number: int, name: str = "one", **more: Any) -> NodeInfo:
    labels = {"ray.io/tpu-slice-name": name, "ray.io/tpu-worker-id": str(number), "ray.io/tpu-pod-type": "v4-16"}
    return NodeInfo(f"{name}-{number}", labels=labels, **more)


def tpu(status: str = "up-to-date", kind: str = "worker", name: str = "one") -> TpuNode:
    return TpuNode(name, "READY", labels={"ray-node-type": kind, "ray-node-status": status})


BOTH = (host(0), host(1))


@dataclass
class Head:
    """A head that returns a list of views one by one, then the last one forever."""

    cluster: FleetCluster
    views: list[HeadView]
    slices: list[TpuNode] = field(default_factory=lambda: [tpu()])
    silent: int = 0
    told: list[str] = field(default_factory=list)
    looks: int = 0
    now: float = 0.0

    @contextmanager
    def reach(self, cluster: FleetCluster) -> Iterator[RayCluster]:
        self.silent -= 1
        if self.silent >= 0:
            raise FleetError("it is silent")
        yield RayCluster("here", "http://127.0.0.1:8265")

    def look(self, there: RayCluster) -> HeadView:
        self.looks += 1
        return self.views[min(self.looks, len(self.views)) - 1]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> int:
        """Wait for the cluster and return the number of polls."""
        Readiness(
            self.told.append, reach=self.reach, look=self.look, slices=lambda cluster: self.slices,
            clock=lambda: self.now, sleep=self.sleep,
        ).wait(self.cluster, 60.0)  # fmt: skip
        return self.looks


@pytest.fixture
def cluster(tmp_path: Path) -> FleetCluster:
    return load_fleet(write_fleet(tmp_path, WANTS_ONE)).cluster()


def test_cluster_is_ready_after_two_autoscaler_checks_of_slices(cluster: FleetCluster) -> None:
    views = [HeadView(BOTH, None), HeadView(BOTH, 1.0), HeadView(BOTH, 1.0), HeadView(BOTH, 6.0)]
    head = Head(cluster, views, silent=2)
    assert head.wait() == 4
    assert head.told == [
        "Waiting for the head of here to answer.", "The head of here answers.",
        "Slices in Ray: all, which the autoscaler has not checked yet.",
    ]  # fmt: skip


def test_a_slice_that_the_autoscaler_sets_up_again_is_waited_for(cluster: FleetCluster) -> None:
    head = Head(cluster, [HeadView(BOTH, 1.0), HeadView(BOTH, 6.0)], slices=[tpu("setting-up")])
    with pytest.raises(NotReadyError, match="Cluster here: slices in Ray by now: 0 of 1 v4-16. Its"):
        head.wait()


def test_without_a_minimum_the_head_is_enough(tmp_path: Path) -> None:
    head = Head(load_fleet(write_fleet(tmp_path, "min_workers: 0\n")).cluster(), [])
    assert head.wait() == 0


@pytest.mark.parametrize(
    ("nodes", "there", "count"),
    [
        (BOTH, [tpu()], 1),
        (BOTH, [tpu("uninitialized")], 0),
        (BOTH, [tpu("waiting-for-ssh")], 0),
        (BOTH, [tpu("uninitialized", "unmanaged")], 1),
        (BOTH, [], 1),
        ((host(0),), [tpu()], 0),
        ((host(0), host(0, is_alive=False)), [tpu()], 0),
        ((host(0), host(1, is_alive=False)), [tpu()], 0),
    ],
)
def test_slice_is_complete_when_all_hosts_live_and_none_in_setup(
    nodes: list[NodeInfo], there: list[TpuNode], count: int
) -> None:
    assert complete_slice_counts(nodes, there)["v4-16"] == count


# ---- knowledge of a head that just started


def row(node: str, start_s: int, *, is_head: bool = False, state: str = "ALIVE") -> dict[str, Any]:
    return {"node_id": node, "is_head_node": is_head, "state": state, "start_time_ms": 1000 * start_s}


def table(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"result": {"result": list(rows)}}}


def told(*nodes: str) -> dict[str, Any]:
    return {"data": {"summary": [{"now": 1.0, "raylet": {"nodeId": node}} for node in nodes]}}


def report(time: float, **fields: Any) -> dict[str, Any]:
    return {"data": {"clusterStatus": {"time": time, "autoscalerReport": {"activeNodes": {}}, **fields}}}


ROWS = table(row("old-head", 5, is_head=True, state="DEAD"), row("head", 100, is_head=True), row("host", 7))


def test_a_host_counts_once_it_has_told_of_itself() -> None:
    silent = {"data": {"summary": [{"raylet": {"nodeId": "host"}}, {"now": 1.0, "raylet": {"nodeId": "head"}}]}}
    assert [node.node_id for node in parse_view(ROWS, silent, None).nodes if node.is_alive] == ["head"]
    assert [node.node_id for node in parse_view(ROWS, told("head", "host"), None).nodes] == ["old-head", "head", "host"]


def test_a_report_counts_if_it_is_of_this_life_of_the_head() -> None:
    assert parse_view(ROWS, told(), report(99.0)).updated_at is None
    assert parse_view(ROWS, told(), report(101.0)).updated_at == 101.0
    assert parse_view(ROWS, told(), report(101.0, autoscalerReport=None)).updated_at is None
    for status in (None, {}, {"data": {"clusterStatus": None}}):
        assert parse_view(ROWS, told(), status).updated_at is None
