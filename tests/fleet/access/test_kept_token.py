"""A cached token is private to its owner; the code ignores one that others could read or write."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.fleet.access.connect import cache_token, cached_token, clear_cached_token, fetch_token, token_file
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError
from tradewind.fleet.clusters import FleetCluster
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


def test_token_is_fetched_once_and_cached_for_its_owner_only(
    manager: LocalSecretManager, cluster: FleetCluster
) -> None:
    manager.put(SECRET, f"{TOKEN}\n")
    assert cached_token(cluster) is None
    assert fetch_token(cluster) == cached_token(cluster) == TOKEN
    assert manager.accesses == [f"{SECRET}/versions/latest"]
    file = token_file(cluster)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and [*file.parent.iterdir()] == [file]
    for mode in (0o640, 0o604, 0o622):
        file.chmod(mode)
        assert cached_token(cluster) is None, "others could use it"
    file.chmod(0o600)
    clear_cached_token(cluster)
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


JUNK = {
    "short": b"short",
    "long": b"a" * 5000,
    "two": f"{TOKEN} {TOKEN}".encode(),
    "header": f"{TOKEN}\nHost: elsewhere".encode(),
    "nul": f"{TOKEN}\x00".encode(),
    "letters": f"ümlaut-{TOKEN}".encode(),
    "bytes": b"\xff" * 40,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_invalid_token_is_neither_cached_nor_sent_nor_shown(
    manager: LocalSecretManager, cluster: FleetCluster, junk: bytes
) -> None:
    manager.put(SECRET, junk)
    with pytest.raises(CloudError) as refused:
        fetch_token(cluster)
    message = str(refused.value)
    assert SECRET in message and message.isprintable() and junk[:16].decode(errors="replace") not in message
    assert not token_file(cluster).exists()
    cache_token(cluster, TOKEN)
    token_file(cluster).write_bytes(junk)
    assert cached_token(cluster) is None, "it is fetched anew"


@pytest.mark.parametrize("junk", [*JUNK.values()][1:], ids=[*JUNK][1:])
def test_token_file_without_token_is_refused_before_sending(junk: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(junk)
    file.chmod(0o600)
    with pytest.raises(BadTokenFileError, match="no valid token") as refused:
        read_token_file(file)
    assert TOKEN not in str(refused.value)
    file.write_text(f" {TOKEN}\n")
    assert read_token_file(file) == TOKEN
