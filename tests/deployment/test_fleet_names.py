"""A cluster's name in the fleet file works as a connection id, in tasks and in the triggerer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import write_fleet
from tests.support.google import LocalCompute
from tests.support.shared_clusters import TOKEN
from tradewind.deployment.fleet_connection import AddressCache
from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.errors import BadAddressError, RayUnreachableError
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager


@pytest.fixture
def compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: LocalSecretManager) -> Iterator[LocalCompute]:
    """A fleet of one cluster with another connection id, a head and a token."""
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path, "connection: ray_here\n")))
    manager.put("projects/my-project/secrets/RAY_AUTH_TOKEN", TOKEN)
    with served(LocalCompute(), "compute") as server:
        put_head(server)
        yield server


def connect(patch: pytest.MonkeyPatch, conn_id: str, host: str) -> None:
    patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "ray", "host": host, "extra": {}}))


def both(name: str) -> set[str]:
    """Return the addresses that a task and the triggerer find."""
    return {RayHook(name).cluster().address, asyncio.run(RayHook.cluster_from_trigger(name)).address}


def test_unconnected_cluster_resolves_by_labels_and_secret(compute: LocalCompute) -> None:
    for name in ("here", "ray_here"):
        cluster = RayHook(name).cluster()
        assert (cluster.name, cluster.address, cluster.token) == (name, "http://10.0.0.7:8265", TOKEN)
    assert both("here") == {"http://10.0.0.7:8265"}
    assert compute.requests["instances.list"] == 1, "the address is cached"
    hook = RayHook("here")
    assert (hook.bucket(), hook.region(), hook.slice_types()[0]) == ("my-bucket", "us-central2", "v4-8")


def test_same_name_connection_precedes_one_from_fleet_file(
    compute: LocalCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "ray_here", "http://10.0.0.2:8265")
    assert both("here") == {"http://10.0.0.2:8265"}
    connect(monkeypatch, "here", "http://10.0.0.3:8265")
    assert both("here") == {"http://10.0.0.3:8265"} and both("ray_here") == {"http://10.0.0.2:8265"}
    assert not compute.requests


def test_unknown_name_suggests_nearest_connections_and_clusters(compute: LocalCompute) -> None:
    with pytest.raises(BadAddressError, match="no connection 'ray_her', and .* did you mean ray_here"):
        RayHook("ray_her").cluster()
    with pytest.raises(BadAddressError, match="did you mean here or ray_here"):
        asyncio.run(RayHook.cluster_from_trigger("herre"))
    assert RayHook("ray_her").slice_types() == () and RayHook("ray_her").region() is None


def test_missing_head_is_unreachable_and_denied_list_bad_address(compute: LocalCompute) -> None:
    compute.remove("my-project", "us-central2-b", "ray-here-head-1")
    with pytest.raises(RayUnreachableError, match="has no head that runs"):
        RayHook("here").cluster()
    compute.denied.add("compute.instances.list")
    with pytest.raises(BadAddressError, match="access is denied"):
        RayHook("here").cluster()


def test_invalid_fleet_file_is_reported_only_without_connection(
    compute: LocalCompute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("clusters: 1\n")
    monkeypatch.setenv("TRADEWIND_FLEET", str(bad))
    with pytest.raises(BadAddressError, match=r"There is no connection 'here', and the fleet file .*bad\.yaml:1"):
        RayHook("here").cluster()
    connect(monkeypatch, "here", "http://10.0.0.3:8265")
    assert both("here") == {"http://10.0.0.3:8265"}


def test_address_cache_expires() -> None:
    now, found = [0.0], iter(["a", "b"])
    cache = AddressCache(lambda: now[0])
    assert [cache.get("here", lambda: next(found)) for _ in range(3)] == ["a"] * 3
    now[0] += 31.0
    assert cache.get("here", lambda: next(found)) == "b"
