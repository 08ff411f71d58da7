"""Airflow connection of a fleet cluster: its expected fields, and its substitute if there is none.

A name without a connection may be that of a cluster in the fleet file. Its connection is then the one that the file
names for it. Without that one as well, it is built from the file and the head's present address.
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
"""How long the address of a head is cached."""


def fleet_cluster(name: str) -> FleetCluster | None:
    """Return the fleet's cluster with this name or connection; None without one, or without a fleet file.

    Raises:
        BadAddressError: The fleet file cannot be used, so the answer is unknown.
    """
    try:
        fleet = configured_fleet()
    except FleetError as error:
        raise BadAddressError(f"There is no connection {name!r}, and the fleet file is invalid: {error}") from None
    return None if fleet is None else fleet.called(name)


def no_such_cluster(name: str, fleet: Fleet | None = None, connections: Iterable[str] = ()) -> BadAddressError:
    """Return the error for a name that is neither a connection nor a cluster, with similar known names."""
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
    """Return the address of the dashboard of ``cluster``, inside the project's network.

    Raises:
        RayUnreachableError: The cluster has no head now, or Google Cloud does not answer.
        BadAddressError: Google Cloud denies the request.
    """
    try:
        return head_addresses.get(cluster.name, lambda: f"http://{find_head(cluster).internal_ip}:{DASHBOARD_PORT}")
    except (NoHeadError, CloudUnreachableError) as error:
        raise RayUnreachableError(str(error)) from None
    except FleetError as error:
        raise BadAddressError(str(error)) from None


class AddressCache:
    """Head addresses by cluster name, cached for ``CACHE_TTL_S``: every task of a DAG needs one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[str, float]] = {}

    def get(self, name: str, find: Callable[[], str]) -> str:
        """Return the address of the head of cluster ``name``."""
        with self._lock:
            address, until = self._cached.get(name, ("", 0.0))
        if self._clock() < until:
            return address
        address = find()
        with self._lock:
            self._cached[name] = (address, self._clock() + CACHE_TTL_S)
        return address

    def clear(self) -> None:
        """Drop all addresses."""
        with self._lock:
            self._cached.clear()


head_addresses = AddressCache()
