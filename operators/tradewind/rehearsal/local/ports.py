"""Ports for the servers of a local stack, which several stacks on this machine may want at the same time."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the range from which Linux hands out ports by itself (32768 and up), so that no client socket takes one first.
_PORTS: Final = range(12_000, 32_000)
_given: Final[set[int]] = set()


class NoFreePortError(RuntimeError):
    """Somebody listens on every port that was tried."""


def free_port() -> int:
    """A port that nobody listens on now, at whatever address, and that this process gives to nobody else.

    At whatever address, since a Ray head listens at all of them where it was told one: what is free at that one may be
    taken at another. Who asks may listen only later, and Ray refuses a head of which two parts have the same port.

    Raises:
        NoFreePortError: There is none.
    """
    for port in random.sample(_PORTS, k=min(200, len(_PORTS))):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise NoFreePortError(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free on this machine.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
