"""A tunnel leads to the head with the known host keys, ends with its command and leaves no files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.fleet.fleets import write_fleet
from tests.fleet.sshd import Sshd, running_sshd
from tests.runtime.marked import descendants_named
from tests.support.waiting import until
from tradewind.fleet.access.connect import tunnel
from tradewind.fleet.access.ssh import SshError, SshHost
from tradewind.fleet.cloud.heads import ClusterHead
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet

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
def cluster(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetCluster]:
    """Yield a cluster whose head is the server, with another server on its dashboard's port."""
    dashboard = ThreadingHTTPServer(("127.0.0.1", 0), _Dashboard)
    threading.Thread(target=dashboard.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setenv("TRADEWIND_SSH_PORT", str(sshd.port))
    monkeypatch.setenv("TRADEWIND_HEAD_DASHBOARD", f"127.0.0.1:{dashboard.server_port}")
    found = load_fleet(write_fleet(tmp_path)).cluster()
    yield replace(found, ssh_user=sshd.user, ssh_private_key=str(sshd.private_key))
    dashboard.shutdown()
    dashboard.server_close()


def keys(sshd: Sshd) -> list[str]:
    return [" ".join(sshd.host_key)]


def head(cluster: FleetCluster, keys: list[str]) -> SshHost:
    return SshHost.of_head(cluster, HEAD, tuple(keys))


@pytest.mark.slow
def test_tunnel_serves_dashboard_on_loopback_until_closed(cluster: FleetCluster, sshd: Sshd) -> None:
    with tunnel(head(cluster, keys(sshd))) as address:
        assert address.startswith("http://127.0.0.1:") and len(descendants_named("ssh")) == 1
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.read() == b"it is the head"
        assert sshd.logins()
    assert not descendants_named("ssh")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_another_machine_at_the_heads_address_is_not_trusted(
    cluster: FleetCluster, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(other)], check=True)
    pinned = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    before = sshd.logins()
    with (
        pytest.raises(SshError, match="has not the host keys that ray-here-head-1 wrote down"),
        tunnel(head(cluster, [pinned])),
    ):
        pytest.fail("it was let in")
    assert not (tmp_path / ".ssh").exists() and not descendants_named("ssh")
    assert sshd.logins() == before, "nobody logs in on a machine that is not the head"


def test_a_key_that_the_head_does_not_know_is_named(cluster: FleetCluster, sshd: Sshd, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    stranger = replace(cluster, ssh_private_key=str(key))
    with (
        pytest.raises(SshError, match=f"does not let {sshd.user} in with {key}"),
        tunnel(head(stranger, keys(sshd))),
    ):
        pytest.fail("it was let in")


def test_missing_ssh_key_and_unreachable_head_are_reported(
    cluster: FleetCluster, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = replace(cluster, ssh_private_key="/nowhere/key")
    with pytest.raises(SshError, match="there is no SSH key /nowhere/key here"), tunnel(head(missing, keys(sshd))):
        pytest.fail("it was let in")
    monkeypatch.setenv("TRADEWIND_SSH_PORT", "1")
    with pytest.raises(SshError, match="ended: .*refused"), tunnel(head(cluster, keys(sshd))):
        pytest.fail("it was let in")


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
def test_a_command_that_is_killed_takes_its_tunnel_with_it(cluster: FleetCluster, sshd: Sshd, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "fleet.yaml"), sshd.user, str(sshd.private_key), *keys(sshd)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline().startswith("http://127.0.0.1:")
        [ssh] = descendants_named("ssh")
        os.kill(holder.pid, signal.SIGKILL)
    until(lambda: not ssh.is_running() or ssh.status() == psutil.STATUS_ZOMBIE, "the end of ssh")
