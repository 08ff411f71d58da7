"""The autoscaler judges a slice by a host that works, as long as one does."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus
from ray.exceptions import RpcError

from tradewind.fleet.provider_google import (
    Representatives,
    UsageSnapshot,
    idle_of,
    idle_seconds,
    newly_used_slices,
    representative,
)

HOSTS = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
FIRST, SECOND, THIRD = HOSTS
TIMEOUT_S = 300.0


def chosen_host(idle_s: Mapping[str, float], *lost: str) -> str:
    return representative(HOSTS, idle_s, lost, TIMEOUT_S)


@pytest.mark.parametrize(
    ("idle_s", "expected"),
    [
        ((900.0, 0.0, 900.0), SECOND),
        ((900.0, 299.0, 12.0), THIRD),
        ((290.0, 0.0, 0.0), SECOND),
        ((4.0, 0.0, 0.0), FIRST),  # a pod releases its hosts one by one
        ((0.0, 900.0, 900.0), FIRST),
        ((900.0, 300.0, 300.0), FIRST),  # all hosts are idle
    ],
)
def test_host_used_last_represents_its_slice(idle_s: tuple[float, ...], expected: str) -> None:
    assert chosen_host(dict(zip(HOSTS, idle_s, strict=True))) == expected


def test_lost_host_represents_an_unused_slice() -> None:
    assert chosen_host({FIRST: 900.0, THIRD: 900.0}, SECOND) == SECOND
    assert chosen_host({SECOND: 0.0, THIRD: 900.0}, FIRST) == SECOND, "a host works, so nothing is restarted"
    assert chosen_host({FIRST: 900.0, THIRD: 900.0}) == FIRST, "it is away for a moment only"
    assert chosen_host({}) == FIRST


def test_slice_is_idle_only_if_all_its_hosts_are() -> None:
    numbers = random.Random(13)
    for _ in range(2000):
        living = [host for host in HOSTS if numbers.random() < 0.8]
        idle_s = {host: numbers.choice([0.0, 1.0, 5.0, 299.0, 300.0, 301.0, 4000.0]) for host in living}
        lost = [host for host in HOSTS if host not in living and numbers.random() < 0.5]
        chosen = chosen_host(idle_s, *lost)
        if min(idle_s.values(), default=TIMEOUT_S) < TIMEOUT_S:
            assert idle_s.get(chosen, TIMEOUT_S) < TIMEOUT_S, f"{idle_s}, {lost}: {chosen}"
        else:
            assert chosen in lost or chosen == FIRST


def test_slice_used_again_just_before_idle_deletion_is_detected() -> None:
    def snapshot(at: float, **slices: float) -> UsageSnapshot:
        return UsageSnapshot(at, {}, slices)

    assert newly_used_slices(snapshot(0, a=298.0), snapshot(5, a=1.0), TIMEOUT_S) == ["a"]
    assert newly_used_slices(snapshot(0, a=298.0), snapshot(5, a=303.0), TIMEOUT_S) == []
    assert newly_used_slices(snapshot(0, a=200.0), snapshot(5, a=1.0), TIMEOUT_S) == [], "it was not to be deleted"
    assert newly_used_slices(snapshot(0, a=float("inf")), snapshot(5, a=1.0), TIMEOUT_S) == [], "its hosts came back"
    assert newly_used_slices(snapshot(0), snapshot(5, a=0.0), TIMEOUT_S) == [], "it is new"


def test_idle_time_per_address_is_of_most_recent_living_node() -> None:
    idle, running, dead = NodeStatus.IDLE, NodeStatus.RUNNING, NodeStatus.DEAD
    seen = [(FIRST, idle, 900_000), (SECOND, running, 0), (THIRD, dead, 0), (FIRST, dead, 0), (SECOND, idle, 4_000)]
    nodes = [NodeState(node_ip_address=ip, status=status, idle_duration_ms=ms) for ip, status, ms in seen]
    assert idle_of(nodes) == {FIRST: 900.0, SECOND: 0.0}


class Cluster:
    """One slice whose state the test sets."""

    def __init__(self) -> None:
        self.idle_s: dict[str, float] | None = dict.fromkeys(HOSTS, 0.0)
        self.now = 0.0
        self.chosen = Representatives(self.ask, idle_timeout_s=TIMEOUT_S, lost_after_s=600.0, clock=lambda: self.now)

    def ask(self) -> Mapping[str, float]:
        if self.idle_s is None:
            raise RpcError("Deadline Exceeded")
        return self.idle_s

    def round_at(self, now: float) -> bool:
        self.now = now
        return self.chosen.choose({"a": HOSTS})


def test_host_is_chosen_only_while_gcs_answers(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    assert cluster.chosen.of("a") is None
    assert cluster.round_at(0.0) and cluster.chosen.of("a") == FIRST
    cluster.idle_s = None
    assert not cluster.round_at(5.0)
    assert "GCS did not return the idle times: Deadline Exceeded" in caplog.text
    outside = Representatives(idle_seconds, idle_timeout_s=TIMEOUT_S, lost_after_s=600.0)
    assert not outside.choose({"a": HOSTS}), "this process is no autoscaler, so it cannot ask the GCS"


def test_host_counts_as_lost_only_after_uninterrupted_absence() -> None:
    cluster = Cluster()
    away = {FIRST: 900.0, THIRD: 900.0}
    hosts = []
    for now, idle_s in ((0.0, away), (599.0, away), (600.0, {**away, SECOND: 900.0}), (605.0, away), (1204.0, away)):
        cluster.idle_s = idle_s
        cluster.round_at(now)
        hosts.append(cluster.chosen.of("a"))
    assert hosts == [FIRST] * 5
    cluster.round_at(1205.0)
    assert cluster.chosen.of("a") == SECOND
