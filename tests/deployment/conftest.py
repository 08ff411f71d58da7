"""Fixtures for the tests of the ``ray`` connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.shared_clusters import TOKEN
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.deployment import ray_connection
from tradewind.deployment.ray_connection import TokenCache
from tradewind.hooks.ray import RayHook
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager

OTHER = "an0ther-token-of-the-test-01"
SECRET = "projects/research/secrets/ray-token"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "secret_tokens", TokenCache())


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    """An empty Secret Manager."""
    server = LocalSecretManager()
    server.start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint)
    yield server
    server.stop()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with the token that only its owner can read."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayHook]:
    """Return a function that makes a hook for a connection as the form saves it."""

    def connect(host: str, conn_id: str = "mine", **fields: Any) -> RayHook:
        password = fields.pop("password", None)
        place = {name: fields.pop(name) for name in ("port", "schema") if name in fields}
        described = {"conn_type": "ray", "host": host, **place, "password": password, "extra": fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(described))
        return RayHook(conn_id)

    return connect
