"""Token for a cluster: a former version only on request, and never cached."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tests.support.google import LocalGoogle
from tradewind.fleet.access.connect import cached_token, fetch_token, translated_cluster_errors, with_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, unreachable

SECRET = "projects/my-project/secrets/RAY_AUTH_TOKEN"
OLD, NEW = "the-old-token-0123456789", "the-new-token-0123456789"


class Door(BaseHTTPRequestHandler):
    """A server that requires the token ``right``, as Ray's dashboard does."""

    right = OLD

    def do_GET(self) -> None:
        is_right = self.headers.get("Authorization") == f"Bearer {self.right}"
        self.send_response(200 if is_right else 403)
        self.end_headers()
        said = {"ray_version": "2.60.0", "data": {"result": {"num_filtered": 0}}}
        self.wfile.write(json.dumps(said).encode() if is_right else b"Invalid authentication token")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGoogle]:
    """Yield a Google Cloud with a secret that has one version."""
    server = LocalGoogle(("my-project", "us-central2-b"))
    server.start()
    monkeypatch.setenv("TRADEWIND_SECRET_MANAGER_ENDPOINT", server.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for token in (OLD, NEW):
        server.secrets.put(SECRET, token)
    yield server
    server.stop()


@pytest.fixture
def there() -> Iterator[RayCluster]:
    """Yield a cluster that started with the old token."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield RayCluster("here", f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> FleetCluster:
    return load_fleet(write_fleet(tmp_path)).cluster()


def test_unrotated_cluster_gets_old_token_and_cache_keeps_new(
    google: LocalGoogle, there: RayCluster, cluster: FleetCluster
) -> None:
    assert fetch_token(cluster) == NEW
    assert with_token(there, cluster, is_any_good=True).token == OLD
    assert cached_token(cluster) == NEW, "the next command is about the token that counts"


def test_answer_to_earlier_token_alone_is_a_token_refusal(
    google: LocalGoogle, there: RayCluster, cluster: FleetCluster
) -> None:
    with pytest.raises(RayAuthenticationError, match="it was changed since the cluster started: restart the cluster"):
        with_token(there, cluster, is_any_good=False)


def test_a_version_that_is_switched_off_is_not_shown(
    google: LocalGoogle, there: RayCluster, cluster: FleetCluster
) -> None:
    google.secrets.answer("POST", f"/v1/{SECRET}/versions/1:disable", b"{}")
    assert google.secrets.state(f"{SECRET}/versions/1") == "DISABLED"
    with pytest.raises(RayAuthenticationError):
        with_token(there, cluster, is_any_good=True)


def test_disabled_token_version_does_not_hide_earlier_one(
    google: LocalGoogle, there: RayCluster, cluster: FleetCluster
) -> None:
    google.secrets.put(SECRET, "the-third-token-0123456789")
    google.secrets.answer("POST", f"/v1/{SECRET}/versions/2:disable", b"{}")
    assert with_token(there, cluster, is_any_good=True).token == OLD


def test_who_may_not_list_the_versions_is_told_of_the_token(
    google: LocalGoogle, there: RayCluster, cluster: FleetCluster
) -> None:
    google.secrets.refused.add("secretmanager.versions.list")
    with pytest.raises(RayAuthenticationError, match="restart the cluster, or put the old token back"):
        with_token(there, cluster, is_any_good=True)


def test_unreachable_cluster_error_hides_tunnel_address() -> None:
    there = RayCluster("here", "http://127.0.0.1:1")
    assert translated_cluster_errors(unreachable(there, ConnectionError()), there) == (
        "Ray on the head of cluster here does not answer (ConnectionError): 'tradewind cluster status here' shows how "
        "the head is."
    )
