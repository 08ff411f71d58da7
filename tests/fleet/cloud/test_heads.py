"""The labels alone identify a cluster's head; the code reports Google Cloud's errors unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import write_fleet
from tests.support.google import LocalCompute
from tradewind.fleet.cloud.google_api import CloudDeniedError, CloudError, CloudUnreachableError, google_api
from tradewind.fleet.cloud.heads import NoHeadError, find_head, host_keys
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet

pytestmark = pytest.mark.slow

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIE5pM0pH"


@pytest.fixture
def compute() -> Iterator[LocalCompute]:
    with served(LocalCompute(), "compute") as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path) -> FleetCluster:
    return load_fleet(write_fleet(tmp_path)).cluster()


def test_find_head_ignores_other_machines_and_clusters(compute: LocalCompute, cluster: FleetCluster) -> None:
    put_head(compute, "here-2", "10.0.0.1")
    put_head(compute, "her", "10.0.0.2")
    compute.put(
        "my-project", "us-central2-b", "worker", labels={"ray-cluster-name": "here", "ray-node-type": "worker"},
        internal_ip="10.0.0.3",
    )  # fmt: skip
    put_head(compute, ip="10.0.0.4", external_ip="34.1.2.3")
    head = find_head(cluster)
    assert (head.name, head.internal_ip, head.external_ip) == ("ray-here-head-1", "10.0.0.4", "34.1.2.3")


def test_a_head_behind_many_pages_is_found(compute: LocalCompute, cluster: FleetCluster) -> None:
    for number in range(600):
        put_head(compute, name=f"old-{number:03}", status="TERMINATED")
    put_head(compute)
    assert find_head(cluster).name == "ray-here-head-1"
    assert compute.requests["instances.list"] == 2


def test_no_running_head_is_reported_with_next_step(compute: LocalCompute, cluster: FleetCluster) -> None:
    with pytest.raises(NoHeadError, match=r"has no head that runs in us-central2-b\. Start it first\."):
        find_head(cluster)
    put_head(compute, status="STOPPING")
    with pytest.raises(NoHeadError, match="Its head ray-here-head-1 is STOPPING"):
        find_head(cluster)


def test_of_two_heads_none_is_chosen(compute: LocalCompute, cluster: FleetCluster) -> None:
    put_head(compute)
    put_head(compute, name="ray-here-head-2")
    with pytest.raises(NoHeadError, match="has 2 heads: ray-here-head-1, ray-here-head-2"):
        find_head(cluster)


def test_what_google_cloud_refuses_is_said_with_its_own_words(compute: LocalCompute, cluster: FleetCluster) -> None:
    compute.denied.add("compute.instances.list")
    with pytest.raises(CloudDeniedError, match=r"head of cluster here .* 'compute\.instances\.list' permission"):
        find_head(cluster)
    compute.denied.clear()
    compute.failures, compute.failure_status = 10, 400
    with pytest.raises(CloudError, match="answers 400: try again"):
        find_head(cluster)


def test_an_outage_is_no_judgement(compute: LocalCompute, cluster: FleetCluster) -> None:
    client = google_api("compute")
    compute.stop()
    with pytest.raises(CloudUnreachableError, match="does not answer"):
        find_head(cluster, client)


def test_the_host_keys_are_those_that_the_head_wrote_down(compute: LocalCompute, cluster: FleetCluster) -> None:
    put_head(compute, host_keys={"ssh-ed25519": ED25519, "bad": "no\nkey", "ssh-rsa": "!"})
    assert host_keys(cluster, find_head(cluster)) == (f"ssh-ed25519 {ED25519}",)


def test_a_head_without_host_keys_is_trusted_by_nobody(compute: LocalCompute, cluster: FleetCluster) -> None:
    put_head(compute)
    with pytest.raises(NoHeadError, match="has written down no SSH host keys"):
        host_keys(cluster, find_head(cluster))


def test_an_endpoint_elsewhere_needs_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_COMPUTE_ENDPOINT", "http://compute.example.com")
    with pytest.raises(CloudError, match="must be https://HOST"):
        google_api("compute")
