"""Fixtures of the drivers' tests: marked processes and a local Secret Manager."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.runtime.marked import MARK, marked
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager


@pytest.fixture
def mark() -> Iterator[str]:
    """Value of ``MARK`` in the environment of the test's processes; those left are killed."""
    mark = uuid.uuid4().hex
    yield mark
    for process in marked(MARK, mark):
        process.kill()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    server = LocalSecretManager()
    server.start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint)
    try:
        yield server
    finally:
        server.stop()
