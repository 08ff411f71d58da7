"""A network on this machine alone: a bridge, to which simulated machines are plugged in. Nothing is forwarded."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import socket
import subprocess
import threading
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_TRIES: Final = 20


class NetworkError(RuntimeError):
    """This machine does not let a network be made; the message says what it answered."""


class BridgeNetwork:
    """One bridge with a /24 of its own; ``start`` and ``stop`` frame its life."""

    def __init__(self) -> None:
        self._name = f"tw{os.getpid() % 1_000_000}x{random.randrange(1000)}"
        self._subnet = ""
        self._numbers = itertools.count(2)

    @property
    def gateway(self) -> str:
        """This machine's own address in it."""
        return f"{self._subnet}.1"

    def start(self) -> None:
        """Make the bridge.

        Raises:
            NetworkError: It cannot be made.
        """
        run_ip("link", "add", self._name, "type", "bridge")
        for _ in range(_TRIES):
            self._subnet = f"10.{random.randrange(200, 250)}.{random.randrange(256)}"
            if self.gateway.rpartition(".")[0] + "." not in Path("/proc/net/fib_trie").read_text():
                break
        run_ip("addr", "add", f"{self.gateway}/24", "dev", self._name)
        run_ip("link", "set", self._name, "up")

    def stop(self) -> None:
        """Remove it; whoever is plugged in is cut off."""
        subprocess.run(["ip", "link", "delete", self._name], capture_output=True, check=False)

    def new_address(self) -> str:
        """One that nobody had before."""
        return f"{self._subnet}.{next(self._numbers)}"

    def plug_in(self, pid: int, address: str) -> None:
        """Give the network namespace of process ``pid`` an interface ``eth0``, which that side still has to set up.

        Raises:
            NetworkError: It cannot be made.
        """
        outside = f"{self._name}v{address.rpartition('.')[2]}"[-15:]
        run_ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run_ip("link", "set", outside, "master", self._name, "up")


def run_ip(*words: str) -> None:
    """Run ``ip``.

    Raises:
        NetworkError: It is refused.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def listening_socket_in(pid: int, port: int) -> socket.socket:
    """A socket that listens on the loopback of the network namespace of process ``pid``.

    A socket belongs to the namespace in which it was made, whoever uses it.

    Raises:
        NetworkError: The namespace cannot be entered, or the port is taken there.
    """
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            with open(f"/proc/{pid}/ns/net") as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            listener = socket.create_server(("127.0.0.1", port))
            made.append(listener)
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)  # only this thread enters the namespace, and it ends there
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise NetworkError(f"No server can listen in the namespace of process {pid}: {made[0]}.")
    return made[0]
