"""A fleet whose cluster ``here`` is this machine: a real ``sshd`` is its head and its hosts, beside a local cloud."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fleet.clouds import PROJECT, ZONE, add_head, running_google
from tests.fleet.fleets import write_fleet
from tests.fleet.sshd import Sshd, running_sshd
from tests.support.google import LocalGoogle
from tests.support.machines import gcloud_program
from tradewind.cloud_tpu.api import TpuApi
from tradewind.rehearsal.tpu.hosts import NullHosts, SliceMetadata

SLICE: Final = "one"


class LoopbackHosts(NullHosts):
    """Hosts that are all the one server; without external addresses, clients reach them through the head."""

    def __init__(self, sshd: Sshd, addresses: Sequence[str] | None = None) -> None:
        self.keys = [dict([sshd.host_key]) for _ in range(2)]
        self._addresses = addresses

    def start(self, facts: SliceMetadata) -> list[str]:
        return list(self._addresses or ["127.0.0.1"] * facts.shape.hosts)

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        return self.keys


@dataclass
class LoopbackFleet:
    """The fleet, its cloud, and the home folder of logins."""

    folder: Path
    google: LocalGoogle
    hosts: LoopbackHosts
    home: Path


@contextmanager
def loopback_fleet(
    folder: Path,
    *,
    home: Path | None = None,
    addresses: Sequence[str] | None = None,
    more: str = "",
    env: Mapping[str, str] | None = None,
) -> Iterator[LoopbackFleet]:
    """Set the fleet in the environment for the length of the block.

    Args:
        home: Home folder of logins; default: a new one.
        addresses: Of the hosts of its slice of two.
        more: Further fields of the cluster.
        env: Further environment variables of logins.
    """
    home = home or folder / "home"
    (folder / "bin").mkdir(parents=True)
    home.mkdir(exist_ok=True)
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    env = {"HOME": str(home), "PATH": path, **(env or {})}
    with running_sshd(folder / "sshd", env=env) as sshd, pytest.MonkeyPatch.context() as patch:
        hosts = LoopbackHosts(sshd, addresses)
        with running_google("COMPUTE", "TPU", "SECRET_MANAGER", hosts=hosts) as google:
            (folder / "bin" / "gcloud").write_text(gcloud_program(google.url))
            (folder / "bin" / "gcloud").chmod(0o755)
            google.compute.state.guests[add_head(google, ip="127.0.0.1")] = dict([sshd.host_key])
            labels = {"ray-cluster-name": "here", "ray-node-type": "worker"}
            body: dict[str, Any] = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base"}
            TpuApi(PROJECT, ZONE, endpoint=google.url, poll_s=0.02).create(SLICE, {**body, "labels": labels})
            fields = f"ssh_user: {sshd.user}\nssh_private_key: {sshd.private_key}\n{more}"
            patch.setenv("TRADEWIND_FLEET", str(write_fleet(folder, fields)))
            patch.setenv("TRADEWIND_SSH_PORT", str(sshd.port))
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            yield LoopbackFleet(folder, google, hosts, home)
