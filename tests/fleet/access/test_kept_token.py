"""A cached token is private to its owner; the code ignores one that others could read or write."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.fleet.access.connect import cache_token, cached_token, clear_cached_token, fetch_token, token_file
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.cluster import BadTokenFileError, read_token_file
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
    assert cached_token(cluster) is None
    assert fetch_token(cluster) == cached_token(cluster) == TOKEN
    assert manager.accesses == [f"{SECRET}/versions/latest"]
    assert stat.S_IMODE(token_file(cluster).stat().st_mode) == 0o600
    assert not [file for file in token_file(cluster).parent.iterdir() if file != token_file(cluster)]
    clear_cached_token(cluster)
    assert cached_token(cluster) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_could_use_is_not_used(
    manager: LocalSecretManager, cluster: FleetCluster, mode: int
) -> None:
    manager.put(SECRET, TOKEN)
    fetch_token(cluster)
    token_file(cluster).chmod(mode)
    assert cached_token(cluster) is None


def test_missing_denied_or_empty_secret_is_reported_by_name(manager: LocalSecretManager, cluster: FleetCluster) -> None:
    with pytest.raises(CloudError, match=f"Cluster here: the token cannot be read from {SECRET}: there is no such"):
        fetch_token(cluster)
    manager.put(SECRET, "")
    with pytest.raises(CloudError, match=f"{SECRET} is empty"):
        fetch_token(cluster)
    manager.denied.add(SECRET)
    with pytest.raises(CloudError, match=r"roles/secretmanager\.secretAccessor"):
        fetch_token(cluster)
    manager.stop()
    with pytest.raises(CloudUnreachableError):
        fetch_token(cluster)
    assert cached_token(cluster) is None


JUNK = [
    "short",
    "a" * 5000,
    f"{TOKEN} {TOKEN}",
    f"{TOKEN}\nHost: elsewhere",
    f"{TOKEN}\x00",
    "ümlaut-" + TOKEN,
    b"\xff" * 40,
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: ascii(junk)[:20])
def test_what_is_no_token_is_neither_kept_nor_sent_nor_shown(
    manager: LocalSecretManager, cluster: FleetCluster, junk: str | bytes
) -> None:
    manager.put(SECRET, junk)
    with pytest.raises(CloudError) as refused:
        fetch_token(cluster)
    assert (
        SECRET in str(refused.value) and str(refused.value).isprintable() and str(junk)[:16] not in str(refused.value)
    )
    assert not token_file(cluster).exists()
    cache_token(cluster, TOKEN)
    token_file(cluster).write_bytes(junk if isinstance(junk, bytes) else junk.encode())
    assert cached_token(cluster) is None, "it is fetched anew"


@pytest.mark.parametrize("junk", JUNK[1:], ids=lambda junk: ascii(junk)[:20])
def test_token_file_without_token_is_refused_before_sending(junk: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(junk if isinstance(junk, bytes) else junk.encode())
    file.chmod(0o600)
    with pytest.raises(BadTokenFileError, match="no token") as refused:
        read_token_file(file)
    assert TOKEN not in str(refused.value)
    file.write_text(f" {TOKEN}\n")
    assert read_token_file(file) == TOKEN
