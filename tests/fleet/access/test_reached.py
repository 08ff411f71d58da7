"""Token for a cluster: a former version only on request, and never cached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fleet.clouds import running_google
from tests.support.google import LocalGoogle
from tests.support.http_server import serving
from tradewind.fleet.access.connect import cached_token, fetch_token, translated_cluster_errors, with_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, unreachable
from tradewind.rehearsal.cloud.loopback_server import HttpRequest

SECRET = "projects/my-project/secrets/RAY_AUTH_TOKEN"
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
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGoogle]:
    """Yield a Google Cloud with a secret that has two versions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running_google("SECRET_MANAGER") as google:
        for token in (OLD, NEW):
            google.secrets.put(SECRET, token)
        yield google


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    """Yield a cluster that started with the old token."""
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
