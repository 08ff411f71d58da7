"""Simulated machines behind the instances and slices of a simulated Google Cloud, which all of them can ask."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tradewind.rehearsal.cloud.loopback import LoopbackServer
from tradewind.rehearsal.compute.machines import MachineError, MachineFacts, MachineUp
from tradewind.rehearsal.local.ray_node import host_name, tpu_host_env
from tradewind.rehearsal.machines.machine import Machine
from tradewind.rehearsal.machines.network import BridgeNetwork, NetworkError, listening_socket_in
from tradewind.rehearsal.tpu.hosts import HostsError, SliceFacts

# What the cluster files call on each machine, and Debian does not have.
_GCLOUD: Final = """\
#!{python}
import base64, json, os, sys, urllib.request
words = [word for word in sys.argv[1:] if not word.startswith("--")]
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
assert words[:3] == ["secrets", "versions", "access"] and len(words) == 4, words
name = "projects/{{project}}/secrets/{{secret}}/versions/{{}}:access".format(words[3], **options)
with urllib.request.urlopen("{url}/v1/" + name) as answer:
    data = base64.b64decode(json.load(answer)["payload"]["data"])
with open(os.open(options["out-file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
    file.write(data)
"""


def gcloud_program(url: str) -> str:
    """The text of a ``gcloud`` that asks the Secret Manager at ``url``, and can nothing else."""
    return _GCLOUD.format(python=sys.executable, url=url)


class SimulatedMachines:
    """Every machine of one rehearsal: the heads are ``Machines`` of Compute Engine, the rest ``SliceHosts``.

    Args:
        folder: Where each has its files; what a machine leaves there is kept.
        user: As whom one logs in.
        public_key: With which key.
        env: What logins find in their environment, on every machine.
    """

    def __init__(self, folder: Path, *, user: str, public_key: str, env: Mapping[str, str]) -> None:
        self.network = BridgeNetwork()
        self.running: dict[str, Machine] = {}
        self._folder = folder
        self._user = user
        self._public_key = public_key
        self._env = dict(env)
        self._google = ""
        self._servers: tuple[LoopbackServer, ...] = ()
        self._listeners: dict[str, list[tuple[LoopbackServer, asyncio.Server]]] = {}
        self._lock = threading.Lock()
        self._count = 0

    def serve(self, google: LoopbackServer, *others: LoopbackServer) -> None:
        """Let every machine that is started from now on reach these servers where this machine does.

        Args:
            google: Has the Secret Manager of which the machines fetch their secrets.
        """
        self._google = google.url
        self._servers = (google, *others)

    @property
    def of_compute(self) -> HeadMachines:
        """For Compute Engine."""
        return HeadMachines(self)

    @property
    def of_slices(self) -> SliceMachines:
        """For Cloud TPU."""
        return SliceMachines(self)

    def start(self, name: str, env: Mapping[str, str], disk: str | None = None) -> Machine:
        """Start one.

        Raises:
            NetworkError: It did not come up.
        """
        with self._lock:
            self._count += 1
            folder = self._folder / f"{self._count}-{name}"
        machine = Machine(
            name, folder, self.network, user=self._user, public_key=self._public_key, env={**self._env, **env},
            disk=self._folder / "disks" / disk if disk else None,
        )  # fmt: skip
        machine.start()
        assert self._servers, "told of the servers first"
        gcloud = folder / "bin" / "gcloud"
        gcloud.write_text(gcloud_program(self._google))
        gcloud.chmod(0o755)
        listeners = []
        for server in self._servers:
            port = int(server.url.rpartition(":")[2])
            listeners.append((server, server.serve_also(listening_socket_in(machine.pid, port))))
        self._listeners[name] = listeners
        with self._lock:
            self.running[name] = machine
        return machine

    def kill(self, name: str) -> None:
        """One vanishes; nothing if it is not there."""
        with self._lock:
            machine = self.running.pop(name, None)
        if machine is not None:
            machine.kill()
            for server, listener in self._listeners.pop(name):
                server.serve_no_more(listener)


class HeadMachines:
    """One machine for each instance."""

    def __init__(self, machines: SimulatedMachines) -> None:
        self._machines = machines

    def start(self, facts: MachineFacts) -> MachineUp:
        try:
            machine = self._machines.start(facts.name, {}, facts.disks[0] if facts.disks else None)
            kind, key = machine.host_key
            return MachineUp(machine.address, {kind: key})
        except NetworkError as error:
            raise MachineError(str(error)) from None

    def kill(self, name: str) -> None:
        self._machines.kill(name)


class SliceMachines:
    """One machine for each host of a slice."""

    def __init__(self, machines: SimulatedMachines) -> None:
        self._machines = machines

    def start(self, facts: SliceFacts) -> list[str]:
        numbers = range(facts.shape.hosts)
        try:
            return [
                self._machines.start(
                    host_name(facts.name, number), tpu_host_env(facts.name, number, facts.shape)
                ).address
                for number in numbers
            ]
        except NetworkError as error:
            self.kill(facts.name)
            raise HostsError(str(error)) from None

    def kill(self, name: str) -> None:
        for host in [host for host in self._machines.running if host.rpartition(".")[0] == name]:
            self._machines.kill(host)

    def notice(self, name: str) -> None:
        """Nobody is told: these machines have no metadata server."""

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        hosts = {
            int(host.rpartition(".")[2]): machine
            for host, machine in self._machines.running.items()
            if host.rpartition(".")[0] == name
        }
        return [dict([hosts[number].host_key]) for number in sorted(hosts)]
