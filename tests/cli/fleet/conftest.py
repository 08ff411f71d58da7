"""Fixture with a Google Cloud for commands that change a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lifecycle.fleet_environment import IMAGE_TAG, PROJECT, ZONE, update, write_key, write_local_fleet
from tests.support.google import LocalGoogle
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage


@pytest.fixture
def google(
    request: pytest.FixtureRequest, tmp_path: Path, cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalGoogle]:
    """Set up cluster ``here`` and those in ``CLUSTERS`` of the test's module, with a token and without machines."""
    server = LocalGoogle((PROJECT, ZONE))
    server.start()
    server.registry.tags.add(IMAGE_TAG)
    server.secrets.put(f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN", "the-old-token-0123456789")
    for api in ("COMPUTE", "TPU", "SECRET_MANAGER", "ARTIFACT_REGISTRY"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", server.url)
    file = write_local_fleet(tmp_path / "infra", write_key(tmp_path), getattr(request.module, "CLUSTERS", ""))
    file.write_text(file.read_text().replace("bucket: my-bucket", "bucket: bucket"))
    update(file)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.end_all()
    server.stop()
