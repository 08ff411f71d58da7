"""A real ``sshd`` on the loopback with its own host key and authorized key."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.waiting import until
from tradewind.rehearsal.local.processes import free_port

INSTALL = Path(__file__).parents[2] / "scripts" / "install_machines.sh"


def find_sshd() -> str | None:
    """Install what simulated machines need, if possible, and return the server's path."""
    if os.geteuid() == 0:
        subprocess.run([INSTALL], check=False)  # without internet the server is missing
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Sshd:
    """A server, with its host key by type and text, and the private key and user that it accepts."""

    port: int
    host_key: tuple[str, str]
    private_key: Path
    user: str
    log: Path

    def logins(self) -> int:
        """Return the number of successful logins."""
        return self.log.read_text().count("Accepted publickey")


@contextmanager
def running_sshd(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Sshd]:
    """Run the server with its files in ``folder`` for the length of the block; skip the test without ``sshd``.

    Args:
        env: Environment variables of logins; with these, the server listens on every loopback address.
    """
    program = find_sshd()
    if program is None:
        pytest.skip("there is no sshd: scripts/install_machines.sh")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    port = free_port()
    address = "127.0.0.1" if env is None else "0.0.0.0"
    settings = {
        "ListenAddress": address, "Port": port, "HostKey": folder / "host", "PidFile": "none", "UsePAM": "no",
        "AuthorizedKeysFile": folder / "authorized", "StrictModes": "no", "PasswordAuthentication": "no",
    }  # fmt: skip
    lines = [f"{name} {value}" for name, value in settings.items()]
    if env:
        lines.append("SetEnv " + " ".join(f'"{name}={value}"' for name, value in env.items()))
    (folder / "config").write_text("\n".join([*lines, ""]))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation folder
    log = (folder / "log").open("w")
    server = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    try:
        _wait(port, server, folder / "log")
        kind, key = (folder / "host.pub").read_text().split()[:2]
        yield Sshd(port, (kind, key), folder / "user", getpass.getuser(), folder / "log")
    finally:
        server.terminate()
        server.wait()
        log.close()


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return True
        return False

    until(answers, "sshd", log.read_text)
