"""Token of a cluster: cached for its owner alone; an earlier version only on request, and never cached."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fleet.clouds import running_google
from tests.support.google import LocalGoogle
from tests.support.http_server import serving
from tradewind.fleet.access.connect import (
    cache_token,
    cached_token,
    clear_cached_token,
    fetch_token,
    token_file,
    translated_cluster_errors,
    with_token,
)
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.cluster import BadTokenFileError, RayCluster, read_token_file
from tradewind.ray_jobs.errors import RayAuthenticationError, unreachable
from tradewind.rehearsal.cloud.loopback_server import HttpRequest

SECRET = "projects/my-project/secrets/RAY_AUTH_TOKEN"
TOKEN = "t0ken-of-the-test-0123456789"


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGoogle]:
    """Yield a Google Cloud without secrets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running_google("SECRET_MANAGER") as google:
        yield google


def test_token_is_fetched_once_and_cached_for_its_owner_only(google: LocalGoogle, cluster: FleetCluster) -> None:
    google.secrets.put(SECRET, f"{TOKEN}\n")
    assert cached_token(cluster) is None
    assert fetch_token(cluster) == cached_token(cluster) == TOKEN
    assert google.secrets.accesses == [f"{SECRET}/versions/latest"]
    file = token_file(cluster)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and [*file.parent.iterdir()] == [file]
    for mode in (0o640, 0o604, 0o622):
        file.chmod(mode)
        assert cached_token(cluster) is None, "others could use it"
    file.chmod(0o600)
    clear_cached_token(cluster)
    assert cached_token(cluster) is None


def test_missing_denied_or_empty_secret_is_reported_by_name(google: LocalGoogle, cluster: FleetCluster) -> None:
    with pytest.raises(CloudError, match=f"Cluster here: the token cannot be read from {SECRET}: there is no such"):
        fetch_token(cluster)
    google.secrets.put(SECRET, "")
    with pytest.raises(CloudError, match=f"{SECRET} is empty"):
        fetch_token(cluster)
    google.secrets.denied.add(SECRET)
    with pytest.raises(CloudError, match=r"roles/secretmanager\.secretAccessor"):
        fetch_token(cluster)
    google.stop()
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
    google: LocalGoogle, cluster: FleetCluster, junk: bytes
) -> None:
    google.secrets.put(SECRET, junk)
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


OLD, NEW = "the-old-token-0123456789", "the-new-token-0123456789"


class Dashboard(BaseHTTPRequestHandler):
    """A server that requires the old token, as Ray's dashboard does."""

    def do_GET(self) -> None:
        is_right = self.headers.get("Authorization") == f"Bearer {OLD}"
        self.send_response(200 if is_right else 403)
        self.end_headers()
        version = {"ray_version": "2.60.0", "data": {"result": {"num_filtered": 0}}}
        self.wfile.write(json.dumps(version).encode() if is_right else b"Invalid authentication token")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ray(google: LocalGoogle) -> Iterator[RayCluster]:
    """Yield a cluster that started with the old token, of two."""
    for token in (OLD, NEW):
        google.secrets.put(SECRET, token)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)) as server:
        yield RayCluster("here", f"http://127.0.0.1:{server.server_port}")


def disable(google: LocalGoogle, version: int) -> None:
    google.secrets.answer(HttpRequest("POST", f"/v1/{SECRET}/versions/{version}:disable", {}, {}, b"{}"))
    assert google.secrets.state(f"{SECRET}/versions/{version}") == "DISABLED"


def test_unrotated_cluster_gets_old_token_and_cache_keeps_new(
    google: LocalGoogle, ray: RayCluster, cluster: FleetCluster
) -> None:
    assert fetch_token(cluster) == NEW
    assert with_token(ray, cluster, is_any_good=True).token == OLD
    assert cached_token(cluster) == NEW, "the next command uses the token that counts"
    google.secrets.put(SECRET, "the-third-token-0123456789")
    disable(google, 2)
    assert with_token(ray, cluster, is_any_good=True).token == OLD, "version 2 hides no earlier one"


def test_earlier_token_is_refused_unless_requested_and_enabled(
    google: LocalGoogle, ray: RayCluster, cluster: FleetCluster
) -> None:
    with pytest.raises(RayAuthenticationError, match="it was changed since the cluster started: restart the cluster"):
        with_token(ray, cluster, is_any_good=False)
    google.secrets.refused.add("secretmanager.versions.list")
    with pytest.raises(RayAuthenticationError, match="restart the cluster, or put the old token back"):
        with_token(ray, cluster, is_any_good=True)
    google.secrets.refused.clear()
    disable(google, 1)
    with pytest.raises(RayAuthenticationError):
        with_token(ray, cluster, is_any_good=True)


def test_unreachable_cluster_error_hides_tunnel_address() -> None:
    there = RayCluster("here", "http://127.0.0.1:1")
    assert translated_cluster_errors(unreachable(there, ConnectionError()), there) == (
        "Ray on the head of cluster here does not answer (ConnectionError): 'tradewind cluster status here' shows how "
        "the head is."
    )
