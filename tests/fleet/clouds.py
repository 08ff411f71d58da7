"""Services of a loopback Google Cloud, set in the environment for tests of the fleet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.google import LocalCompute, LocalGoogle
from tradewind.cloud_tpu.endpoints import ENDPOINT_VARIABLES
from tradewind.deployment.fleet_connection import head_addresses
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.rehearsal.tpu.hosts import NullHosts, SliceHosts, SliceMetadata

PROJECT: Final = "my-project"
ZONE: Final = "us-central2-b"
ZONE_PATH: Final = f"projects/{PROJECT}/zones/{ZONE}"


class NumberedHosts(NullHosts):
    """Hosts without processes, each with its own address."""

    def __init__(self) -> None:
        self._numbers = itertools.count(2)

    def start(self, facts: SliceMetadata) -> list[str]:
        return [f"10.130.0.{next(self._numbers)}" for _ in range(facts.shape.hosts)]


@contextmanager
def served(server: LoopbackServer, api: str) -> Iterator[Any]:
    """Serve ``server`` as Google's ``api``; clear what the code cached of an earlier server."""
    server.start()
    head_addresses.clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENDPOINT_VARIABLES[api], server.url)
            yield server
    finally:
        head_addresses.clear()
        server.stop()


@contextmanager
def running_google(*apis: str, zones: tuple[str, ...] = (ZONE,), hosts: SliceHosts | None = None) -> Iterator[Any]:
    """Serve a Google Cloud with these zones of the test fleet's project, as endpoint of ``apis``."""
    google = LocalGoogle(*((PROJECT, zone) for zone in zones), hosts=hosts)
    google.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for api in apis:
                patch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
            yield google
    finally:
        google.end_all()
        google.stop()


def put_head(compute: LocalCompute, cluster: str = "here", ip: str = "10.0.0.7", **more: Any) -> None:
    """Create a head of ``cluster`` in the project and zone of the test fleet."""
    labels = {"ray-cluster-name": cluster, "ray-node-type": "head"}
    compute.put(PROJECT, ZONE, labels=labels, internal_ip=ip, **{"name": f"ray-{cluster}-head-1", **more})


def add_head(
    google: LocalGoogle, cluster: str = "here", *, name: str = "", ip: str = "10.0.0.7", status: str = "RUNNING",
    **labels: str,
) -> str:  # fmt: skip
    """Create a head that is set up in the test fleet's zone, and return its path; in labels, ``_`` stands for ``-``."""
    path = f"{ZONE_PATH}/instances/{name or f'ray-{cluster}-head-1'}"
    named = {"ray-cluster-name": cluster, "ray-node-type": "head", "ray-node-status": "up-to-date"}
    named |= {label.replace("_", "-"): value for label, value in labels.items()}
    state = google.compute.state
    with state.changed:
        state.add(path, {"labels": named, "status": status, "networkInterfaces": [{"networkIP": ip}]})
    return path
