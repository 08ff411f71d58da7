"""Ray's own autoscaler with Tradewind's provider deletes slices by the state of each host in Ray's GCS."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from googleapiclient.errors import HttpError
from ray.autoscaler._private.autoscaler import StandardAutoscaler
from ray.autoscaler._private.load_metrics import LoadMetrics
from ray.autoscaler._private.providers import _clear_provider_cache
from ray.exceptions import RpcError

from tests.fleet.autoscaled import POD, resolved
from tests.fleet.clouds import PROJECT, ZONE, add_head
from tests.support.google import LocalGoogle
from tradewind.fleet import provider as ours

pytestmark = pytest.mark.slow

WHOLE: Final = {"TPU-v4-16-head": 1.0}
HOST: Final = {"CPU": 120.0, "TPU": 4.0}
HEAD_IP: Final = "10.130.0.1"
AGES_S: Final = 900.0
"""More than five minutes, the idle timeout in the cluster files."""


class Cluster:
    """An autoscaler's process without its loop; the test sets the answers of Ray's GCS.

    Attributes:
        idle_s: Address of each living host → its idle time.
        later_s: The same when the provider asks, where that differs.
        gcs_answers: Whether Ray's GCS answers the provider.
        wanted: Resources that wait for a node.
    """

    def __init__(self, google: LocalGoogle, config: dict[str, Any]) -> None:
        self.google = google
        self.config = config
        self.idle_s: dict[str, float] = {}
        self.later_s: dict[str, float] = {}
        self.gcs_answers = True
        self.wanted: list[dict[str, float]] = []
        self.books = LoadMetrics()

    def start(self) -> None:
        """Start with a new provider: Ray caches providers by their settings."""
        _clear_provider_cache()
        self.autoscaler = StandardAutoscaler(
            lambda: copy.deepcopy(self.config), self.books, gcs_client=None, update_interval_s=0
        )

    def ask(self) -> Mapping[str, float]:
        if not self.gcs_answers:
            raise RpcError("Deadline Exceeded")
        return {**self.idle_s, **self.later_s}

    def want(self, least: int, most: int) -> None:
        """Set the minimum and maximum number of slices of two hosts."""
        self.config["available_node_types"][POD] |= {"min_workers": least, "max_workers": most}

    def round(self) -> list[str]:
        """Run one round as Ray's monitor does, read then act; return the slices that exist afterwards."""
        firsts = {self.hosts(name)[0] for name in self.google.slices()}
        for ip, idle_s in {HEAD_IP: 0.0, **self.idle_s}.items():
            has: Any = {**HOST, **WHOLE} if ip in firsts else HOST if ip != HEAD_IP else {}
            self.books.update(ip, ip.encode(), has, has if idle_s else {}, idle_s, self.wanted)
        self.autoscaler.update()
        return self.slices()

    def slices(self) -> list[str]:
        """Return the slices that are not deleted."""
        state = self.google.tpu[PROJECT, ZONE].service.state
        with state.changed:
            ending = {one.id for one in self.google.slices().values() if one.node.state.name == "DELETING"}
            assert state.changed.wait_for(lambda: not ending & self.google.slices().keys(), 20.0)
        return sorted(self.google.slices())

    def hosts(self, name: str) -> list[str]:
        return [end.ip_address for end in self.google.slices()[name].node.network_endpoints]


@pytest.fixture
def cluster(google: LocalGoogle, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster that wants no slice."""
    add_head(google, "us-central2", ip=HEAD_IP, ray_user_node_type="head_default")
    config = resolved(config, tmp_path)
    config["provider"]["foreground_node_launch"] = True  # the slice exists when the round ends
    cluster = Cluster(google, config)
    monkeypatch.setattr(ours, "idle_seconds", cluster.ask)
    cluster.start()
    return cluster


def one_slice(cluster: Cluster) -> tuple[str, str, str]:
    """Create a slice of two hosts that the autoscaler may delete when idle; return its name and hosts."""
    cluster.want(1, 2)
    (name,) = cluster.round()
    cluster.want(0, 2)
    first, second = cluster.hosts(name)
    return name, first, second


def test_slice_with_any_busy_host_stays_and_idle_one_goes(cluster: Cluster) -> None:
    name, first, second = one_slice(cluster)
    cluster.idle_s = {first: AGES_S, second: 0.0}
    assert [cluster.round() for _ in range(3)] == [[name]] * 3
    cluster.idle_s = {first: AGES_S, second: 200.0}
    assert cluster.round() == [name], "its last work is not over for long"
    cluster.idle_s = {first: 0.0, second: AGES_S}
    assert cluster.round() == [name]
    cluster.idle_s = {first: AGES_S, second: AGES_S}
    assert cluster.round() == []


def test_nothing_is_deleted_while_gcs_does_not_answer(cluster: Cluster) -> None:
    name, first, second = one_slice(cluster)
    cluster.idle_s = {first: AGES_S, second: AGES_S}
    cluster.gcs_answers = False
    cluster.want(0, 0)
    assert cluster.round() == [name]
    cluster.gcs_answers = True
    assert cluster.round() == []


def test_slice_used_again_between_two_polls_stays(cluster: Cluster) -> None:
    name, first, second = one_slice(cluster)
    cluster.want(1, 2)
    cluster.idle_s = {first: AGES_S, second: AGES_S}
    assert cluster.round() == [name]
    cluster.want(0, 2)
    cluster.later_s = {second: 0.0}
    assert cluster.round() == [name]
    cluster.idle_s = {first: AGES_S, second: 0.0}
    assert cluster.round() == [name]


def test_unused_slice_is_deleted_if_there_are_too_many(cluster: Cluster) -> None:
    name, first, second = one_slice(cluster)
    cluster.want(2, 2)
    cluster.idle_s = {first: 250.0, second: 0.0}
    (other,) = set(cluster.round()) - {name}
    cluster.idle_s |= dict.fromkeys(cluster.hosts(other), 60.0)
    cluster.want(0, 1)
    assert cluster.round() == [name]


def test_slice_counts_as_free_only_if_no_host_is_busy(cluster: Cluster) -> None:
    name, first, second = one_slice(cluster)
    cluster.idle_s = {first: 63.0, second: 60.0}
    cluster.wanted = [WHOLE]
    assert cluster.round() == [name]
    cluster.idle_s = {first: 63.0, second: 0.0}
    assert len(cluster.round()) == 2


def test_slice_missing_host_1_is_replaced_unless_host_0_busy(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "AUTOSCALER_HEARTBEAT_TIMEOUT_S", 0)
    cluster.start()
    name, first, second = one_slice(cluster)
    cluster.want(1, 2)
    provider: Any = cluster.autoscaler.provider
    (found,) = provider.non_terminated_nodes({"ray-node-type": "worker"})
    provider.set_node_tags(found, {"ray-node-status": "up-to-date"})
    for idle_s in (0.0, 299.0):
        cluster.idle_s = {first: idle_s}
        assert cluster.round() == [name]
        assert second not in cluster.books.last_heartbeat_time_by_ip
    cluster.idle_s = {first: AGES_S}
    assert cluster.round() == [name]
    cluster.books.last_heartbeat_time_by_ip[second] -= 3600  # an hour later
    (new,) = cluster.round()
    assert new != name


def test_autoscaler_still_acts_after_many_refusals(cluster: Cluster) -> None:
    name, first, second = one_slice(cluster)
    cluster.idle_s = {first: AGES_S, second: AGES_S}
    cluster.google.failures = 10**6
    for _ in range(2 * cluster.autoscaler.max_failures):
        with suppress(HttpError):  # Ray's monitor also continues after it
            cluster.round()
    assert cluster.autoscaler.num_failures > cluster.autoscaler.max_failures
    cluster.google.failures = 0
    assert cluster.round() == []
