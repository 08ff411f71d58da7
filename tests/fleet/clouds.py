"""Services of a loopback Google Cloud, set in the environment for tests of the fleet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.google import LocalCompute
from tradewind.cloud_tpu.endpoints import ENDPOINT_VARIABLES
from tradewind.deployment.fleet_connection import head_addresses
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.rehearsal.tpu.hosts import NullHosts, SliceMetadata


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


def put_head(compute: LocalCompute, cluster: str = "here", ip: str = "10.0.0.7", **more: Any) -> None:
    """Create a head of ``cluster`` in the project and zone of the test fleet."""
    labels = {"ray-cluster-name": cluster, "ray-node-type": "head"}
    more = {"name": f"ray-{cluster}-head-1", **more}
    compute.put("my-project", "us-central2-b", labels=labels, internal_ip=ip, **more)
