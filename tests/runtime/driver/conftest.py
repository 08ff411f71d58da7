"""Fixtures with a local Secret Manager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    server = LocalSecretManager()
    server.start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint)
    try:
        yield server
    finally:
        server.stop()
