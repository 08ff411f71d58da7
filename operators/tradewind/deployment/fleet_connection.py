"""A cluster of the fleet as an Airflow connection: what its own should say, and what stands in where it has none.

A name that is no connection may be that of a cluster in the fleet file. Its connection is then the one that the file
names for it, or, if there is none either, made up from the file and from where the head is now.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from tradewind.deployment.fleet import configured_fleet
from tradewind.fleet.cloud.google_api import CloudUnreachableError
from tradewind.fleet.cloud.heads import NoHeadError, find_head
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError, nearest_names_hint
from tradewind.ray_jobs.errors import BadAddressError, RayUnreachableError

DASHBOARD_PORT: Final = 8265
CACHE_TTL_S: Final = 30.0
"""For so long the address of a head is not asked for again."""


def fleet_cluster(name: str) -> FleetCluster | None:
    """The cluster of the fleet with this name, or whose connection has it; None if there is none, or no fleet file.

    Raises:
        BadAddressError: The fleet file cannot be used, so nobody can say.
    """
    try:
        fleet = configured_fleet()
    except FleetError as error:
        raise BadAddressError(
            f"There is no connection {name!r}, and what the fleet has cannot be said: {error}"
        ) from None
    return None if fleet is None else fleet.called(name)


def no_such_cluster(name: str, fleet: Fleet | None = None, connections: Iterable[str] = ()) -> BadAddressError:
    """What to say of a name that is neither a connection nor a cluster, with the nearest of those that are known."""
    if fleet is None:
        with suppress(FleetError):
            fleet = configured_fleet()
    known = sorted({*connections, *(fleet.names() if fleet else ())})
    if not known:
        return BadAddressError(
            f"There is no connection {name!r}: add one of type 'Ray' with the dashboard's address, or name the fleet "
            "file that has a cluster of this name, with TRADEWIND_FLEET."
        )
    file = f", and {fleet.file} describes no such cluster" if fleet else ""
    return BadAddressError(f"There is no connection {name!r}{file}: {nearest_names_hint(name, known)}")


def head_address(cluster: FleetCluster) -> str:
    """Where the dashboard of ``cluster`` is, for who is in the project's network.

    Raises:
        RayUnreachableError: It has no head now, or Google Cloud does not answer.
        BadAddressError: Google Cloud does not let us ask.
    """
    try:
        return head_addresses.get(cluster.name, lambda: f"http://{find_head(cluster).internal_ip}:{DASHBOARD_PORT}")
    except (NoHeadError, CloudUnreachableError) as error:
        raise RayUnreachableError(str(error)) from None
    except FleetError as error:
        raise BadAddressError(str(error)) from None


class AddressCache:
    """Addresses of heads by the names of their clusters, each for ``CACHE_TTL_S``: every task of a DAG asks for one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[str, float]] = {}

    def get(self, name: str, find: Callable[[], str]) -> str:
        """The address of the head of cluster ``name``."""
        with self._lock:
            address, until = self._kept.get(name, ("", 0.0))
        if self._clock() < until:
            return address
        address = find()
        with self._lock:
            self._kept[name] = (address, self._clock() + CACHE_TTL_S)
        return address

    def clear(self) -> None:
        """Ask for all of them again."""
        with self._lock:
            self._kept.clear()


head_addresses = AddressCache()
