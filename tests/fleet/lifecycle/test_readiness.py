"""A cluster is ready when its hosts in Ray are stable: neither remembered nor to be set up again."""

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


def host(number: int, **more: Any) -> NodeInfo:
    labels = {"ray.io/tpu-slice-name": "one", "ray.io/tpu-worker-id": str(number), "ray.io/tpu-pod-type": "v4-16"}
    return NodeInfo(f"one-{number}", labels=labels, **more)


def tpu(status: str = "up-to-date", kind: str = "worker") -> TpuNode:
    return TpuNode("one", "READY", labels={"ray-node-type": kind, "ray-node-status": status})


BOTH = (host(0), host(1))


@dataclass
class Head:
    """A head that does not answer ``silent`` times, then returns its views one by one, and the last one forever."""

    cluster: FleetCluster
    views: list[HeadView]
    slices: list[TpuNode] = field(default_factory=lambda: [tpu()])
    silent: int = 0
    messages: list[str] = field(default_factory=list)
    polls: int = 0
    now: float = 0.0

    @contextmanager
    def reach(self, cluster: FleetCluster) -> Iterator[RayCluster]:
        self.silent -= 1
        if self.silent >= 0:
            raise FleetError("it is silent")
        yield RayCluster("here", "http://127.0.0.1:8265")

    def poll(self, there: RayCluster) -> HeadView:
        self.polls += 1
        return self.views[min(self.polls, len(self.views)) - 1]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> int:
        """Wait for the cluster and return the number of polls."""
        Readiness(
            self.messages.append, reach=self.reach, fetch=self.poll, slices=lambda cluster: self.slices,
            clock=lambda: self.now, sleep=self.sleep,
        ).wait(self.cluster, 60.0)  # fmt: skip
        return self.polls


@pytest.fixture
def cluster(tmp_path: Path) -> FleetCluster:
    return load_fleet(write_fleet(tmp_path, WANTS_ONE)).cluster()


def test_cluster_is_ready_after_two_autoscaler_checks_of_slices(cluster: FleetCluster) -> None:
    views = [HeadView(BOTH, None), HeadView(BOTH, 1.0), HeadView(BOTH, 1.0), HeadView(BOTH, 6.0)]
    head = Head(cluster, views, silent=2)
    assert head.wait() == 4
    assert head.messages == [
        "Waiting for the head of here to answer.", "The head of here answers.",
        "Slices in Ray: all, which the autoscaler has not checked yet.",
    ]  # fmt: skip


def test_slice_that_autoscaler_sets_up_again_is_not_ready(cluster: FleetCluster) -> None:
    head = Head(cluster, [HeadView(BOTH, 1.0), HeadView(BOTH, 6.0)], slices=[tpu("setting-up")])
    with pytest.raises(NotReadyError, match="Cluster here: slices in Ray by now: 0 of 1 v4-16. Its"):
        head.wait()


def test_head_alone_is_ready_without_minimum_slices(tmp_path: Path) -> None:
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


def row(node: str, start_s: int, *, is_head: bool = False, state: str = "ALIVE") -> dict[str, Any]:
    return {"node_id": node, "is_head_node": is_head, "state": state, "start_time_ms": 1000 * start_s}


def summary(*nodes: str) -> dict[str, Any]:
    return {"data": {"summary": [{"now": 1.0, "raylet": {"nodeId": node}} for node in nodes]}}


def report(time: float, **fields: Any) -> dict[str, Any]:
    return {"data": {"clusterStatus": {"time": time, "autoscalerReport": {"activeNodes": {}}, **fields}}}


NODES = [row("old-head", 5, is_head=True, state="DEAD"), row("head", 100, is_head=True), row("host", 7)]
ROWS = {"data": {"result": {"result": NODES}}}


def test_host_counts_once_it_has_reported() -> None:
    silent = {"data": {"summary": [{"raylet": {"nodeId": "host"}}, {"now": 1.0, "raylet": {"nodeId": "head"}}]}}
    assert [node.node_id for node in parse_view(ROWS, silent, None).nodes if node.is_alive] == ["head"]
    both = parse_view(ROWS, summary("head", "host"), None).nodes
    assert [node.node_id for node in both] == ["old-head", "head", "host"]


def test_report_counts_only_if_newer_than_the_head() -> None:
    assert parse_view(ROWS, summary(), report(99.0)).updated_at is None
    assert parse_view(ROWS, summary(), report(101.0)).updated_at == 101.0
    assert parse_view(ROWS, summary(), report(101.0, autoscalerReport=None)).updated_at is None
    for status in (None, {}, {"data": {"clusterStatus": None}}):
        assert parse_view(ROWS, summary(), status).updated_at is None
