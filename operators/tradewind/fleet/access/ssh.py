"""Logging in on a machine of a cluster with OpenSSH's client: it must be the machine that it says.

A machine writes its host keys into its metadata when it is made, and only those are taken; what the user's own
``known_hosts`` says is not asked. Everything is given to ``ssh`` as words of its own, and nothing after the options can
be taken for one.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.cloud.heads import ClusterHead, find_head, host_keys
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.local_paths import expanded

SSH_PORT_VARIABLE: Final = "TRADEWIND_SSH_PORT"
LOST: Final = 255
"""What ``ssh`` ends with when it did not get there, or lost the connection."""
_LONGEST_WHY: Final = 400
_OPTIONS: Final = (
    "BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no", "CheckHostIP=no", "ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes",
    "ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4",
)  # fmt: skip


class SshError(FleetError):
    """A machine of a cluster cannot be reached by ``ssh``."""


@dataclass(frozen=True)
class SshHost:
    """A machine to log in on.

    Attributes:
        name: What people call it.
        host_keys: Those that it wrote down, as ``known_hosts`` has them, without a name.
        by: The machine through which it is reached, if it cannot be from here.
    """

    cluster: str
    name: str
    address: str
    user: str
    private_key: str
    host_keys: tuple[str, ...]
    by: SshHost | None = None

    @staticmethod
    def of_head(cluster: FleetCluster, head: ClusterHead, keys: tuple[str, ...]) -> SshHost:
        """The head of ``cluster``."""
        address = head.external_ip or head.internal_ip
        return SshHost(cluster.name, head.name, address, cluster.ssh_user, cluster.ssh_private_key, keys)


def head_to_log_in_on(cluster: FleetCluster, compute: Any) -> SshHost:
    """The head of ``cluster`` as it is now.

    Raises:
        NoHeadError: It has none, or none that is surely its own.
        CloudError: Google Cloud does not say.
    """
    head = find_head(cluster, compute)
    return SshHost.of_head(cluster, head, host_keys(cluster, head, compute))


@contextmanager
def ssh_to(host: SshHost, *options: str) -> Iterator[list[str]]:
    """The words of an ``ssh`` that logs in on ``host``, for the length of the block; what to do there comes behind.

    Raises:
        SshError: The private key that the fleet file names is not on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="tradewind-ssh-") as folder:
        known_hosts = Path(folder, "known_hosts")
        machines = [host, *([host.by] if host.by else [])]
        known_hosts.write_text("".join(f"{one.name} {key}\n" for one in machines for key in one.host_keys))
        words = _words(host, known_hosts)
        if host.by:
            target = f"[{host.address}]:{_port()}".replace("%", "%%")
            proxy = [*_words(host.by, known_hosts), "-W", target, "--", host.by.address]
            words += ["-o", f"ProxyCommand={shlex.join(proxy)}"]
        yield [*words, *options, "--", host.address]


def why_lost(said: str, host: SshHost) -> str:
    """Why ``ssh`` to ``host`` ended, as a sentence, from what it said itself."""
    if "Host key verification failed" in said or "REMOTE HOST IDENTIFICATION" in said:
        why = (
            f"who answers at {host.address} has not the host keys that {host.name} wrote down when it was made, and is "
            "not trusted: ask who changed them, and start the cluster again if nobody did."
        )
    elif "Permission denied" in said:
        why = (
            f"{host.name} does not let {host.user} in with {host.private_key}: is that the key that the project knows?"
        )
    else:
        lines = [line for line in said.splitlines() if line.strip()]
        why = f"ssh to {host.name} at {host.address} ended: {lines[-1][:_LONGEST_WHY] if lines else 'it said nothing'}"
    return f"Cluster {host.cluster}: {why}"


def _words(host: SshHost, known_hosts: Path) -> list[str]:
    key = expanded(host.private_key, f"Cluster {host.cluster}: ssh_private_key")
    if not key.is_file():
        raise SshError(
            f"Cluster {host.cluster}: there is no SSH key {key} here: fetch it, or name another one as ssh_private_key."
        )
    options = [*_OPTIONS, f"HostKeyAlias={host.name}", f"UserKnownHostsFile={shlex.quote(str(known_hosts))}"]
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", *words, "-i", str(key), "-p", _port(), "-l", host.user]


def _port() -> str:
    return os.environ.get(SSH_PORT_VARIABLE, "22")
