"""A test fleet, a shipped cluster file, a local Google Cloud for it, and Ray's provider that connects them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config

from tests.fleet.clouds import ZONE, ZONE_PATH, NumberedHosts, running_google
from tests.fleet.fleets import SHIPPED, write_fleet
from tests.support.google import LocalGoogle
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.provider import TradewindNodeProvider


@pytest.fixture
def cluster(tmp_path: Path) -> FleetCluster:
    """Return the cluster ``here`` of a fleet file in ``tmp_path``."""
    return load_fleet(write_fleet(tmp_path)).cluster()


@pytest.fixture
def google() -> Iterator[LocalGoogle]:
    """Yield a Google Cloud with the state disk of ``us-central2``."""
    with running_google("COMPUTE", "TPU", zones=(ZONE, "us-east5-b"), hosts=NumberedHosts()) as google:
        google.compute.state.add(f"{ZONE_PATH}/disks/ray-us-central2-state", {})
        yield google


@pytest.fixture
def config() -> dict[str, Any]:
    """Return a cluster file as Ray's launcher passes it to the provider."""
    text = (SHIPPED.parent / "clusters" / "us-central2.yaml").read_text()
    return dict(prepare_config(yaml.safe_load(text)))


@pytest.fixture
def provider(google: LocalGoogle, config: dict[str, Any]) -> TradewindNodeProvider:
    return TradewindNodeProvider(TradewindNodeProvider.bootstrap_config(config)["provider"], "us-central2")
