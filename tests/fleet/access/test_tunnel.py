"""A tunnel leads to the head with the known host keys, ends with its command and leaves no files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.fleet.sshd import Sshd, running_sshd
from tests.runtime.marked import descendants_named
from tests.support.http_server import serving
from tests.support.waiting import until
from tradewind.fleet.access.connect import tunnel
from tradewind.fleet.access.ssh import SshError, SshHost
from tradewind.fleet.cloud.heads import ClusterHead
from tradewind.fleet.clusters import FleetCluster

HEAD = ClusterHead("ray-here-head-1", "127.0.0.1", None)


class _Dashboard(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"it is the head")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def cluster(
    cluster: FleetCluster, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FleetCluster]:
    """Yield a cluster whose head is the server, with another server on its dashboard's port."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Dashboard)) as dashboard:
        monkeypatch.setenv("TRADEWIND_SSH_PORT", str(sshd.port))
        monkeypatch.setenv("TRADEWIND_HEAD_DASHBOARD", f"127.0.0.1:{dashboard.server_port}")
        yield replace(cluster, ssh_user=sshd.user, ssh_private_key=str(sshd.private_key))


@pytest.fixture
def key(sshd: Sshd) -> str:
    """Return the head's host key."""
    return " ".join(sshd.host_key)


def new_key(file: Path, kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(file)], check=True)
    return file


def refused(cluster: FleetCluster, key: str, says: str) -> None:
    """Check that a tunnel to the head with this host key fails with an error that contains ``says``."""
    with pytest.raises(SshError, match=says), tunnel(SshHost.of_head(cluster, HEAD, (key,))):
        pytest.fail("the tunnel was opened")


@pytest.mark.slow
def test_tunnel_serves_dashboard_on_loopback_until_closed(cluster: FleetCluster, sshd: Sshd, key: str) -> None:
    with tunnel(SshHost.of_head(cluster, HEAD, (key,))) as address:
        assert address.startswith("http://127.0.0.1:") and len(descendants_named("ssh")) == 1
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.read() == b"it is the head"
        assert sshd.logins()
    assert not descendants_named("ssh")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_machine_with_other_host_keys_is_not_trusted(
    cluster: FleetCluster, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    other = new_key(tmp_path / "other", kind).with_suffix(".pub")
    before = sshd.logins()
    refused(cluster, " ".join(other.read_text().split()[:2]), "has not the host keys that ray-here-head-1 wrote down")
    assert not (tmp_path / ".ssh").exists() and not descendants_named("ssh")
    assert sshd.logins() == before, "no client logs in on a machine that is not the head"


def test_bad_key_and_unreachable_head_are_reported(
    cluster: FleetCluster, sshd: Sshd, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = new_key(tmp_path / "key")
    refused(replace(cluster, ssh_private_key=str(own)), key, f"does not let {sshd.user} in with {own}")
    refused(replace(cluster, ssh_private_key="/nowhere/key"), key, "there is no SSH key /nowhere/key here")
    monkeypatch.setenv("TRADEWIND_SSH_PORT", "1")
    refused(cluster, key, "ended: .*refused")


HOLDER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from tradewind.fleet.access.ssh import SshHost
from tradewind.fleet.access.connect import tunnel
from tradewind.fleet.cloud.heads import ClusterHead
from tradewind.fleet.fleet_file import load_fleet
file, user, key, host_key = sys.argv[1:]
cluster = replace(load_fleet(Path(file)).cluster(), ssh_user=user, ssh_private_key=key)
with tunnel(SshHost.of_head(cluster, ClusterHead("ray-here-head-1", "127.0.0.1", None), (host_key,))) as address:
    print(address, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_tunnel_ends_with_its_killed_command(cluster: FleetCluster, sshd: Sshd, key: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "fleet.yaml"), sshd.user, str(sshd.private_key), key]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline().startswith("http://127.0.0.1:")
        [ssh] = descendants_named("ssh")
        os.kill(holder.pid, signal.SIGKILL)
    until(lambda: not ssh.is_running() or ssh.status() == psutil.STATUS_ZOMBIE, "the end of ssh")
