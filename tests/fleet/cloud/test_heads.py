"""The labels alone identify a cluster's head; the code reports Google Cloud's errors unchanged."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.fleet.clouds import put_head, served
from tests.support.google import LocalCompute
from tests.support.http_server import serving
from tradewind.fleet.cloud import google_api as client
from tradewind.fleet.cloud.google_api import (
    CloudDeniedError,
    CloudError,
    CloudUnreachableError,
    execute_request,
    google_api,
)
from tradewind.fleet.cloud.heads import NoHeadError, find_head, host_keys
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.doctor import Health, _clocks

pytestmark = pytest.mark.slow

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIE5pM0pH"


@pytest.fixture
def compute() -> Iterator[LocalCompute]:
    with served(LocalCompute(), "compute") as server:
        yield server


def test_find_head_ignores_other_machines_and_clusters(compute: LocalCompute, cluster: FleetCluster) -> None:
    put_head(compute, "here-2", "10.0.0.1")
    put_head(compute, "her", "10.0.0.2")
    labels = {"ray-cluster-name": "here", "ray-node-type": "worker"}
    compute.put("my-project", "us-central2-b", "worker", labels=labels, internal_ip="10.0.0.3")
    put_head(compute, ip="10.0.0.4", external_ip="34.1.2.3")
    head = find_head(cluster)
    assert (head.name, head.internal_ip, head.external_ip) == ("ray-here-head-1", "10.0.0.4", "34.1.2.3")


def test_head_on_a_later_page_is_found(compute: LocalCompute, cluster: FleetCluster) -> None:
    for number in range(600):
        put_head(compute, name=f"old-{number:03}", status="TERMINATED")
    put_head(compute)
    assert find_head(cluster).name == "ray-here-head-1"
    assert compute.requests["instances.list"] == 2


def test_no_running_head_and_two_heads_are_reported(compute: LocalCompute, cluster: FleetCluster) -> None:
    with pytest.raises(NoHeadError, match=r"has no head that runs in us-central2-b\. Start it first\."):
        find_head(cluster)
    put_head(compute, status="STOPPING")
    with pytest.raises(NoHeadError, match="Its head ray-here-head-1 is STOPPING"):
        find_head(cluster)
    put_head(compute)
    put_head(compute, name="ray-here-head-2")
    with pytest.raises(NoHeadError, match="has 2 heads: ray-here-head-1, ray-here-head-2"):
        find_head(cluster)


def test_refusal_by_google_is_reported_in_its_words(compute: LocalCompute, cluster: FleetCluster) -> None:
    compute.denied.add("compute.instances.list")
    with pytest.raises(CloudDeniedError, match=r"head of cluster here .* 'compute\.instances\.list' permission"):
        find_head(cluster)
    compute.denied.clear()
    compute.failures, compute.failure_status = 10, 400
    with pytest.raises(CloudError, match="answers 400: try again"):
        find_head(cluster)


def test_outage_is_reported_as_such(compute: LocalCompute, cluster: FleetCluster) -> None:
    client_before = google_api("compute")
    compute.stop()
    with pytest.raises(CloudUnreachableError, match="does not answer"):
        find_head(cluster, client_before)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b'{"items": [{"labels": 1}]}', "cannot be read"),
        (
            b'{"items": [{"labels": {"ray-cluster-name": "here", "ray-node-type": "head"}, "status": "RUNNING"}]}',
            "cannot",
        ),
        (b'{"items": {"a": 1}}', "'items' is no list of objects"),
        (b"[1]", "is no object"),
        (b"no JSON", "is no object"),
        (b"[" * 100_000, "no JSON, or too deep"),
        (b'{"items": [], "nextPageToken": "again"}', "has no end"),
        (b" " * (1 << 20) + b"{}", "more than 1 MiB"),
        (gzip.compress(b" " * (1 << 20) + b"{}", mtime=0), "it is compressed"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_answer_that_is_not_googles_is_reported(
    cluster: FleetCluster, monkeypatch: pytest.MonkeyPatch, answer: bytes, says: str
) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if answer.startswith(b"\x1f\x8b"):
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(client, "_MAX_ANSWER_BYTES", 1 << 20)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Server)) as server:
        compute = google_api("compute", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(CloudError, match=f"^The head of cluster here .*{says}"):
            find_head(cluster, compute)


def test_only_published_valid_host_keys_are_trusted(compute: LocalCompute, cluster: FleetCluster) -> None:
    put_head(compute)
    with pytest.raises(NoHeadError, match="has written down no SSH host keys"):
        host_keys(cluster, find_head(cluster))
    put_head(compute, host_keys={"ssh-ed25519": ED25519, "bad": "no\nkey", "ssh-rsa": "!"})
    assert host_keys(cluster, find_head(cluster)) == (f"ssh-ed25519 {ED25519}",)


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the client of a service account whose token server has an unknown host name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account", "project_id": "my-project", "private_key": pem.decode(),
        "client_email": "me@my-project.iam.gserviceaccount.com", "token_uri": "http://nowhere.invalid/token",
    }  # fmt: skip
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.delenv("TRADEWIND_COMPUTE_ENDPOINT", raising=False)
    return google_api("compute")


def test_network_outage_is_not_reported_as_bad_credentials(unreachable: Any) -> None:
    with pytest.raises(CloudUnreachableError, match="The machines: Google's sign-in does not answer: look at the netw"):
        execute_request(unreachable.instances().list(project="p", zone="z"), "The machines", is_write=True)


def test_doctor_reports_clocks_as_unknown_during_outage(unreachable: Any) -> None:
    assert _clocks(unreachable, time.time).health is Health.UNKNOWN
