"""A shipped cluster file, a local Google Cloud for it, and Ray's provider that connects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config

from tests.fleet.clouds import NumberedHosts
from tests.fleet.fleets import SHIPPED
from tests.support.google import LocalGoogle
from tradewind.fleet.provider import TradewindNodeProvider

ZONE = "projects/my-project/zones/us-central2-b"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGoogle]:
    """Yield a Google Cloud with the state disk of ``us-central2``."""
    server = LocalGoogle(("my-project", "us-central2-b"), ("my-project", "us-east5-b"), hosts=NumberedHosts())
    server.start()
    server.compute.state.add(f"{ZONE}/disks/ray-us-central2-state", {})
    monkeypatch.setenv("TRADEWIND_COMPUTE_ENDPOINT", server.url)
    monkeypatch.setenv("TRADEWIND_TPU_ENDPOINT", server.url)
    yield server
    server.end_all()
    server.stop()


@pytest.fixture
def config() -> dict[str, Any]:
    """Return a cluster file as Ray's launcher passes it to the provider."""
    text = (SHIPPED.parent / "clusters" / "us-central2.yaml").read_text()
    return dict(prepare_config(yaml.safe_load(text)))


@pytest.fixture
def provider(google: LocalGoogle, config: dict[str, Any]) -> TradewindNodeProvider:
    return TradewindNodeProvider(TradewindNodeProvider.bootstrap_config(config)["provider"], "us-central2")
