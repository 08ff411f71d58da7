"""The way from a laptop to the dashboard of a cluster: one ``ssh`` to its head.

It ends with whoever opened it, however that ends: the far end reads what this process holds open.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tradewind.fleet.access.ssh import SshError, SshHost, ssh_to, why_lost

DASHBOARD_VARIABLE: Final = "TRADEWIND_HEAD_DASHBOARD"
_DASHBOARD: Final = "127.0.0.1:8265"
_OPENING_S: Final = 60.0
_LOOK_S: Final = 0.05
_GRACE_S: Final = 5.0


@contextmanager
def tunnel(head: SshHost, port: int | None = None, *, to: str | None = None) -> Iterator[str]:
    """The address at which the dashboard of a cluster answers here, on the loopback, for the length of the block.

    Args:
        port: Where; default: a free one.
        to: Another address than the dashboard's, as the head sees it.

    Raises:
        SshError: ``ssh`` is not there, its key is not, or the head does not let us in.
    """
    port = port or free_port()
    far = to or os.environ.get(DASHBOARD_VARIABLE, _DASHBOARD)
    # ``cat`` ends when this process does, and ``ssh`` with it; with -N it would stay behind.
    with ssh_to(head, "-T", "-L", f"127.0.0.1:{port}:{far}") as words:
        ssh = _started([*words, "cat"])
        try:
            _wait(ssh, port, head)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(ssh)


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:  # in a session of its own, so that Ctrl-C is for the command alone
        return subprocess.Popen(
            command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True
        )
    except FileNotFoundError:
        raise SshError("There is no ssh on this machine: install OpenSSH's client.") from None


def _wait(ssh: subprocess.Popen[str], port: int, head: SshHost) -> None:
    deadline = time.monotonic() + _OPENING_S
    while not _answers(port):
        if ssh.poll() is not None:
            assert ssh.stderr is not None
            raise SshError(why_lost(ssh.stderr.read(), head))
        if time.monotonic() > deadline:
            raise SshError(f"Cluster {head.cluster}: ssh to {head.name} did not come up in {_OPENING_S:.0f} s.")
        time.sleep(_LOOK_S)


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
