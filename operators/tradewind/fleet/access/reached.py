"""A cluster of the fleet as jobs are given to it: through a tunnel, with its token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tradewind.fleet.access.kept_token import fetched_token, kept_token
from tradewind.fleet.access.ssh import head_to_log_in_on
from tradewind.fleet.access.tunnel import tunnel
from tradewind.fleet.cloud.google_api import google_api
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.ray_jobs.probe import glance

_MEMORY: Final = "127.0.0.1:6379"


@contextmanager
def reached(cluster: FleetCluster, port: int | None = None) -> Iterator[RayCluster]:
    """``cluster`` at an address of this machine, for the length of the block.

    Args:
        port: That of the address; default: a free one.

    Raises:
        FleetError: It has no head, or Google Cloud or the head does not let us.
        RayJobsError: The head answers, and its Ray does not, or refuses the token that is in Secret Manager.
    """
    with tunnel(head_to_log_in_on(cluster, google_api("compute")), port) as address:
        yield _with_token(RayCluster(cluster.name, address), cluster)


@contextmanager
def reached_memory(cluster: FleetCluster) -> Iterator[str]:
    """Where the memory of ``cluster``'s head (Ray's GCS) answers here, ``HOST:PORT``, for the length of the block.

    Raises:
        FleetError: It has no head, or Google Cloud or the head does not let us.
    """
    with tunnel(head_to_log_in_on(cluster, google_api("compute")), to=_MEMORY) as address:
        yield address.removeprefix("http://")


def _with_token(there: RayCluster, cluster: FleetCluster) -> RayCluster:
    """``there`` with the token that is kept, if the cluster takes it, else with the one in Secret Manager now."""
    if token := kept_token(cluster):
        try:
            kept = replace(there, token=token)
            glance(kept)
            return kept
        except RayAuthenticationError:
            pass
    fetched = replace(there, token=fetched_token(cluster))
    try:
        glance(fetched)
    except RayAuthenticationError:
        raise RayAuthenticationError(
            f"Cluster {cluster.name} refuses the token in projects/{cluster.project}/secrets/{cluster.token_secret}: "
            "it was changed since the cluster started: restart the cluster, or put the old token back."
        ) from None
    return fetched
