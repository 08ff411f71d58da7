"""A cluster of the fleet as jobs are given to it: through a tunnel, with its token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Final

from tradewind.fleet.access.kept_token import fetched_token, kept_token, read_token
from tradewind.fleet.access.ssh import head_to_log_in_on
from tradewind.fleet.access.tunnel import tunnel
from tradewind.fleet.cloud.google_api import CloudError, google_api
from tradewind.fleet.cloud.token_secret import TokenSecret
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError
from tradewind.ray_jobs.probe import glance

_MEMORY: Final = "127.0.0.1:6379"
_EARLIER: Final = 2
"""How many tokens before the newest are tried."""


@contextmanager
def reached(cluster: FleetCluster, port: int | None = None, *, is_any_token_good: bool = False) -> Iterator[RayCluster]:
    """``cluster`` at an address of this machine, for the length of the block.

    Args:
        port: That of the address; default: a free one.
        is_any_token_good: Take an earlier token too, as one is that a cluster has while tokens are rotated.

    Raises:
        FleetError: It has no head, or Google Cloud or the head does not let us.
        RayJobsError: The head answers, and its Ray does not, or refuses the token that is in Secret Manager.
    """
    with tunnel(head_to_log_in_on(cluster, google_api("compute")), port) as address:
        there = RayCluster(cluster.name, address)
        try:
            yield with_token(there, cluster, is_any_good=is_any_token_good)
        except RayUnreachableError as error:
            raise RayUnreachableError(in_fleet_words(str(error), there)) from None


def in_fleet_words(text: str, there: RayCluster) -> str:
    """An error about a cluster at the end of a tunnel, without that address and a connection, which nobody has."""
    text = text.replace(str(there), f"Ray on the head of cluster {there.name}")
    mend = f"start the cluster, or correct the host of connection {there.name!r}"
    return text.replace(mend, f"'tradewind cluster status {there.name}' shows how the head is")


def reached_anyhow(cluster: FleetCluster) -> AbstractContextManager[RayCluster]:
    """``reached``, also if the cluster has an earlier token than the one that counts now. Raises the same."""
    return reached(cluster, is_any_token_good=True)


@contextmanager
def reached_memory(cluster: FleetCluster) -> Iterator[str]:
    """Where the memory of ``cluster``'s head (Ray's GCS) answers here, ``HOST:PORT``, for the length of the block.

    Raises:
        FleetError: It has no head, or Google Cloud or the head does not let us.
    """
    with tunnel(head_to_log_in_on(cluster, google_api("compute")), to=_MEMORY) as address:
        yield address.removeprefix("http://")


def with_token(there: RayCluster, cluster: FleetCluster, *, is_any_good: bool) -> RayCluster:
    """``there`` with the token that is kept, if the cluster takes it, else with the one in Secret Manager now.

    Args:
        is_any_good: Else with an earlier one, which is never kept.

    Raises:
        RayAuthenticationError: It takes none of them.
        RayJobsError: It does not answer.
        CloudError: The token cannot be read.
    """
    for token in _tokens(cluster, is_any_good=is_any_good):
        try:
            tried = replace(there, token=token)
            glance(tried)
            return tried
        except RayAuthenticationError:
            continue
    raise RayAuthenticationError(
        f"Cluster {cluster.name} refuses the token in projects/{cluster.project}/secrets/{cluster.token_secret}: it "
        "was changed since the cluster started: restart the cluster, or put the old token back."
    )


def _tokens(cluster: FleetCluster, *, is_any_good: bool) -> Iterator[str]:
    """Those that ``cluster`` may take, each fetched only when the one before was refused."""
    if token := kept_token(cluster):
        yield token
    yield fetched_token(cluster)
    if is_any_good:
        with suppress(CloudError):  # whoever may not list them, or read an old one, has had the newest
            for version in TokenSecret(cluster.project, cluster.token_secret).versions()[1 : 1 + _EARLIER]:
                if version.state == "ENABLED":
                    yield read_token(cluster, str(version.number))
