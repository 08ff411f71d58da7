"""The way from a laptop to the dashboard of a cluster: one ``ssh`` to its head, which must be the machine that it says.

The head's host keys are those that it wrote into its metadata when it was made; no key is trusted unseen, and what the
user's own ``known_hosts`` says is not asked. The tunnel ends with whoever opened it, however that ends: the far end
reads what this process holds open.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tradewind.fleet.cloud.heads import ClusterHead
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError

SSH_PORT_VARIABLE: Final = "TRADEWIND_SSH_PORT"
DASHBOARD_VARIABLE: Final = "TRADEWIND_HEAD_DASHBOARD"
_DASHBOARD: Final = "127.0.0.1:8265"
_OPENING_S: Final = 60.0
_LOOK_S: Final = 0.05
_GRACE_S: Final = 5.0
_OPTIONS: Final = (
    "BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no", "CheckHostIP=no", "ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes",
    "ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4",
)  # fmt: skip


class TunnelError(FleetError):
    """The head cannot be reached by ``ssh``."""


@contextmanager
def tunnel(cluster: FleetCluster, head: ClusterHead, host_keys: Sequence[str]) -> Iterator[str]:
    """The address at which the dashboard of ``cluster`` answers here, on the loopback, for the length of the block.

    Raises:
        TunnelError: ``ssh`` is not there, its key is not, or the head does not let us in.
    """
    with tempfile.TemporaryDirectory(prefix="tradewind-ssh-") as folder:
        known = Path(folder, "known_hosts")
        known.write_text("".join(f"{head.name} {key}\n" for key in host_keys))
        port = _free_port()
        ssh = _started(_command(cluster, head, known, port))
        try:
            _wait(ssh, port, cluster, head)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(ssh)


def ssh_command(cluster: FleetCluster, head: ClusterHead, known_hosts: Path) -> list[str]:
    """The ``ssh`` that logs in on ``head``, without what is to be done there.

    Raises:
        TunnelError: The private key that the fleet file names is not on this machine.
    """
    key = Path(cluster.ssh_private_key).expanduser()
    if not key.is_file():
        raise TunnelError(
            f"Cluster {cluster.name}: there is no SSH key {key} here: fetch it, or name another one as ssh_private_key."
        )
    options = [*_OPTIONS, f"HostKeyAlias={head.name}", f"UserKnownHostsFile={shlex.quote(str(known_hosts))}"]
    words = [word for option in options for word in ("-o", option)]
    port = os.environ.get(SSH_PORT_VARIABLE, "22")
    return ["ssh", *words, "-i", str(key), "-p", port, "-l", cluster.ssh_user, head.external_ip or head.internal_ip]


def _command(cluster: FleetCluster, head: ClusterHead, known_hosts: Path, port: int) -> list[str]:
    *words, host = ssh_command(cluster, head, known_hosts)
    dashboard = os.environ.get(DASHBOARD_VARIABLE, _DASHBOARD)
    # ``cat`` ends when this process does, and ``ssh`` with it; with -N it would stay behind.
    return [*words, "-T", "-L", f"127.0.0.1:{port}:{dashboard}", host, "cat"]


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:  # in a session of its own, so that Ctrl-C is for the command alone
        return subprocess.Popen(
            command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True
        )
    except FileNotFoundError:
        raise TunnelError("There is no ssh on this machine: install OpenSSH's client.") from None


def _wait(ssh: subprocess.Popen[str], port: int, cluster: FleetCluster, head: ClusterHead) -> None:
    deadline = time.monotonic() + _OPENING_S
    while not _answers(port):
        if ssh.poll() is not None:
            assert ssh.stderr is not None
            raise TunnelError(f"Cluster {cluster.name}: {_reason(ssh.stderr.read(), cluster, head)}")
        if time.monotonic() > deadline:
            raise TunnelError(f"Cluster {cluster.name}: ssh to {head.name} did not come up in {_OPENING_S:.0f} s.")
        time.sleep(_LOOK_S)


def _reason(said: str, cluster: FleetCluster, head: ClusterHead) -> str:
    """Why ``ssh`` ended, in words, from what it said."""
    address = head.external_ip or head.internal_ip
    if "Host key verification failed" in said or "REMOTE HOST IDENTIFICATION" in said:
        return (
            f"who answers at {address} has not the host keys that {head.name} wrote down when it was made, and is not "
            "trusted: ask who changed them, and start the cluster again if nobody did."
        )
    if "Permission denied" in said:
        return (
            f"{head.name} does not let {cluster.ssh_user} in with {cluster.ssh_private_key}: is that the key that the "
            "project knows?"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    return f"ssh to {head.name} at {address} ended: {lines[-1] if lines else 'it said nothing'}"


def _end(ssh: subprocess.Popen[str]) -> None:
    ssh.terminate()
    try:
        ssh.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        ssh.kill()
        ssh.wait()
    for stream in (ssh.stdin, ssh.stderr):
        if stream is not None:
            stream.close()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
