"""Instance metadata of a simulated host, over HTTP and by Google's own library."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests

from tradewind.rehearsal.cloud.metadata_server import HostMetadata, MetadataServer

IP = "127.77.0.1"
METADATA = HostMetadata("slice-a", 1, "v4-16", {"cluster": "one"}, {"startup-script": "start ray"}, True)


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer("rehearsal", "us-central2-b")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def host(server: MetadataServer) -> str:
    return server.add_host("slice-a.1", IP, METADATA)


def ask(host: str, path: str, **query: str) -> requests.Response:
    url = f"http://{host}/computeMetadata/v1/{path}"
    return requests.get(url, params=query, headers={"Metadata-Flavor": "Google"}, timeout=30)


def test_host_reads_its_metadata_at_its_own_address(host):
    assert host.startswith(f"{IP}:")
    expected = {
        "instance/preempted": "FALSE",
        "instance/hostname": "slice-a-w-1.us-central2-b.c.rehearsal.internal",
        "instance/attributes/accelerator-type": "v4-16",
        "instance/attributes/agent-worker-number": "1",
        "instance/attributes/startup-script": "start ray",
        "instance/scheduling/preemptible": "TRUE",
        "project/project-id": "rehearsal",
    }
    assert {path: ask(host, path).text for path in expected} == expected
    assert ask(host, "instance/zone").text.endswith("/zones/us-central2-b")
    assert ask(host, "instance/id").text.isdecimal()
    assert ask(host, "instance/", recursive="true").json()["attributes"]["cluster"] == "one"
    assert "preempted" in ask(host, "instance/").text.splitlines()


def test_metadata_refused_without_header_or_for_unknown_key(host):
    answer = requests.get(f"http://{host}/computeMetadata/v1/instance/preempted", timeout=10)
    assert (answer.status_code, answer.headers["Metadata-Flavor"]) == (403, "Google")
    assert ask(host, "instance/attributes/secret").status_code == 404


@contextmanager
def waiting_for_preemption(host) -> Iterator[Future[requests.Response]]:
    """Yield a request that waits for a change."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, host, "instance/preempted", wait_for_change="true")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        yield waiting


def test_notice_ends_waits_on_hosts_of_its_slice_only(server, host):
    other = server.add_host("slice-b.0", "127.77.0.2", METADATA)
    with waiting_for_preemption(host) as waiting:
        server.preempt_slice("slice-b")
        assert (ask(host, "instance/preempted").text, ask(other, "instance/preempted").text) == ("FALSE", "TRUE")
        server.preempt_slice("slice-a")
        assert waiting.result(timeout=5).text == "TRUE"


@pytest.mark.slow
def test_metadata_wait_answers_on_change_or_timeout(server, host):
    before = ask(host, "instance/preempted").headers["ETag"]
    began = time.monotonic()
    same = ask(host, "instance/preempted", wait_for_change="true", timeout_sec="1", last_etag=before)
    assert (same.text, same.headers["ETag"]) == ("FALSE", before)
    assert time.monotonic() - began >= 1
    server.preempt_slice("slice-a")
    assert ask(host, "instance/preempted", wait_for_change="true", last_etag=before).text == "TRUE"


def test_removed_host_cuts_waits_and_answers_no_request(server, host):
    with waiting_for_preemption(host) as waiting:
        server.drop_slice("slice-a")
        with pytest.raises(requests.ConnectionError):
            waiting.result(timeout=10)
    with pytest.raises(requests.ConnectionError):
        ask(host, "instance/preempted")


GOOGLE = """
import google.auth
from google.auth.transport.requests import Request
credentials, project = google.auth.default()
credentials.refresh(Request())
print(type(credentials).__module__, project, credentials.token, credentials.service_account_email)
"""


@pytest.mark.slow
def test_google_auth_library_finds_credentials(host, tmp_path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GCE_METADATA_HOST": host, "GCE_METADATA_IP": host}
    done = subprocess.run([sys.executable, "-c", GOOGLE], env=env, capture_output=True, text=True, check=False)
    account = "rehearsal rehearsal-token tpu@rehearsal.iam.gserviceaccount.com"
    assert done.stdout == f"google.auth.compute_engine.credentials {account}\n", done.stderr
