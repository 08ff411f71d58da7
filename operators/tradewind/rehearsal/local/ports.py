"""Ports for the servers of a local stack, which several stacks on this machine may want at the same time."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the range from which Linux hands out ports by itself (32768 and up), so that no client socket takes one first.
_PORTS: Final = range(12_000, 32_000)
_given: Final[dict[int, socket.socket]] = {}
"""Those that this process gave, with what keeps every other process from giving them."""


class NoFreePortError(RuntimeError):
    """Somebody listens on every port that was tried."""


def free_port() -> int:
    """A port that nobody listens on now, at any address, and that is given once while this process lives.

    At any address, since a Ray head listens at all of them where it was told one: what is free at that one may be
    taken at another. Who asks may listen only seconds later, and Ray refuses a head of which one part finds its port
    taken.

    Raises:
        NoFreePortError: There is none.
    """
    for port in random.sample(_PORTS, k=min(200, len(_PORTS))):
        if port not in _given and _is_free(port) and (claim := _claim(port)) is not None:
            _given[port] = claim
            return port
    raise NoFreePortError(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free on this machine.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _claim(port: int) -> socket.socket | None:
    """A name that only one process on this machine can have, and that ends with it; None if another has it.

    Linux gives names of sockets that are no files (unix(7), abstract sockets).
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tradewind-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim
