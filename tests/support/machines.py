"""One simulated machine: process, network, mount and host name namespaces, with Debian's sshd.

Its first process ends when the process that started it closes the pipe, and all processes of the machine end with it.
It has its own ``/tmp``, ``/run`` and ``/var/lib``, where Ray stores its files; it shares the other folders with the
real machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.support.compute import MachineError, MachineMetadata, RunningMachine
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.rehearsal.local.ray import host_name, tpu_host_env
from tradewind.rehearsal.tpu.hosts import HostsError, SliceMetadata

_CLONE_NEWNET: Final = 0x40000000
_TRIES: Final = 20
SSHD: Final = "/usr/sbin/sshd"
HOME: Final = "/tmp/home"
_PACKAGES: Final = Path(__file__).parents[2]
"""Folder that contains this package."""
_TOOLS: Final = ("unshare", "ip", "ssh-keygen", "rsync")


class NetworkError(RuntimeError):
    """This machine cannot create the network; the message holds the error of ``ip``."""


class BridgeNetwork:
    """A bridge with its own /24 subnet on this machine alone, from ``start`` until ``stop``."""

    def __init__(self) -> None:
        self._name = f"tw{os.getpid() % 1_000_000}x{random.randrange(1000)}"
        self._subnet = ""
        self._numbers = itertools.count(2)

    @property
    def gateway(self) -> str:
        """This machine's own address in the network."""
        return f"{self._subnet}.1"

    def start(self) -> None:
        """Create the bridge."""
        run_ip("link", "add", self._name, "type", "bridge")
        for _ in range(_TRIES):
            self._subnet = f"10.{random.randrange(200, 250)}.{random.randrange(256)}"
            if self.gateway.rpartition(".")[0] + "." not in Path("/proc/net/fib_trie").read_text():
                break
        run_ip("addr", "add", f"{self.gateway}/24", "dev", self._name)
        run_ip("link", "set", self._name, "up")

    def stop(self) -> None:
        """Remove the bridge and disconnect all machines."""
        subprocess.run(["ip", "link", "delete", self._name], capture_output=True, check=False)

    def new_address(self) -> str:
        """Return an unused address."""
        return f"{self._subnet}.{next(self._numbers)}"

    def plug_in(self, pid: int, address: str) -> None:
        """Add an interface ``eth0`` to the network namespace of process ``pid``; the machine configures it."""
        outside = f"{self._name}v{address.rpartition('.')[2]}"[-15:]
        run_ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run_ip("link", "set", outside, "master", self._name, "up")


def run_ip(*words: str) -> None:
    """Run ``ip``; raise ``NetworkError`` if it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def listening_socket_in(pid: int, port: int) -> socket.socket:
    """Return a listening socket on the loopback of the network namespace of process ``pid``.

    A socket belongs to the namespace in which it was created, so any process can use it.
    """

    def listen() -> socket.socket:
        with open(f"/proc/{pid}/ns/net") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return socket.create_server(("127.0.0.1", port))

    with ThreadPoolExecutor(1) as pool:  # only its thread enters the namespace, and it then ends
        try:
            return pool.submit(listen).result()
        except OSError as error:
            raise NetworkError(f"No server can listen in the namespace of process {pid}: {error}.") from None


_SSHD_CONFIG: Final = """\
ListenAddress {address}
HostKey /tmp/sshd/host_key
AuthorizedKeysFile /tmp/sshd/authorized_keys
PidFile none
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
MaxStartups 200
Subsystem sftp internal-sftp
"""
_FIRST_PROCESS: Final = """\
set -e
echo born; read -r _
ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up; ip route add default via {gateway}
hostname {name}
mount -t tmpfs tmpfs /run; mkdir /run/sshd
mount -t tmpfs tmpfs /var/lib; mkdir /var/lib/ray-gcs
mount --bind {folder}/passwd /etc/passwd
mount --bind {folder}/hosts /etc/hosts
{disk}
{code}
mount --rbind {folder} /tmp
{sshd} -f /tmp/sshd/config -E /tmp/sshd/log
echo up; read -r _ || true
"""
_DISK: Final = "mount --bind {disk}/gcs /var/lib/ray-gcs; mount --bind {disk}/ray {folder}/ray"


def missing_for_machines() -> str | None:
    """Return why this machine cannot simulate machines; None if it can."""
    if os.geteuid() != 0:
        return "simulated machines need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not Path(SSHD).exists():
        missing.append("sshd")
    return f"simulated machines need {', '.join(missing)}: scripts/install_machines.sh" if missing else None


class Machine:
    """One machine with ``folder`` as its ``/tmp``, where ``public_key`` can log in as ``user``.

    ``disk`` is a folder that outlives the machine, with the GCS data of Ray and Ray's sessions.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        network: BridgeNetwork,
        *,
        user: str,
        public_key: str,
        env: Mapping[str, str],
        disk: Path | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.address = network.new_address()
        self._network = network
        self._user = user
        self._public_key = public_key
        self._env = env
        self._disk = disk
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """A process in the machine's network namespace."""
        assert self._process is not None, "started first"
        return self._process.pid

    @property
    def host_key(self) -> tuple[str, str]:
        """Type and text of the machine's SSH host key."""
        kind, key, *_ = (self.folder / "sshd" / "host_key.pub").read_text().split()
        return kind, key

    def start(self) -> None:
        """Start the machine, or raise ``NetworkError`` and leave nothing of it; return once SSH accepts logins."""
        self._write_files()
        script = _FIRST_PROCESS.format(
            address=self.address, gateway=self._network.gateway, name=shlex.quote(self.name), sshd=SSHD,
            folder=shlex.quote(str(self.folder)),
            disk=_DISK.format(disk=self._disk, folder=self.folder) if self._disk else ":", code=self._code(),
        )  # fmt: skip
        words = ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "--kill-child"]
        words, pipe = [*words, "bash", "-c", script], subprocess.PIPE
        with (self.folder / "machine.log").open("w") as log:
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=log, text=True)
        try:
            self._expect("born")
            self._network.plug_in(self.pid, self.address)
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._expect("up")
        except (NetworkError, OSError) as error:
            self.kill()
            raise NetworkError(f"Machine {self.name} did not come up: {error}") from None

    def _code(self) -> str:
        """Return commands that keep Python and this package visible if they are below the hidden ``/tmp``."""
        below = sorted({Path(place) for place in (sys.prefix, sys.base_prefix, _PACKAGES)}, reverse=True)
        visible = {place: self.folder / place.relative_to("/tmp") for place in below if place.is_relative_to("/tmp")}
        words = [["mkdir", "-p", str(target)] for target in visible.values()]
        words += [["mount", "--rbind", str(place), str(target)] for place, target in visible.items()]
        return "; ".join(map(shlex.join, words)) or ":"

    def kill(self) -> None:
        """Kill the machine and every process on it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _expect(self, word: str) -> None:
        assert self._process is not None and self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise NetworkError((self.folder / "machine.log").read_text().strip() or f"it never said {word!r}")

    def _write_files(self) -> None:
        home, sshd = self.folder / "home", self.folder / "sshd"
        for folder in (home, sshd, self.folder / "ray", self.folder / "bin"):
            folder.mkdir(parents=True)
        if self._disk is not None:
            (self._disk / "gcs").mkdir(parents=True, exist_ok=True)
            (self._disk / "ray").mkdir(exist_ok=True)
        # The entry is first, because ssh uses the home of the first entry with user ID 0.
        users = f"{self._user}:x:0:0::{HOME}:/bin/bash\n{Path('/etc/passwd').read_text()}"
        (self.folder / "passwd").write_text(users)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in self._env.items())
        (home / ".bashrc").write_text(f"{exports}export PATH=/tmp/bin:{Path(sys.executable).parent}:$PATH\n")
        (sshd / "config").write_text(_SSHD_CONFIG.format(address=self.address))
        (sshd / "authorized_keys").write_text(self._public_key)
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(sshd / "host_key")]
        subprocess.run(keygen, check=True, timeout=60)


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
"""Cluster files call ``gcloud`` on each machine, and Debian lacks it."""


def gcloud_program(url: str) -> str:
    """Return the text of a ``gcloud`` that only reads the Secret Manager at ``url``."""
    return _GCLOUD.format(python=sys.executable, url=url)


class SimulatedMachines:
    """All machines of one simulated Google Cloud: heads are instances, the others hosts of slices.

    The files of each, below ``folder``, survive the machine.
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
        """Make these servers reachable from machines started later; ``google`` has the secrets that those fetch."""
        self._google = google.url
        self._servers = (google, *others)

    @property
    def of_compute(self) -> HeadMachines:
        """Backend for Compute Engine."""
        return HeadMachines(self)

    @property
    def of_slices(self) -> SliceMachines:
        """Backend for Cloud TPU."""
        return SliceMachines(self)

    def start(self, name: str, env: Mapping[str, str], disk: str | None = None) -> Machine:
        """Start a machine, or raise ``NetworkError``."""
        with self._lock:
            self._count += 1
            folder = self._folder / f"{self._count}-{name}"
        machine = Machine(
            name, folder, self.network, user=self._user, public_key=self._public_key, env={**self._env, **env},
            disk=self._folder / "disks" / disk if disk else None,
        )  # fmt: skip
        machine.start()
        assert self._servers, "call serve first"
        gcloud = folder / "bin" / "gcloud"
        gcloud.write_text(gcloud_program(self._google))
        gcloud.chmod(0o755)
        self._listeners[name] = [
            (server, server.add_address(listening_socket_in(machine.pid, int(server.url.rpartition(":")[2]))))
            for server in self._servers
        ]
        with self._lock:
            self.running[name] = machine
        return machine

    def kill(self, name: str) -> None:
        """Kill a machine, if it exists."""
        with self._lock:
            machine = self.running.pop(name, None)
        if machine is not None:
            machine.kill()
            for server, listener in self._listeners.pop(name):
                server.remove_address(listener)


class HeadMachines:
    """Backend with one machine for each instance."""

    def __init__(self, machines: SimulatedMachines) -> None:
        self._machines = machines

    def start(self, described: MachineMetadata) -> RunningMachine:
        try:
            machine = self._machines.start(described.name, {}, described.disks[0] if described.disks else None)
            kind, key = machine.host_key
            return RunningMachine(machine.address, {kind: key})
        except NetworkError as error:
            raise MachineError(str(error)) from None

    def kill(self, name: str) -> None:
        self._machines.kill(name)


class SliceMachines:
    """Backend with one machine for each host of a slice."""

    def __init__(self, machines: SimulatedMachines) -> None:
        self._machines = machines

    def start(self, described: SliceMetadata) -> list[str]:
        name, shape = described.name, described.shape
        try:
            machines = [
                self._machines.start(host_name(name, number), tpu_host_env(name, number, shape))
                for number in range(shape.hosts)
            ]
        except NetworkError as error:
            self.kill(name)
            raise HostsError(str(error)) from None
        return [machine.address for machine in machines]

    def kill(self, name: str) -> None:
        for machine in self._of_slice(name):
            self._machines.kill(machine.name)

    def notice(self, name: str) -> None:
        """Do nothing: these machines have no metadata server."""

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        return [dict([machine.host_key]) for machine in self._of_slice(name)]

    def _of_slice(self, name: str) -> list[Machine]:
        """Return the machines of the slice by their numbers."""
        hosts = [machine for host, machine in self._machines.running.items() if host.rpartition(".")[0] == name]
        return sorted(hosts, key=lambda machine: int(machine.name.rpartition(".")[2]))
