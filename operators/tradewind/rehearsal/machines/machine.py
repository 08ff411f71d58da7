"""One simulated machine: namespaces of its own for processes, network, mounts and host name, with Debian's sshd.

Its first process ends when the pipe to whoever started it is closed, and with it all that runs on the machine. It has
an own ``/tmp``, ``/run`` and ``/var/lib``, in which Ray keeps everything; the rest is this machine's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tradewind.rehearsal.machines.network import BridgeNetwork, NetworkError

SSHD: Final = "/usr/sbin/sshd"
HOME: Final = "/tmp/home"
_PACKAGES: Final = Path(__file__).parents[3]
"""The folder that has this package."""
_TOOLS: Final = ("unshare", "ip", "ssh-keygen", "rsync")
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
    """Why there can be no simulated machines here; None if there can."""
    if os.geteuid() != 0:
        return "simulated machines need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not Path(SSHD).exists():
        missing.append("sshd")
    return f"simulated machines need {', '.join(missing)}: scripts/install_machines.sh" if missing else None


class Machine:
    """One machine in ``network``.

    Args:
        folder: Its ``/tmp`` and home, which is made.
        public_key: Who may log in, as ``user``.
        env: What its logins find in their environment.
        disk: A folder that outlives it: what Ray's GCS knows, and Ray's sessions.
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
        """A process in its network."""
        assert self._process is not None, "started first"
        return self._process.pid

    @property
    def host_key(self) -> tuple[str, str]:
        """The type and the text of its SSH host key."""
        kind, key, *_ = (self.folder / "sshd" / "host_key.pub").read_text().split()
        return kind, key

    def start(self) -> None:
        """Returns when one can log in.

        Raises:
            NetworkError: It did not come up; nothing of it is left.
        """
        self._write_files()
        script = _FIRST_PROCESS.format(
            address=self.address, gateway=self._network.gateway, name=shlex.quote(self.name), sshd=SSHD,
            folder=shlex.quote(str(self.folder)),
            disk=_DISK.format(disk=self._disk, folder=self.folder) if self._disk else ":", code=self._code(),
        )  # fmt: skip
        words = ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "--kill-child"]
        log = (self.folder / "machine.log").open("w")
        self._process = subprocess.Popen(
            [*words, "bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        log.close()
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
        """Commands that keep Python and this package where they are, if that is below the ``/tmp`` which is hidden."""
        below = sorted({Path(place) for place in (sys.prefix, sys.base_prefix, _PACKAGES)}, reverse=True)
        kept = {place: self.folder / place.relative_to("/tmp") for place in below if place.is_relative_to("/tmp")}
        words = [["mkdir", "-p", str(there)] for there in kept.values()]
        words += [["mount", "--rbind", str(place), str(there)] for place, there in kept.items()]
        return "; ".join(map(shlex.join, words)) or ":"

    def kill(self) -> None:
        """It vanishes, with every process on it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _expect(self, word: str) -> None:
        assert self._process is not None and self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise NetworkError((self.folder / "machine.log").read_text().strip() or f"it never said {word!r}")

    def _write_files(self) -> None:
        home, sshd = self.folder / "home", self.folder / "sshd"
        for made in (home, sshd, self.folder / "ray", self.folder / "bin"):
            made.mkdir(parents=True)
        if self._disk is not None:
            (self._disk / "gcs").mkdir(parents=True, exist_ok=True)
            (self._disk / "ray").mkdir(exist_ok=True)
        # It comes first, because ssh takes for the home of user 0 that of the first one.
        users = f"{self._user}:x:0:0::{HOME}:/bin/bash\n{Path('/etc/passwd').read_text()}"
        (self.folder / "passwd").write_text(users)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in self._env.items())
        (home / ".bashrc").write_text(f"{exports}export PATH=/tmp/bin:{Path(sys.executable).parent}:$PATH\n")
        (sshd / "config").write_text(_SSHD_CONFIG.format(address=self.address))
        (sshd / "authorized_keys").write_text(self._public_key)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(sshd / "host_key")], check=True, timeout=60
        )
