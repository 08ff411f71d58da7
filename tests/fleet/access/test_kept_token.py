"""A token that was fetched is kept for its owner alone, and what others could have read or written is not used."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.fleet.access.kept_token import fetched_token, forget_token, kept_token, token_file
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.file.load import load_fleet
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager

SECRET = "projects/my-project/secrets/RAY_AUTH_TOKEN"
TOKEN = "t0ken-of-the-test-0123456789"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    server = LocalSecretManager()
    server.start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> FleetCluster:
    return load_fleet(write_fleet(tmp_path)).cluster()


def test_it_is_fetched_once_and_nobody_else_can_read_it(manager: LocalSecretManager, cluster: FleetCluster) -> None:
    manager.put(SECRET, f"{TOKEN}\n")
    assert kept_token(cluster) is None
    assert fetched_token(cluster) == kept_token(cluster) == TOKEN
    assert manager.accesses == [f"{SECRET}/versions/latest"]
    assert stat.S_IMODE(token_file(cluster).stat().st_mode) == 0o600
    assert not [file for file in token_file(cluster).parent.iterdir() if file != token_file(cluster)]
    forget_token(cluster)
    assert kept_token(cluster) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_could_use_is_not_used(
    manager: LocalSecretManager, cluster: FleetCluster, mode: int
) -> None:
    manager.put(SECRET, TOKEN)
    fetched_token(cluster)
    token_file(cluster).chmod(mode)
    assert kept_token(cluster) is None


def test_a_secret_that_is_missing_denied_or_empty_is_said_with_its_name(
    manager: LocalSecretManager, cluster: FleetCluster
) -> None:
    with pytest.raises(CloudError, match=f"Cluster here: the token cannot be read from {SECRET}: there is no such"):
        fetched_token(cluster)
    manager.put(SECRET, "")
    with pytest.raises(CloudError, match=f"{SECRET} is empty"):
        fetched_token(cluster)
    manager.denied.add(SECRET)
    with pytest.raises(CloudError, match=r"roles/secretmanager\.secretAccessor"):
        fetched_token(cluster)
    manager.stop()
    with pytest.raises(CloudUnreachableError):
        fetched_token(cluster)
    assert kept_token(cluster) is None
